"""``[sequence]`` of a model's ``config.toml``: how it keeps state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from app.config.config_keys import between, entries, key, section, text
from app.config.state_config import StateConfig


@section
@dataclass(frozen=True, slots=True)
class SequenceConfig:
    """Options of a model's sequences. Control inputs are given by name; empty: none."""

    start: Annotated[str, text()] = key(
        "", "input that is 1 in the first request of a sequence"
    )
    end: Annotated[str, text()] = key(
        "", "input that is 1 in the last request of a sequence"
    )
    ready: Annotated[str, text()] = key(
        "", "input that is 1 in every request of a sequence"
    )
    correlation_id: Annotated[str, text()] = key(
        "", "input that receives the sequence's identifier"
    )
    state: Annotated[tuple[StateConfig, ...], entries(100)] = key(
        (), "outputs that become inputs of the next request"
    )
    max_idle: Annotated[float, between(0.001, 604800)] = key(
        1.0, "time without a request after which a sequence ends"
    )
    max_sequences: Annotated[int, between(1, 1 << 20)] = key(
        1024, "most sequences at the same time"
    )
    max_active: Annotated[int, between(1, 1 << 20)] = key(
        0, "sequences that one instance runs; further ones wait until one of them ends"
    )
    max_waiting: Annotated[int, between(0, 65536)] = key(
        64, "most queued requests of one sequence"
    )

    def __post_init__(self) -> None:
        names = [*self.controls.values(), *(state.input for state in self.state)]
        if len(set(names)) != len(names):
            raise ValueError(f"these inputs have two roles: {', '.join(sorted(names))}")
        outputs = [state.output for state in self.state]
        if len(set(outputs)) != len(outputs):
            raise ValueError(
                f"these outputs have two roles: {', '.join(sorted(outputs))}"
            )

    @property
    def controls(self) -> dict[str, str]:
        """Return the named control inputs, by their purpose."""
        roles = ("start", "end", "ready", "correlation_id")
        return {role: getattr(self, role) for role in roles if getattr(self, role)}
