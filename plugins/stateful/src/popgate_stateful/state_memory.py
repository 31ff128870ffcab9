"""`StateMemory`: the states that a model's runs leave for the next ones, and how much
memory they take.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from engine import QueueFull, Tensor
from popgate_stateful.state_tensors import States

S = TypeVar("S")


class KeptState(NamedTuple):
    """A state: the model's inputs by name.

    `grown` are the bytes beyond the size that all states begin with.
    """

    tensors: Mapping[str, Tensor]
    grown: int = 0


NOTHING: Final = KeptState({})


class StateMemory(Generic[S]):
    """The states of all sequences, or of all requests in steps, `S` of a model.

    A state of the size that all begin with always has room. Larger ones share `most`
    bytes for what they have grown. For the event loop's thread.
    """

    def __init__(self, states: States, most: int, section: str, pause: float) -> None:
        """`section` of the model's options has the limit. A refused client may ask
        again after `pause` seconds.
        """
        self._states = states
        self._kept: dict[S, KeptState] = {}
        self._first = sum(tensor.nbytes for tensor in states.initial.values())
        self._most, self._section, self._pause = most, section, pause
        self._grown = 0

    def of(self, owner: S) -> KeptState:
        return self._kept.get(owner, NOTHING)

    def begin(self, owner: S) -> None:
        """Give an owner the state that all begin with."""
        self.keep(owner, KeptState(self._states.initial))

    def go_on(self, owner: S, outputs: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Give an owner the state that a run has put out, and return it.

        Raises `QueueFull`.
        """
        tensors = self._states.after(outputs)
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        grown, before = max(0, nbytes - self._first), self.of(owner).grown
        total = self._grown + grown - before
        if grown > before and total > self._most:
            raise QueueFull(
                f"the states of the model would grow to {total} bytes more than they "
                f"begin with, expected at most {self._most} (max_state_bytes in the "
                f"section [{self._section}])",
                self._pause,
            )
        self.keep(owner, KeptState(tensors, grown))
        return tensors

    def keep(self, owner: S, state: KeptState) -> None:
        """Give an owner a state that has room."""
        self._grown += state.grown - self.of(owner).grown
        if state.tensors:
            self._kept[owner] = state
        else:
            self._kept.pop(owner, None)

    def forget(self, owner: S) -> None:
        self.keep(owner, NOTHING)

    def __repr__(self) -> str:
        return f"<StateMemory of {len(self._kept)} states, grown {self._grown} bytes>"
