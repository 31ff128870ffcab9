"""``[sequence]`` and ``[responses]`` of a model's ``config.toml``: a model with state.

State is the output of one run that is an input of the next: of the next request of a
sequence, or of the next step of a request with several responses.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from app.config.config_keys import (
    ShapeKey,
    between,
    checked,
    entries,
    key,
    section,
    text,
)

Parameter: TypeAlias = bool | int | float | str


@section
@dataclass(frozen=True, slots=True)
class StateConfig:
    """``[[….state]]``: the output of a run that is an input of the next."""

    input: Annotated[str, text()] = key("", "the input that receives the state")
    output: Annotated[str, text()] = key("", "the output that becomes the next state")
    initial: Annotated[str, text(255)] = key(
        "", "a .npy file beside the model with the initial state; if absent, zeros"
    )
    shape: ShapeKey | None = key(
        None, "the shape of the zeros, if the input has free dimensions"
    )
    data_file: Annotated[str, text(255)] = key(
        "", "a file in the model's folder `initial_state` with the bytes of `shape`"
    )

    def __post_init__(self) -> None:
        if not self.input or not self.output:
            raise ValueError("name both input and output")
        if self.initial and Path(self.initial).name != self.initial:
            raise ValueError(f"initial must be the name of a file, got {self.initial}")
        if self.initial and self.shape is not None:
            raise ValueError("the file of initial has its own shape; remove shape")
        if self.data_file and Path(self.data_file).name != self.data_file:
            msg = f"data_file must be the name of a file, got {self.data_file}"
            raise ValueError(msg)
        if self.data_file and (self.initial or self.shape is None):
            raise ValueError("data_file requires shape and excludes initial")


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
    max_state_bytes: Annotated[int, between(0, 1 << 50)] = key(
        1 << 30, "most bytes by which the states of all sequences may grow together"
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


def _parameters(value: Any) -> Mapping[str, Parameter]:
    if not isinstance(value, dict) or not all(
        isinstance(item, bool | int | float | str) for item in value.values()
    ):
        raise ValueError("a table of input name to a number, a boolean or a string")
    return value


def _delay(value: Any) -> float | str:
    if isinstance(value, str) and len(value) <= 1000:
        return value
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if number and 0 <= value <= 3600:
        return float(value)
    raise ValueError("the name of an output, or seconds up to 3600")


@section
@dataclass(frozen=True, slots=True)
class StepsConfig:
    """Options of a model that runs in steps.

    Names refer to inputs and outputs; empty: none.
    """

    more: Annotated[str, text()] = key("", "BOOL output: true if another step follows")
    emit: Annotated[str, text()] = key(
        "", "BOOL output: true if the step produces a response"
    )
    error: Annotated[str, text()] = key(
        "", "BYTES output: an error message that ends the request, unless empty"
    )
    delay: Annotated[float | str, checked(_delay)] = key(
        0.0, "seconds to delay the response of a step, or the output that states them"
    )
    step: Annotated[str, text()] = key(
        "", "input that receives the number of the step, from 0"
    )
    state: Annotated[tuple[StateConfig, ...], entries(100)] = key(
        (), "outputs that become inputs of the next step"
    )
    parameters: Annotated[Mapping[str, Parameter], checked(_parameters)] = key(
        dict, "inputs that request parameters set, with their defaults"
    )
    max_steps: Annotated[int, between(1, 1 << 20)] = key(
        4096, "most steps of one request"
    )
    max_state_bytes: Annotated[int, between(0, 1 << 50)] = key(
        1 << 30, "most bytes by which the states of all requests may grow together"
    )

    def __post_init__(self) -> None:
        for kind, names in (("input", self.inputs), ("output", self.outputs)):
            if len(set(names)) != len(names):
                raise ValueError(f"these {kind}s have two roles: {', '.join(names)}")

    @property
    def inputs(self) -> list[str]:
        """Return the inputs that requests do not see."""
        states = [state.input for state in self.state]
        return [name for name in (self.step, *states, *self.parameters) if name]

    @property
    def outputs(self) -> list[str]:
        """Return the outputs that responses do not show."""
        delay = self.delay if isinstance(self.delay, str) else ""
        states = [state.output for state in self.state]
        names = (self.more, self.emit, self.error, delay, *states)
        return [name for name in names if name]
