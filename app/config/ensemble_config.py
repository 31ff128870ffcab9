"""``[ensemble]`` of a ``config.toml``: a model that is a graph of other models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, TypeAlias

from app.config.config_keys import DISTINCT, between, entries, key, section, text

MAX_STEPS = 100


_Name: TypeAlias = Annotated[str, text(least=1)]
_Names: TypeAlias = Annotated[tuple[_Name, ...], DISTINCT]


@section
@dataclass(frozen=True, slots=True)
class StepConfig:
    """One step: a model, and which tensors of the ensemble its own ones are.

    An input that `inputs` does not name is the tensor of its own name. Without
    `outputs` all outputs are tensors of their own names; with it the others are
    dropped.
    """

    model: Annotated[str, text(200)] = key("", "the model that runs")
    version: Annotated[int, between(1, 1 << 62)] = key(
        0, "its version; without it, the one for such requests"
    )
    inputs: Mapping[str, _Name] = key(
        dict, "tensor of the ensemble for each input of the model"
    )
    outputs: Mapping[str, _Name] = key(
        dict, "tensor of the ensemble for each output of the model"
    )

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model is missing: which one does this step run?")


@section
@dataclass(frozen=True, slots=True)
class EnsembleConfig:
    """The steps, and what the ensemble takes and gives.

    By default it takes what steps need and no step gives, and gives what no step takes.
    Where `inputs` are named, they must be those: a tensor that is misspelt in a step
    does not become an input then.
    """

    step: Annotated[tuple[StepConfig, ...], entries(MAX_STEPS)] = key(
        (), "the steps, in any order"
    )
    inputs: _Names = key((), "the tensors that a request has")
    outputs: _Names = key((), "the tensors that an answer has")

    def __post_init__(self) -> None:
        if not self.step:
            raise ValueError("there is no step; write at least one [[ensemble.step]]")
