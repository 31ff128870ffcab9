"""``[responses]`` of a model's ``config.toml``: several responses to one request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

from app.config.config_keys import between, checked, entries, key, section, text
from app.config.state_config import StateConfig

Parameter: TypeAlias = bool | int | float | str


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
