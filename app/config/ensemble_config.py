"""``[ensemble]`` of a ``config.toml``: a model that is a graph of other models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from app.config.config_keys import integer, key, sections, table, text

MAX_STEPS = 100


def _tensor_map(value: Any) -> Mapping[str, str]:
    """A table of texts."""
    found = table(value)
    if not all(isinstance(name, str) and name for name in found.values()):
        raise ValueError("a table of tensor names, as in { INPUT = 'image' }")
    return found


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(n, str) and n for n in value):
        raise ValueError("a list of tensor names")
    if len(set(value)) != len(value):
        raise ValueError("a list without repetition")
    return tuple(value)


@dataclass(frozen=True, slots=True)
class StepConfig:
    """One step: a model, and which tensors of the ensemble its own ones are.

    An input that `inputs` does not name is the tensor of its own name. Without
    `outputs` all outputs are tensors of their own names; with it the others are
    dropped.
    """

    model: str = key("", text(200), "the model that runs")
    version: int = key(
        0, integer(1, 1 << 62), "its version; without it, the one for such requests"
    )
    inputs: Mapping[str, str] = key(
        dict, _tensor_map, "tensor of the ensemble for each input of the model"
    )
    outputs: Mapping[str, str] = key(
        dict, _tensor_map, "tensor of the ensemble for each output of the model"
    )

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model is missing: which one does this step run?")


@dataclass(frozen=True, slots=True)
class EnsembleConfig:
    """The steps, and what the ensemble takes and gives.

    By default it takes what steps need and no step gives, and gives what no step takes.
    Where `inputs` are named, they must be those: a tensor that is misspelt in a step
    does not become an input then.
    """

    step: tuple[StepConfig, ...] = key(
        (), sections(StepConfig, MAX_STEPS), "the steps, in any order"
    )
    inputs: tuple[str, ...] = key((), _names, "the tensors that a request has")
    outputs: tuple[str, ...] = key((), _names, "the tensors that an answer has")

    def __post_init__(self) -> None:
        if not self.step:
            raise ValueError("there is no step; write at least one [[ensemble.step]]")
