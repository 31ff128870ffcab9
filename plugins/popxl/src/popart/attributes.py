"""Attributes of operators, as the original names them."""

# ruff: noqa: N802 - the names are the original's
from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import popir
from popart.enums import (
    AccumulationType,
    CollectiveOperator,
    ExecutionContext,
    InitType,
    ReductionType,
    TileSet,
)


class OptimizerValue:
    """A number: a fixed one, or the value of a tensor."""

    def __init__(self, value: float, is_const: bool = True) -> None:
        self._value = float(value)
        self._is_const = is_const

    def val(self) -> float:
        """Return the number; 0.0 if it is in a tensor."""
        return self._value

    def isConst(self) -> bool:
        """Return whether the number is fixed."""
        return self._is_const


class Settings:
    """Place of an operator. Setting its members does not change the graph."""

    def __init__(self, graph: Any = None, name: str = "", scope: str = "") -> None:
        self._below = popir.OperatorSettings()
        self._show(name, scope)

    @classmethod
    def _of(cls, below: popir.OperatorSettings, name: str = "") -> Settings:
        self = cls.__new__(cls)
        self._below = below
        self._show(name, "/".join(below.scopes))
        return self

    def _show(self, name: str, scope: str) -> None:
        below = self._below
        self.name = name
        self.scope = scope
        self.tileSet = TileSet.IO if below.tile_set == "io" else TileSet.Compute
        self.executionContext = ExecutionContext[below.fragment]
        self.vgraphId = below.ipu


class ConvOptions:
    """Hints of a convolution. They are stored and have no effect."""

    def __init__(self, attributes: Mapping[str, Any] | None = None) -> None:
        hints = (attributes or {}).get("hints", {})
        self.availableMemoryProportions = list(hints.get("proportions") or [])
        self.partialsTypes = list(hints.get("partials") or [])
        self.enableConvDithering = list(hints.get("dithering") or [])


def _factor(value: Any) -> OptimizerValue:
    is_const = not isinstance(value, str)
    return OptimizerValue(float(value) if value and is_const else 0.0, is_const)


def _plain(value: Any) -> Any:
    return value


def _ints(values: Any) -> list[int]:
    return [int(each) for each in values or ()]


_MODES = {
    "add": AccumulationType.Add,
    "scaled": AccumulationType.DampenedAdd,
    "square": AccumulationType.DampenedAddSquare,
    "moving": AccumulationType.MovingAverage,
    "moving_square": AccumulationType.MovingAverageSquare,
    "mean": AccumulationType.Mean,
}
_REDUCTIONS = {
    "sum": ReductionType.Sum,
    "mean": ReductionType.Mean,
    "none": ReductionType.NoReduction,
}
_COLLECTIVES = {
    "add": CollectiveOperator.Add,
    "mean": CollectiveOperator.Mean,
    "mul": CollectiveOperator.Mul,
    "min": CollectiveOperator.Min,
    "max": CollectiveOperator.Max,
    "and": CollectiveOperator.LogicalAnd,
    "or": CollectiveOperator.LogicalOr,
    "square_add": CollectiveOperator.SquareAdd,
    "local": CollectiveOperator.Local,
}
#: Getters of operators with an attribute: the attribute, and its form in the original.
ASKED: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "getAccumulationType": ("mode", lambda mode: _MODES[mode]),
    "getAxes": ("axes", _ints),
    "getAxis": ("axis", int),
    "getClipMax": ("max", float),
    "getClipMin": ("min", float),
    "getCollectiveOp": ("op", lambda op: _COLLECTIVES[op]),
    "getDestIpu": ("destination", int),
    "getEpsilon": ("eps", float),
    "getFactor": ("factor", _factor),
    "getGroupSize": ("groups", int),
    "getIgnoreIndex": ("ignore_index", _plain),
    "getIncrement": ("increment", float),
    "getInitType": ("init_type", lambda kind: InitType[kind]),
    "getK": ("k", int),
    "getKeepDims": ("keepdims", bool),
    "getLargest": ("largest", bool),
    "getModulus": ("modulus", float),
    "getNumGroups": ("groups", int),
    "getPerm": ("order", _ints),
    "getRatio": ("ratio", float),
    "getReductionType": ("reduction", lambda name: _REDUCTIONS[name]),
    "getSorted": ("sorted", bool),
    "getSourceIpu": ("source", int),
    "getSplitSizes": ("sizes", _ints),
    "getTitle": ("title", str),
    "getTripCountValue": ("count", int),
    "getZeroOutOfRangeIndices": ("zero_out_of_range", bool),
    "shouldPrintSelf": ("print_self", bool),
    "shouldPrintGradient": ("print_gradient", bool),
}
