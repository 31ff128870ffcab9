"""``[warmup]`` of a model's ``config.toml``: what runs before it takes requests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.config.config_keys import (
    boolean,
    integer,
    integers,
    key,
    named_sections,
    one_of,
    sections,
    text,
)
from app.limits import DEFAULT_LIMITS

WORDS = ("ones", "zeros", "random")


def _shape(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > DEFAULT_LIMITS.max_rank:
        raise ValueError("a list of dimensions")
    check = integer(0, DEFAULT_LIMITS.max_elements)
    return tuple(check(dim) for dim in value)


@dataclass(frozen=True, slots=True)
class WarmupInput:
    """What one input gets. Shapes are without the batch dimension."""

    shape: tuple[int, ...] = key(
        (), _shape, "where the input leaves dimensions free; without the batch"
    )
    data: str = key("ones", one_of(*WORDS), "what it is filled with")
    file: str = key(
        "", text(255), "a file in the model's folder `warmup`, .npy or raw bytes"
    )

    def __post_init__(self) -> None:
        if self.file and Path(self.file).name != self.file:
            raise ValueError(f"file must be the name of a file, got {self.file!r}")


@dataclass(frozen=True, slots=True)
class WarmupSample:
    """One request that is made up; inputs that are not named get ones."""

    name: str = key("", text(200), "for the message when it fails")
    batch_size: int = key(0, integer(0, 65536), "rows, where the model is batched")
    count: int = key(1, integer(1, 1000), "how often it is run")
    inputs: Mapping[str, WarmupInput] = key(
        dict, named_sections(WarmupInput, 1000), "what single inputs get"
    )


@dataclass(frozen=True, slots=True)
class WarmupConfig:
    """What every replica runs before the model is ready.

    Without `samples` one request of each batch size is made up. Where the section is
    missing the same is done, but its failure is only noted, because values that are
    made up need not suit the model.
    """

    enabled: bool = key(True, boolean, "whether anything is run")
    batch_sizes: tuple[int, ...] = key(
        (), integers(1, 65536), "instead of 1, the preferred ones and the largest"
    )
    data: str = key("ones", one_of(*WORDS), "what inputs are filled with")
    count: int = key(1, integer(1, 1000), "how often each is run")
    samples: tuple[WarmupSample, ...] = key(
        (), sections(WarmupSample), "requests to run instead"
    )
