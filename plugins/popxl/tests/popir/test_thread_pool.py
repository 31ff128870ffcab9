"""Work that threads share.

Covers: plugins/popxl/src/popir/thread_pool.py.
"""

from __future__ import annotations

import threading

import pytest

from popir.thread_pool import ALONE, ThreadPool


def test_all_is_done_once_by_several_threads() -> None:
    pool = ThreadPool(3)
    here, meeting = threading.get_ident(), threading.Barrier(3)
    done: list[tuple[int, int]] = []

    def one(number: int) -> None:
        if number < 3:
            meeting.wait(10)  # three threads are at work at once
        done.append((number, threading.get_ident()))

    pool.each(one, range(20))
    pool.close()
    assert sorted(number for number, _ in done) == list(range(20))
    assert here in {thread for _, thread in done}
    assert len({thread for _, thread in done}) <= 3


@pytest.mark.parametrize("pool", [ALONE, ThreadPool(2)])
def test_the_first_error_is_raised(pool: ThreadPool) -> None:
    def one(number: int) -> None:
        if number in (2, 5):
            raise ValueError(number)

    with pytest.raises(ValueError, match="2"):
        pool.each(one, range(8))
    pool.close()
