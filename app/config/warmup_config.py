"""``[warmup]`` of a model's ``config.toml``: runs before it accepts requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

from pydantic import Strict

from app.config.config_keys import (
    DISTINCT,
    ShapeKey,
    between,
    entries,
    key,
    section,
    text,
)

Fill: TypeAlias = Literal["ones", "zeros", "random"]


@section
@dataclass(frozen=True, slots=True)
class WarmupInput:
    """Value of one input in a warm-up. Shapes are without the batch dimension."""

    shape: ShapeKey = key(
        (), "the size of free dimensions of the input, without the batch dimension"
    )
    data: Fill = key("ones", "the kind of values in the input")
    file: Annotated[str, text(255)] = key(
        "", "a file in the model's folder `warmup`, .npy or raw bytes"
    )

    def __post_init__(self) -> None:
        if self.file and Path(self.file).name != self.file:
            raise ValueError(f"file must be the name of a file, got {self.file!r}")


@section
@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One synthetic request; inputs that it does not name are filled with ones."""

    name: Annotated[str, text(200)] = key(
        "", "the name of the sample, for error messages"
    )
    batch_size: Annotated[int, between(0, 65536)] = key(
        0, "rows, if the model is batched"
    )
    count: Annotated[int, between(1, 1000)] = key(1, "number of runs")
    inputs: Annotated[Mapping[str, WarmupInput], entries(1000)] = key(
        dict, "values of individual inputs"
    )


@section
@dataclass(frozen=True, slots=True)
class WarmupConfig:
    """Runs of every replica before the model is ready.

    Without `samples` one synthetic request of each batch size runs, also if the section
    is missing. A failed run of synthetic values is only logged, because such values
    need not suit the model.
    """

    enabled: Annotated[bool, Strict()] = key(True, "whether to warm up")
    batch_sizes: Annotated[
        tuple[Annotated[int, between(1, 65536)], ...], entries(1000, 1), DISTINCT
    ] = key((), "batch sizes to run; default: 1, the preferred sizes and the largest")
    data: Fill = key("ones", "default values of inputs")
    count: Annotated[int, between(1, 1000)] = key(
        1, "number of runs of each batch size"
    )
    samples: Annotated[tuple[WarmupSample, ...], entries(100)] = key(
        (), "requests to run instead of generated ones"
    )
