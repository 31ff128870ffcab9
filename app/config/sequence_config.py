"""``[sequence]`` of a model's ``config.toml``: that it keeps state, and how."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from app.config.config_keys import between, entries, key, section, text
from app.config.state_config import StateConfig


@section
@dataclass(frozen=True, slots=True)
class SequenceConfig:
    """Options of a model's sequences. Control inputs are named; empty: none."""

    start: Annotated[str, text()] = key(
        "", "input that is 1 in the first request of a sequence"
    )
    end: Annotated[str, text()] = key("", "input that is 1 in the last one")
    ready: Annotated[str, text()] = key("", "input that is 1 in every request")
    correlation_id: Annotated[str, text()] = key(
        "", "input that gets the sequence's identifier"
    )
    state: Annotated[tuple[StateConfig, ...], entries(100)] = key(
        (), "outputs that are inputs of the next request"
    )
    max_idle: Annotated[float, between(0.001, 604800)] = key(
        1.0, "a sequence without a request for so long is ended"
    )
    max_sequences: Annotated[int, between(1, 1 << 20)] = key(
        1024, "sequences at the same time"
    )
    max_active: Annotated[int, between(1, 1 << 20)] = key(
        0, "sequences of an instance that may run; others wait until one of them ends"
    )
    max_waiting: Annotated[int, between(0, 65536)] = key(
        64, "requests of one sequence that may wait for their turn"
    )

    def __post_init__(self) -> None:
        names = [*self.controls.values(), *(state.input for state in self.state)]
        if len(set(names)) != len(names):
            raise ValueError(f"an input is named twice: {', '.join(sorted(names))}")
        outputs = [state.output for state in self.state]
        if len(set(outputs)) != len(outputs):
            raise ValueError(f"an output is named twice: {', '.join(sorted(outputs))}")

    @property
    def controls(self) -> dict[str, str]:
        """Return the control inputs that are named, by what they are for."""
        roles = ("start", "end", "ready", "correlation_id")
        return {role: getattr(self, role) for role in roles if getattr(self, role)}
