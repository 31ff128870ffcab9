"""Shape, slicing, joining."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import numpy as np

from popxl.dtypes import dtype
from popxl.ops.utils import check_inputs, emit, handle_negative_axis
from popxl.tensor import Tensor

_Ints = int | Iterable[int | None] | None


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if any(each == 0 or each < -1 for each in shape):
        raise ValueError(f"Invalid shape value in reshape: {shape}")
    if shape.count(-1) > 1:
        raise ValueError(f"Reshape shape can contain at most one '-1' value: {shape}")
    return tuple(int(each) for each in shape)


def reshape(t: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the elements in another shape; one length may be -1."""
    return _reshape("Reshape", t, shape)


def reshape_(t: Tensor, shape: Sequence[int]) -> Tensor:
    """Return a view of the elements in another shape."""
    return _reshape("ReshapeInplace", t, shape)


def _reshape(type_: str, t: Tensor, shape: Sequence[int]) -> Tensor:
    name = f"{t.name}_reshaped" if isinstance(t, Tensor) else None
    attributes = {"shape": _checked_shape(shape)}
    return emit(type_, {"t": t}, [name], attributes)[0]


def flatten(t: Tensor) -> Tensor:
    """Return the elements along one axis."""
    return reshape(t, (-1,))


def flatten_(t: Tensor) -> Tensor:
    """Return a view of the elements along one axis."""
    return reshape_(t, (-1,))


def transpose(t: Tensor, permutation: Iterable[int] | None = None) -> Tensor:
    """Return the tensor with its axes in another order; None: reversed."""
    return _transpose("Transpose", t, permutation)


def transpose_(t: Tensor, permutation: Iterable[int] | None = None) -> Tensor:
    """Return a view with the axes in another order."""
    return _transpose("TransposeInplace", t, permutation)


def _transpose(type_: str, t: Tensor, permutation: Iterable[int] | None) -> Tensor:
    order: list[int] = []
    if isinstance(t, Tensor):
        if permutation is None:
            order = list(range(t.rank))[::-1]
        else:
            order = [int(each) for each in permutation]
        if any(each >= t.rank for each in order):
            raise ValueError(
                f"Values in permutation must be less than the rank: rank {t.rank}, "
                f"permutation {tuple(order)}"
            )
    name = f"{t.name}_T" if isinstance(t, Tensor) else None
    return emit(type_, {"t": t}, [name], {"order": order})[0]


def squeeze(t: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """Remove axes of length 1: all of them, or `axes`."""
    check_inputs(t=t)
    if axes is None:
        dropped = [axis for axis, size in enumerate(t.shape) if size == 1]
    else:
        dropped = [handle_negative_axis(t, axis) for axis in axes]
        if len(set(dropped)) != len(dropped):
            raise ValueError(f"axes contains an axis twice: {list(axes)}")
        for axis in dropped:
            if not 0 <= axis < t.rank:
                raise ValueError(f"axis {axis} is beyond the rank {t.rank}")
            if t.shape[axis] != 1:
                raise ValueError(f"axis {axis} has length {t.shape[axis]}, not 1")
    kept = [size for axis, size in enumerate(t.shape) if axis not in dropped]
    return emit("Reshape", {"t": t}, [f"{t.name}_reshaped"], {"shape": tuple(kept)})[0]


def _list(values: _Ints) -> list[int | None] | None:
    if values is None:
        return None
    if isinstance(values, int | np.integer):
        return [int(values)]
    return [None if each is None else int(each) for each in values]


def _slices(
    start: _Ints, stop: _Ints, step: _Ints, axis: int | Iterable[int] | None
) -> list[tuple[int, int | None, int | None, int | None]]:
    given = [_list(each) for each in (start, stop, step)]
    named = _list(axis)
    lengths = {len(each) for each in (*given, named) if each is not None}
    if len(lengths) != 1:
        raise ValueError(
            "start, stop, step and axis must have one length, found "
            f"{start}, {stop}, {step}, {axis}"
        )
    (count,) = lengths
    starts, stops, steps = (each or [None] * count for each in given)
    where = named or list(range(count))
    found = []
    for at, a, b, c in zip(where, starts, stops, steps, strict=True):
        assert at is not None
        found.append((at, a, b, c))
    return found


def slice(
    t: Tensor,
    start: _Ints = None,
    stop: _Ints = None,
    step: _Ints = None,
    axis: int | Iterable[int] | None = None,
) -> Tensor:
    """Take elements from `start` to `stop` along each of `axis`, in steps of 1
    or -1.
    """
    if start is None and stop is None and step is None:
        return t
    attributes = {"slices": _slices(start, stop, step, axis), "any_step": False}
    return emit("Slice", {"t": t}, ["slice_out"], attributes)[0]


def slice_(
    t: Tensor,
    start: _Ints = None,
    stop: _Ints = None,
    step: _Ints = None,
    axis: int | Iterable[int] | None = None,
) -> Tensor:
    """Return a slice that can be written through."""
    if start is None and stop is None and step is None:
        return t
    attributes = {"slices": _slices(start, stop, step, axis), "any_step": False}
    return emit("SliceInplace", {"t": t}, ["slice_out"], attributes)[0]


def subsample(t: Tensor, strides: int | list[int]) -> Tensor:
    """Take every `strides[i]`-th element along axis i."""
    check_inputs(t=t)
    given: Any = [strides] if isinstance(strides, int | np.integer) else strides
    if len(given) > t.rank:
        raise ValueError(
            f"There are {len(given)} strides for a tensor of rank {t.rank}"
        )
    missing = t.rank - len(given)
    if isinstance(given, list):
        given.extend([1] * missing)  # change the caller's list, as the original does
    else:
        given = [*(int(each) for each in given), *[1] * missing]
    cuts = [(axis, None, None, int(step)) for axis, step in enumerate(given)]
    attributes = {"slices": cuts, "any_step": True}
    return emit("Subsample", {"t": t}, ["subsample_out"], attributes)[0]


def split(t: Tensor, splits: int | list[int], axis: int = 0) -> list[Tensor]:
    """Cut into that many equal parts, or parts of those sizes."""
    check_inputs(t=t)
    if isinstance(splits, int | np.integer):
        # The operator refuses an axis beyond the rank.
        size = t.shape[axis] if -t.rank <= axis < t.rank else splits
        if splits < 1 or size % splits:
            raise ValueError(
                f"axis {axis} of length {size} cannot be split into {splits} equal "
                "parts"
            )
        sizes = [size // splits] * splits
    else:
        sizes = [int(each) for each in splits]
    names = [f"{t.name}_split_{n}" for n in range(len(sizes))]
    attributes = {"sizes": tuple(sizes), "axis": axis}
    return list(emit("Split", {"t": t}, names, attributes))


def concat(ts: Iterable[Tensor], axis: int = 0) -> Tensor:
    """Return the tensors joined along `axis`."""
    return _concat("Concat", ts, axis, "concat_out")


def concat_(ts: Iterable[Tensor], axis: int = 0) -> Tensor:
    """Return the tensors joined along `axis`, as a view of all of them."""
    return _concat("ConcatInplace", ts, axis, "concat_out")


def _concat(type_: str, ts: Iterable[Tensor], axis: int, name: str) -> Tensor:
    tensors = list(ts)
    if len({t.dtype for t in tensors if isinstance(t, Tensor)}) > 1:
        raise TypeError(
            "All inputs to a concat operation must have the same type: "
            f"{[t.dtype for t in tensors]}"
        )
    return emit(type_, tensors, [name], {"axis": axis})[0]


def init(
    shape: Iterable[int],
    dtype: dtype,
    name: str | None = None,
    init_type: Literal["zero", "undef"] = "zero",
    meta_shape: Iterable[int] | None = None,
) -> Tensor:
    """Return a tensor of zeros, or of undefined contents."""
    if init_type not in ("zero", "undef"):
        raise ValueError(f"Unknown init_type {init_type!r}: 'zero' or 'undef'")
    attributes = {
        "dtype": dtype._below,
        "shape": tuple(shape),
        "meta_shape": tuple(meta_shape or ()),
    }
    return emit("Init", {}, [name], attributes)[0]
