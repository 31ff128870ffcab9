"""Shared functions of the operator families: broadcasting, axes, short gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from popir.builder import Builder, Value
from popir.dtypes import Shape
from popir.errors import IrError
from popir.records import Grad, GradRule, OpCall, Spec


def same(call: OpCall) -> list[Spec]:
    """Return one result like the first input."""
    return [call.inputs[0]]


def broadcast(*specs: Spec) -> Shape:
    """Return numpy's broadcast shape; IrError if types or shapes do not fit."""
    dtypes = {spec.dtype for spec in specs}
    shapes = [spec.shape for spec in specs]
    if len(dtypes) > 1:
        raise IrError(
            f"np broadcasting failed on shapes {shapes}, incompatible types "
            f"{sorted(each.name for each in dtypes)}"
        )
    return broadcast_shapes(shapes)


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """Return numpy's broadcast shape; IrError if there is none."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        raise IrError(
            f"np broadcasting failed, frames {list(shapes)} are not aligned"
        ) from None


def axis_of(axis: int, rank: int) -> int:
    """Return `axis` counted from the front; raise IrError beyond the rank."""
    if not -max(rank, 1) <= axis < max(rank, 1):
        raise IrError(f"axis {axis} is out of range for a tensor of rank {rank}")
    return axis % rank if rank else 0


def widened(b: Builder, value: Value) -> Value:
    """Return `value` as float32 if it is float16.

    Factors near 1 and steps below 6e-8 are lost in float16. Updates therefore compute
    in float32 and round once, at their end.
    """
    return b.cast(value, np.float32) if value.dtype == np.float16 else value


def factor(
    b: Builder, call: OpCall, values: Sequence[Value], name: str, like: Value
) -> Value | float:
    """Return a factor for computing with `like`.

    The attribute `name` is a number, or `#2` for the scalar in input 2.
    """
    given = call[name]
    if isinstance(given, str):
        return b.cast(b.reshape(values[int(given[1:])], ()), like.dtype)
    return float(given)


def rule(
    type_: str, needs: str, gives: int | tuple[int, ...], lower: Callable[[Grad], Value]
) -> GradRule:
    """Return a gradient operator with one result."""
    given = (gives,) if isinstance(gives, int) else gives
    return GradRule(type_, tuple(needs.split()), given, lambda g: [lower(g)])


def rules(*made: GradRule) -> Callable[[OpCall], Sequence[GradRule]]:
    """Return rules that do not depend on the inputs."""
    return lambda _: made
