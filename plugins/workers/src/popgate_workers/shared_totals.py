"""Numbers of all processes of a server together, in shared memory.

A process checks a limit for all processes against these numbers before it admits more.

The memory has a word of 64 bits for the connections of each process. Words for the
bytes that each process holds follow. A word has one writer and is written whole. A
process writes its word first and adds up then. If two do so at the same time, both may
find that the limit is exceeded. They never both miss it.
"""

from __future__ import annotations

from typing import Final

from engine import SharedMemory

_WORD: Final = 8


class SharedTotal:
    """An `app.limits.Total`; this process writes the word `mine`."""

    def __init__(self, words: memoryview[int], mine: int) -> None:
        self._words = words
        self._mine = mine

    def publish(self, part: int) -> int:
        self._words[self._mine] = part
        return sum(self._words)

    def __repr__(self) -> str:
        return f"<SharedTotal {self._words.tolist()}, of which mine is {self._mine}>"


class SharedTotals:
    """Totals of several `processes`: connections, and bytes of bodies and answers in
    transit.
    """

    def __init__(self, memory: SharedMemory, processes: int) -> None:
        self.memory = memory
        words = memory.view[: 2 * processes * _WORD].cast("q")
        self._connections, self._bytes = words[:processes], words[processes:]

    @classmethod
    def create(cls, processes: int) -> SharedTotals:
        return cls(SharedMemory.create("totals", 2 * processes * _WORD), processes)

    @classmethod
    def attach(cls, fd: int, processes: int) -> SharedTotals:
        return cls(SharedMemory.attach(fd, 2 * processes * _WORD), processes)

    def connections(self, process: int) -> SharedTotal:
        return SharedTotal(self._connections, process)

    def bytes_held(self, process: int) -> SharedTotal:
        return SharedTotal(self._bytes, process)

    def forget(self, process: int) -> None:
        """Remove the part of a dead process."""
        self._connections[process] = self._bytes[process] = 0

    def __repr__(self) -> str:
        return f"<SharedTotals {self._connections.tolist()}, {self._bytes.tolist()}>"
