"""Commands for the thread that runs programs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator

import pytest

from engine.worker.command_queue import CommandQueue


@pytest.fixture
def wake_fd() -> Iterator[int]:
    fd = os.eventfd(0, os.EFD_NONBLOCK)
    yield fd
    os.close(fd)


def test_a_command_wakes_the_thread_and_waits_for_it(wake_fd: int) -> None:
    commands, done = CommandQueue(wake_fd), list[int]()
    commands.do(lambda: done.append(1))
    assert os.eventfd_read(wake_fd) == 1
    assert done == []
    command, beside = commands.waiting.get_nowait()
    assert not beside
    command()
    assert done == [1]
    assert commands.waiting.empty()


def test_the_caller_gets_the_error_of_its_command(wake_fd: int) -> None:
    commands = CommandQueue(wake_fd)
    worker = threading.Thread(target=lambda: commands.waiting.get()[0]())
    worker.start()

    def fail() -> None:
        raise ValueError("no such model")

    with pytest.raises(ValueError, match="no such model"):
        commands.call(fail)
    worker.join()
