"""Reshapes: clients see another shape of a tensor than the model.

The compiler turns it into a Reshape node of the model, so it costs no extra step at run
time.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Reshape:
    """Shape of a tensor for clients (`dims`) and for the model (`shape`).

    Neither shape includes the batch dimension, which exists if `batched` is true. -1 is
    free.
    """

    name: str
    dims: tuple[int, ...]
    shape: tuple[int, ...]
    batched: bool


@dataclass(frozen=True, slots=True)
class Reshapes:
    """The reshapes of a model. `repr` is stable: part of a cache key.

    `label` names the configuration in errors.
    """

    inputs: tuple[Reshape, ...] = ()
    outputs: tuple[Reshape, ...] = ()
    label: str = field(default="", repr=False)

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)
