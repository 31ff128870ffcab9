"""Reshapes: clients see another shape of a tensor than the model.

The compiler turns it into a Reshape node of the model, so it costs no extra step at run
time.
"""

from __future__ import annotations

import math
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

    def check(self) -> str:
        """Return why the reshape is impossible; empty if it is possible."""
        for dims in (self.dims, self.shape):
            if sum(dim < 0 for dim in dims) > 1:
                return f"{list(dims)} has more than one free dimension"
        known = [math.prod(abs(dim) for dim in d) for d in (self.dims, self.shape)]
        free = [any(dim < 0 for dim in d) for d in (self.dims, self.shape)]
        if not any(free) and known[0] != known[1]:
            return f"{list(self.dims)} and {list(self.shape)} differ in size"
        return ""


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
