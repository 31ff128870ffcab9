"""Checks and conversions of operators."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

import popir
from popxl import context, current, dtypes
from popxl.dtypes import dtype
from popxl.errors import UndefinedValue
from popxl.graph import Graph
from popxl.tensor import Tensor


def check_in_graph(graph: Graph, **tensors: Tensor) -> None:
    """Raise TypeError for objects that are not tensors, ValueError for tensors of
    another graph.
    """
    for name, tensor in tensors.items():
        if not isinstance(tensor, Tensor):
            raise TypeError(
                f"The input `{name}` is not a Tensor, it is of type {type(tensor)}"
            )
        if tensor not in graph:
            raise ValueError(
                f"The input `{name}`, {tensor.id!r}, is not in the current Graph "
                f"{graph.id!r}"
            )


def check_inputs(**tensors: Tensor) -> None:
    """Call `check_in_graph` with the current graph, before the tensors are read."""
    check_in_graph(context.get_current_graph(), **tensors)


def check_tensor_ipu_and_tile_set(**tensors: Tensor) -> None:
    """Raise ValueError if devices or tile sets are known and differ."""
    known: list[tuple[str, int, str]] = []
    for name, tensor in tensors.items():
        try:
            known.append((name, tensor.ipu, tensor.tile_set))
        except UndefinedValue:
            continue
    for name, ipu, tile_set in known[1:]:
        first = known[0]
        pair = f"The input tensors `{first[0]}` and `{name}` are located on different"
        if ipu != first[1]:
            raise ValueError(f"{pair} IPUs: {first[1]} and {ipu}")
        if tile_set != first[2]:
            raise ValueError(f"{pair} tile sets: {first[2]} and {tile_set}")


def cast(t: Tensor, data_type: dtype) -> Tensor:
    """Return `t` as another type."""
    to = dtype.as_dtype(data_type)
    if to in (dtypes.float8_143, dtypes.float8_152):
        raise TypeError(
            f"Cannot cast to {to}: use pow2scale_cast_to_fp8, which takes a scale"
        )
    attributes = {"to": to._below}
    names = [f"{t.name}_{to._name}" if isinstance(t, Tensor) else None]
    return emit("Cast", {"t": t}, names, attributes, together=False)[0]


def cast_if_needed(t: Tensor, data_type: dtype) -> Tensor:
    """Return `t`, cast if its type differs."""
    return t if t.dtype is data_type else cast(t, data_type)


def handle_negative_axis(t: Tensor, axis: int) -> int:
    """Return `axis` counted from the front."""
    return axis if axis >= 0 else t.rank + axis


def convert_optional_int64_list(values: Iterable[int] | int | None) -> list[int] | None:
    """Return a list of integers; None stays."""
    if values is None:
        return None
    return [values] if isinstance(values, int) else [int(each) for each in values]


convert_optional_int_list = convert_optional_int64_list


def convert_optional_bool(value: bool | None) -> bool | None:
    """Return the value unchanged."""
    return value


convert_optional_float = convert_optional_int = convert_optional_dtype = (
    convert_optional_bool
)


def convert_optional_bool_list(values: Iterable[bool] | None) -> list[bool]:
    """Return a list; None: empty."""
    return [bool(each) for each in values or ()]


def convert_optional_float_list(values: Iterable[float] | None) -> list[float]:
    """Return a list; None: empty."""
    return [float(each) for each in values or ()]


def emit(
    type_: str | popir.Record,
    inputs: Mapping[str, Tensor] | Sequence[Tensor],
    names: Sequence[str | None] = (),
    attributes: Mapping[str, Any] | None = None,
    *,
    together: bool = True,
) -> tuple[Tensor, ...]:
    """Make an operator in the current graph; return its results.

    together: check that the inputs are in one place, as far as the place is known.
    """
    return tuple(
        Tensor._of(t)
        for t in emit_op(type_, inputs, names, attributes, together=together).outputs
    )


def emit_op(
    type_: str | popir.Record,
    inputs: Mapping[str, Tensor] | Sequence[Tensor],
    names: Sequence[str | None] = (),
    attributes: Mapping[str, Any] | None = None,
    *,
    together: bool = True,
) -> popir.Operator:
    """Emit an operator like `emit`; returns the operator itself."""
    graph = context.get_current_graph()
    named = (
        dict(inputs)
        if isinstance(inputs, Mapping)
        else {f"inputs[{n}]": tensor for n, tensor in enumerate(inputs)}
    )
    check_in_graph(graph, **named)
    if together:
        check_tensor_ipu_and_tile_set(**named)
    return graph._below.add(
        type_,
        [tensor._below for tensor in named.values()],
        names,
        attributes,
        current.settings(),
    )


def scalar(
    value: Any, inputs: list[Tensor], type_: dtype | None = None
) -> float | str | None:
    """Return a number as an attribute, or a scalar tensor as one more of `inputs`."""
    if isinstance(value, Tensor):
        inputs.append(value)
        return f"#{len(inputs) - 1}"
    return None if value is None else float(value)


def axes(axis: int | Iterable[int] | None) -> tuple[int, ...] | None:
    """Return the axes of a reduction."""
    if axis is None:
        return None
    if isinstance(axis, int | np.integer):
        return (int(axis),)
    if not isinstance(axis, Iterable) or isinstance(axis, str):
        raise TypeError(f"axis must be an integer or several, found {axis!r}")
    return tuple(int(each) for each in axis)
