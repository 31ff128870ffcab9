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
    """One step: a model, and the tensors of the ensemble that it takes and returns.

    An input that `inputs` does not name takes the tensor with its own name. Without
    `outputs` all outputs are tensors with their own names; with it the others are
    dropped.
    """

    model: Annotated[str, text(200)] = key("", "the model that this step runs")
    version: Annotated[int, between(1, 1 << 62)] = key(
        0,
        "the version of the model; default: the version that serves requests "
        "without one",
    )
    inputs: Mapping[str, _Name] = key(
        dict, "the tensor of the ensemble for each input of the model"
    )
    outputs: Mapping[str, _Name] = key(
        dict, "the tensor of the ensemble for each output of the model"
    )

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError(
                "the key model is missing: name the model that this step runs"
            )


@section
@dataclass(frozen=True, slots=True)
class EnsembleConfig:
    """The steps of the ensemble, its inputs and its outputs.

    By default its inputs are the tensors that no step produces, and its outputs those
    that no step takes. If `inputs` is set, they must match, so a misspelt tensor of a
    step does not become an input.
    """

    step: Annotated[tuple[StepConfig, ...], entries(MAX_STEPS)] = key(
        (), "the steps, in any order"
    )
    inputs: _Names = key((), "the tensors that requests bring")
    outputs: _Names = key((), "the tensors that responses return")

    def __post_init__(self) -> None:
        if not self.step:
            raise ValueError(
                "the ensemble has no step; write at least one [[ensemble.step]]"
            )
