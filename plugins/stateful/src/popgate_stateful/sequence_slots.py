"""`SequenceSlots`: how many sequences of a model may run at once, and which is next."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar


class Owned(Protocol):
    """A sequence. `owner` is its key (`InferRequest.owner`)."""

    @property
    def owner(self) -> str | None: ...


S = TypeVar("S", bound=Owned)


class SequenceSlots(Generic[S]):
    """The slots of a model for running sequences. For the event loop's thread.

    `free` is their number; None means any number. `run_next` runs a sequence that has
    waited for a slot.
    """

    def __init__(self, free: int | None, run_next: Callable[[S], None]) -> None:
        self._free = free
        self._run_next = run_next
        self._holders: set[S] = set()
        self._waiting: deque[S] = deque()
        #: The number of running sequences of each key.
        self._active: Counter[str | None] = Counter()
        self._is_admitting = False

    def acquire(self, sequence: S) -> bool:
        """Return whether a sequence may run; otherwise it waits until a running one
        ends.
        """
        if sequence in self._holders:
            return True
        if self._free is None or self._free > 0:
            self._give(sequence)
            return True
        self._waiting.append(sequence)
        return False

    def withdraw(self, sequence: S) -> bool:
        """Forget a sequence that waits for a slot; return whether it did."""
        try:
            self._waiting.remove(sequence)
        except ValueError:
            return False
        return True

    def _give(self, sequence: S) -> None:
        if self._free is not None:
            self._free -= 1
            self._active[sequence.owner] += 1
        self._holders.add(sequence)

    def release(self, sequence: S) -> None:
        """Give the slot of an ended sequence, if it has one, to another sequence.

        The slot goes to the key with the fewest, and among its sequences to the one
        that waits longest.
        """
        if sequence not in self._holders:
            return
        self._holders.remove(sequence)
        if self._free is None:
            return
        self._free += 1
        count_down(self._active, sequence.owner)
        if self._is_admitting:
            return  # the admitted one has already ended; the loop continues
        self._is_admitting = True
        try:
            while self._free and self._waiting:
                following = min(self._waiting, key=lambda one: self._active[one.owner])
                self._waiting.remove(following)
                self._give(following)
                self._run_next(following)
        finally:
            self._is_admitting = False

    def __repr__(self) -> str:
        free = "any" if self._free is None else self._free
        return f"<SequenceSlots {free} free, {len(self._waiting)} waiting>"


def count_down(counts: Counter[str | None], owner: str | None) -> None:
    """Count one less, and drop zeros: keys without sequences take no memory."""
    counts[owner] -= 1
    if not counts[owner]:
        del counts[owner]
