"""`Questions`: questions to a worker that wait for their answers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from popgate_workers.messages import (
    Answer,
    JournalTold,
    ParentsTold,
    Question,
    document_in,
)


class Questions:
    """The open questions to one process of a worker. `tell` sends it a message."""

    def __init__(self, tell: Callable[[Question], object]) -> None:
        self._tell = tell
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[Any]] = {}
        self._is_over = False

    async def ask(self, question: Callable[[int], Question], seconds: float) -> Any:
        """Ask the worker and return its answer; None if it does not answer in time.

        `question` makes the message from its number.
        """
        if self._is_over:
            return None
        number = next(self._numbers)
        asked = self._open[number] = asyncio.get_running_loop().create_future()
        self._tell(question(number))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await asked
        self._open.pop(number, None)
        return None

    def answered(self, answer: Answer, fds: Sequence[int]) -> None:
        """Take an answer. A document that lost its descriptor counts as no answer."""
        asked = self._open.pop(answer.ask, None)
        if asked is None or asked.done():
            return
        match answer:
            case JournalTold() | ParentsTold():
                asked.set_result(_document(answer.size, fds))
            case _:
                asked.set_result(True)

    def process_ended(self) -> None:
        """Answer all open questions with None, because the process has ended."""
        self._is_over = True
        for asked in self._open.values():
            if not asked.done():
                asked.set_result(None)
        self._open.clear()

    def __repr__(self) -> str:
        return f"<Questions, {len(self._open)} open>"


def _document(size: int, fds: Sequence[int]) -> Any:
    try:
        fd = os.dup(fds[0])
    except (IndexError, OSError):
        return None
    return msgpack.unpackb(document_in(fd, size), use_list=False)
