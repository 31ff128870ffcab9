"""A large copy is made by a thread, in blocks, and can be stopped between them."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from engine.tensor import Array
from engine.transport.bulk_copy import BLOCK, BulkCopy, Copier, bytes_of
from tests.support import WAIT


def pair(size: int, value: int = 7) -> tuple[Array, Array]:
    return np.zeros(size, np.uint8), np.full(size, value, np.uint8)


def nothing() -> None:
    pass


def made(copier: Copier, *pairs: tuple[Array, Array]) -> BulkCopy:
    over = threading.Event()
    copy = BulkCopy(pairs, over.set)
    copier.add(copy)
    assert over.wait(WAIT)
    return copy


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK])
def test_all_bytes_are_copied(size: int) -> None:
    pairs = [pair(size), pair(5, 3), pair(0), pair(size, 9)]
    copy = made(Copier(), *pairs)
    assert copy.is_over
    assert copy.failure is None
    assert all((target == source).all() for target, source in pairs)


def test_a_copy_of_nothing_is_over_too() -> None:
    assert made(Copier()).failure is None


def test_two_copies_have_their_blocks_in_turn() -> None:
    order: list[str] = []
    copier, both = Copier(), threading.Barrier(2)

    def tell(name: str) -> Callable[[], None]:
        def told() -> None:
            order.append(name)
            if name == "gate" or len(order) == 3:
                both.wait(WAIT)

        return told

    copier.add(BulkCopy([pair(1)], tell("gate")))
    copier.add(BulkCopy([pair(8 * BLOCK)], tell("large")))
    copier.add(BulkCopy([pair(2 * BLOCK)], tell("small")))
    both.wait(WAIT)
    both.wait(WAIT)
    assert order == ["gate", "small", "large"]


def test_what_was_stopped_is_not_touched_any_more() -> None:
    target, source = pair(3 * BLOCK)
    told: list[bool] = []
    copy = BulkCopy([(target, source)], lambda: told.append(True))
    assert copy.step()
    copy.stop()
    target[:] = 0
    assert not copy.step()
    assert copy.is_over
    assert not told
    assert not target.any()


def test_what_was_stopped_holds_no_memory() -> None:
    memory = memoryview(bytearray(3 * BLOCK))
    copy = BulkCopy([(bytes_of(memory), np.ones(3 * BLOCK, np.uint8))], nothing)
    assert copy.step()
    copy.stop()
    memory.release()  # raises where something refers to it


def test_a_copy_that_cannot_be_made_says_why_and_holds_up_no_other() -> None:
    copier = Copier()
    target, source = pair(BLOCK)
    target.flags.writeable = False
    assert isinstance(made(copier, (target, source)).failure, ValueError)
    assert made(copier, pair(1)).failure is None
