"""`StateMemory`: the states of a model's sequences, and how much memory they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from app.config.stateful_config import SequenceConfig
from engine import QueueFull, Tensor
from popgate_stateful.state_tensors import States

S = TypeVar("S")


class SequenceState(NamedTuple):
    """The state of one sequence: the model's inputs by name.

    `grown` are the bytes beyond the size that all sequences begin with.
    """

    tensors: Mapping[str, Tensor]
    grown: int = 0


NOTHING: Final = SequenceState({})


class StateMemory(Generic[S]):
    """The states of all sequences `S` of a model. For the event loop's thread.

    A state of the size that all sequences begin with always has room. Larger ones share
    `max_state_bytes` for what they have grown.
    """

    def __init__(self, states: States, config: SequenceConfig) -> None:
        self._states = states
        self._kept: dict[S, SequenceState] = {}
        self._first = sum(tensor.nbytes for tensor in states.initial.values())
        self._config = config
        self._grown = 0

    def of(self, sequence: S) -> SequenceState:
        return self._kept.get(sequence, NOTHING)

    def begin(self, sequence: S) -> None:
        """Give a sequence the state that all sequences begin with."""
        self.keep(sequence, SequenceState(self._states.initial))

    def go_on(self, sequence: S, outputs: Mapping[str, Tensor]) -> None:
        """Give a sequence the state that a run has put out. Raises `QueueFull`."""
        tensors = self._states.after(outputs)
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        grown, before = max(0, nbytes - self._first), self.of(sequence).grown
        total, most = self._grown + grown - before, self._config.max_state_bytes
        if grown > before and total > most:
            raise QueueFull(
                f"the states of the model's sequences would grow to {total} bytes more "
                f"than they begin with, expected at most {most} (max_state_bytes in "
                "the section [sequence])",
                self._config.max_idle,
            )
        self.keep(sequence, SequenceState(tensors, grown))

    def keep(self, sequence: S, state: SequenceState) -> None:
        """Give a sequence a state that has room."""
        self._grown += state.grown - self.of(sequence).grown
        if state.tensors:
            self._kept[sequence] = state
        else:
            self._kept.pop(sequence, None)

    def forget(self, sequence: S) -> None:
        self.keep(sequence, NOTHING)

    def __repr__(self) -> str:
        return (
            f"<StateMemory of {len(self._kept)} sequences, grown {self._grown} bytes>"
        )
