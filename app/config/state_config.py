"""``[[….state]]`` of a model's ``config.toml``: state that one run passes to the
next.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeAlias

from app.config.config_keys import between, entries, key, section, text
from app.limits import DEFAULT_LIMITS

ShapeKey: TypeAlias = Annotated[
    tuple[Annotated[int, between(0, DEFAULT_LIMITS.max_elements)], ...],
    entries(DEFAULT_LIMITS.max_rank),
]


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
