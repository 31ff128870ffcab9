"""Common part of all writers. A writer is open, and then permanently closed or
discarded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import Enum
from typing import Self

from popef_io.errors import WriterStateError


class WriterState(Enum):
    """The state: OPEN, then permanently one of the others."""

    OPEN = "open"
    CLOSED = "closed"
    DISCARDED = "discarded"
    FAILED = "failed"
    """A write to a blob failed half-way, so the file can only be discarded."""


class Draft(ABC):
    """A file that is being written. For one thread.

    Leaving its `with` block closes it. An exception inside the block discards it.
    """

    def __init__(self) -> None:
        self.state = WriterState.OPEN

    @abstractmethod
    def close(self) -> None:
        """Keep the written content. Do nothing if the writer is already closed."""

    @abstractmethod
    def discard(self) -> None:
        """Discard the written content. Do nothing if the writer is not open."""

    def check_open(self) -> None:
        """Raise WriterStateError if nothing can be written any more."""
        if self.state is not WriterState.OPEN:
            raise WriterStateError(f"cannot write: {self} is {self.state.value}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind:
            self.discard()
        elif self.state is not WriterState.DISCARDED:
            self.close()
