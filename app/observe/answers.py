"""`Answers`: counts of answers by route, status, error code and key.

Every process counts only the answers that it writes to clients. These include the
supervisor's answers that a worker passes on. So each answer is counted once.

A combination of labels has a cell, a word of 64 bits that one process writes. In a
worker the cells lie in shared memory, which the supervisor reads. For the event loop's
thread.

The map of the bytes
--------------------
    0        the number of cells in use
    8        the cells, a word each                                 (MOST_CELLS words)
    …        the labels of each cell: UTF-8, joined by zero bytes   (RECORD bytes each)
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Final, Protocol, TypeAlias

#: The most combinations of labels with a cell of their own. Beyond them only route and
#: status are counted, in the last `_SPARE` cells.
MOST_CELLS: Final = 4096
_SPARE: Final = 512
#: Bytes of one combination. The longest key name takes 100.
RECORD: Final = 192
_RECORDS_AT: Final = 8 * (1 + MOST_CELLS)
ANSWERS_SIZE: Final = _RECORDS_AT + RECORD * MOST_CELLS
#: The label of every key that is missing in the key file, and of all labels beyond the
#: limits.
OTHER: Final = "other"
#: The status of a request whose client disconnected before anything was written.
GONE: Final = 499

#: Route, status, error code, key.
Labels: TypeAlias = tuple[str, str, str, str]


class _Config(Protocol):
    @property
    def name(self) -> str: ...


class NamedKey(Hashable, Protocol):
    """A key of a request (`app.serving.keys.Key`)."""

    @property
    def config(self) -> _Config: ...


#: Keys whose cell is remembered. A key file has up to 1000 keys and may be reloaded.
_MOST_KEYS: Final = 4000


class Answers:
    """The answers of this process. The caller adds to `cells` by number.

    `keyless` is the key label of a request without a key: `OTHER` if the server has a
    key file, else empty.
    """

    __slots__ = ("_index", "_records", "_used", "cells", "keyless", "succeeded")

    def __init__(self, memory: memoryview | None = None, keyless: str = "") -> None:
        """Count in `memory`, which has `ANSWERS_SIZE` bytes, or in its own memory."""
        if memory is None:
            memory = memoryview(bytearray(ANSWERS_SIZE))
        words = memory[:_RECORDS_AT].cast("Q")
        self._used = words[:1]
        self.cells: memoryview[int] = words[1:]
        self._records = memory[_RECORDS_AT:ANSWERS_SIZE]
        self._index: dict[Labels, int] = {}
        #: The cell of successful inference by key, to which `of_success` adds keys.
        self.succeeded: dict[NamedKey | None, int] = {}
        self.keyless = keyless

    def count(self, route: str, status: int, code: str, key: str) -> None:
        """Count one answer. The caller writes it next."""
        self.cells[self._cell((route, str(status), code, key))] += 1

    def of_success(self, key: NamedKey | None) -> int:
        """Return the cell of inference that succeeded with `key`."""
        if len(self.succeeded) >= _MOST_KEYS:
            self.succeeded.clear()
        found = self._cell(("infer", "200", "", self.name_of(key)))
        self.succeeded[key] = found
        return found

    def name_of(self, key: NamedKey | None) -> str:
        """Return the label of a key."""
        return self.keyless if key is None else key.config.name

    def _cell(self, labels: Labels) -> int:
        found = self._index.get(labels)
        if found is not None:
            return found
        record = "\0".join(labels).encode()
        used = len(self._index)
        if len(record) > RECORD or used >= MOST_CELLS - _SPARE:
            route, status, _, _ = labels
            labels = route, status, OTHER, OTHER
            if used >= MOST_CELLS - 1:
                labels = OTHER, OTHER, OTHER, OTHER
            if labels in self._index:
                return self._index[labels]
            record = "\0".join(labels).encode()
        at = RECORD * used
        self._records[at : at + len(record)] = record
        self._index[labels] = used
        # This is written last, because a reader in another process finds the cell by
        # it.
        self._used[0] = used + 1
        return used

    def items(self) -> Iterator[tuple[Labels, int]]:
        """Yield all counts; also for a process that only reads."""
        for cell in range(self._used[0]):
            record = bytes(self._records[RECORD * cell : RECORD * (cell + 1)])
            route, status, code, key = record.decode().split("\0", 4)[:4]
            yield (route, status, code, key), self.cells[cell]

    def add(self, counted: Mapping[Labels, int]) -> None:
        """Add the counts of another process, which has ended."""
        for labels, count in counted.items():
            self.cells[self._cell(labels)] += count

    def close(self) -> None:
        """Release the memory."""
        self._used.release()
        self.cells.release()
        self._records.release()

    def __repr__(self) -> str:
        return f"<Answers {sum(count for _, count in self.items())}>"
