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

    `nbytes` are its bytes. They are 0 for the state that all sequences begin with.
    """

    tensors: Mapping[str, Tensor]
    nbytes: int = 0


NOTHING: Final = SequenceState({})


class StateMemory(Generic[S]):
    """The states of all sequences `S` of a model. For the event loop's thread.

    States that are as large as the one they begin with always have room. Those that
    grow share the rest of `max_state_bytes`.
    """

    def __init__(self, states: States, config: SequenceConfig) -> None:
        self._states = states
        self._kept: dict[S, SequenceState] = {}
        first = sum(tensor.nbytes for tensor in states.initial.values())
        self._most = max(config.max_state_bytes, first * config.max_sequences)
        self._max_idle = config.max_idle
        self._total = 0

    def of(self, sequence: S) -> SequenceState:
        return self._kept.get(sequence, NOTHING)

    def begin(self, sequence: S) -> None:
        """Give a sequence the state that all sequences begin with."""
        self.keep(sequence, SequenceState(self._states.initial))

    def go_on(self, sequence: S, outputs: Mapping[str, Tensor]) -> None:
        """Give a sequence the state that a run has put out. Raises `QueueFull`."""
        tensors = self._states.after(outputs)
        nbytes = sum(tensor.nbytes for tensor in tensors.values())
        before = self.of(sequence).nbytes
        total = self._total + nbytes - before
        if nbytes > before and total > self._most:
            raise QueueFull(
                f"the states of the model's sequences would take {total} bytes, "
                f"expected at most {self._most} (max_state_bytes in the section "
                "[sequence])",
                self._max_idle,
            )
        self.keep(sequence, SequenceState(tensors, nbytes))

    def keep(self, sequence: S, state: SequenceState) -> None:
        """Give a sequence a state that has room."""
        self._total += state.nbytes - self.of(sequence).nbytes
        if state.tensors:
            self._kept[sequence] = state
        else:
            self._kept.pop(sequence, None)

    def forget(self, sequence: S) -> None:
        self.keep(sequence, NOTHING)

    def __repr__(self) -> str:
        return f"<StateMemory {self._total} of {self._most} bytes>"
