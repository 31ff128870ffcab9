"""Reductions across replicas: not there yet; they say so."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, NoReturn

import popir


class CommGroupType(Enum):
    """How replicas are grouped."""

    All = 0
    Consecutive = 1
    Orthogonal = 2
    Ungrouped = 3


def _missing(name: str) -> Callable[..., Any]:
    def operator(*_: Any, **__: Any) -> NoReturn:
        raise popir.NotYet(f"collectives.{name} is not there yet: one replica runs")

    operator.__name__ = operator.__qualname__ = name
    operator.__doc__ = "Not there yet."
    return operator


CommGroup = _missing("CommGroup")
all_reduce = _missing("all_reduce")
all_reduce_identical_inputs = _missing("all_reduce_identical_inputs")
all_reduce_identical_grad_inputs = _missing("all_reduce_identical_grad_inputs")
replica_sharded_slice = _missing("replica_sharded_slice")
replicated_all_gather = _missing("replicated_all_gather")
replicated_all_reduce = _missing("replicated_all_reduce")
replicated_all_reduce_ = _missing("replicated_all_reduce_")
replicated_reduce_scatter = _missing("replicated_reduce_scatter")
replicated_slice = _missing("replicated_slice")
