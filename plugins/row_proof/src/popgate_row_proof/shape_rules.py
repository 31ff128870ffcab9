"""Rules for the rows of operators that move values or compute shapes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod

from popgate_row_proof.call import OperatorCall, Rule, across, from_front
from popgate_row_proof.values import (
    AbstractValue,
    Rows,
    Shape,
    Size,
    Unproven,
    broadcast,
    matched,
    reshaped,
    unknown,
)

_TO_THE_END = (1 << 31) - 1
"""From this value on, the end of a slice means the end of the axis,
whatever its size.
"""


def concat(call: OperatorCall) -> Iterable[AbstractValue]:
    values = call.values
    rank = len(values[0].shape)
    axis = call.axis(1)
    if any(len(value.shape) != rank for value in values):
        raise Unproven("joins values of different ranks")
    if rank == 1 and all(value.items is not None for value in values):
        items = tuple(item for value in values for item in value.items or ())
        return [AbstractValue((len(items),), items)]
    columns = list(zip(*(value.shape for value in values), strict=True))
    if any(isinstance(size, Rows) for size in columns[axis]):
        raise Unproven("concatenates values along the axis of rows")
    shape = [matched(sizes, call.counts) for sizes in columns]
    parts = [size for size in columns[axis] if isinstance(size, int)]
    shape[axis] = sum(parts) if len(parts) == len(values) else unknown()
    return [AbstractValue(tuple(shape))]


def gather(call: OperatorCall) -> Iterable[AbstractValue]:
    value, chosen = call.input(0), call.input(1)
    axis = call.axis(0)
    if value.items is not None and chosen.items is not None and len(value.shape) == 1:
        places = [from_front(i, len(value.items)) for i in call.constants(1)]
        return [AbstractValue(chosen.shape, tuple(value.items[i] for i in places))]
    if value.axis is not None and (chosen.axis is not None or value.axis == axis):
        raise Unproven("selects rows by their number")
    shape = (*value.shape[:axis], *chosen.shape, *value.shape[axis + 1 :])
    return [AbstractValue(shape)]


def gather_elements(call: OperatorCall) -> Iterable[AbstractValue]:
    value, chosen = call.input(0), call.input(1)
    axis = value.axis
    if axis is None and chosen.axis is None:
        return [AbstractValue(chosen.shape)]
    if axis is None or axis != chosen.axis or axis == call.axis(0):
        raise Unproven("selects rows by their number")
    if _each(value.shape[axis]) != _each(chosen.shape[axis]):
        raise Unproven("may put different rows together")
    return [AbstractValue(chosen.shape)]


def _each(size: Size) -> int:
    return size.each if isinstance(size, Rows) else 0


def cut(call: OperatorCall) -> Iterable[AbstractValue]:
    """Apply `Slice`."""
    value = call.input()
    old = call.attribute("starts") is not None
    starts, ends = (
        call.numbers(name, i) or () for i, name in enumerate(("starts", "ends"), 1)
    )
    axes = call.numbers("axes", 3) or tuple(range(len(starts)))
    steps = () if old else call.numbers("steps", 4) or ()
    shape, items = list(value.shape), value.items
    for place, axis in enumerate(axes):
        axis = from_front(axis, len(shape))
        step = steps[place] if place < len(steps) else 1
        if starts[place] == 0 and ends[place] >= _TO_THE_END and step == 1:
            continue
        across(value, [axis])
        shape[axis] = unknown()
        if items is not None and len(value.shape) == 1:
            items = items[starts[place] : ends[place] : step]
            shape[axis] = len(items)
    return [AbstractValue(tuple(shape), items if len(value.shape) == 1 else None)]


def split(call: OperatorCall) -> Iterable[AbstractValue]:
    value = call.only()
    axis = call.axis(0)
    across(value, [axis])
    count = len(call.node.output)
    parts: Sequence[Size] = call.numbers("split", 1) or ()
    if not parts:
        parts = [unknown() for _ in range(count)]
    return [
        AbstractValue((*value.shape[:axis], size, *value.shape[axis + 1 :]))
        for size in parts
    ]


def transpose(call: OperatorCall) -> Iterable[AbstractValue]:
    shape = call.input().shape
    order = call.numbers("perm", 1) or tuple(reversed(range(len(shape))))
    return [AbstractValue(tuple(shape[from_front(i, len(shape))] for i in order))]


def reshape(call: OperatorCall) -> Iterable[AbstractValue]:
    value = call.input()
    if call.node.op_type == "Flatten":
        axis = call.number("axis", 1)
        axis = axis + len(value.shape) if axis < 0 else axis
        front, back = value.shape[:axis], value.shape[axis:]
        if value.axis is None:
            return [AbstractValue((unknown(), unknown()))]
        return [AbstractValue(reshaped(value.shape, _two(front, back)))]
    items = call.input(1).items
    if items is None:
        raise Unproven(f"reads the shape {call.node.input[1]!r}, which is unknown")
    if not call.number("allowzero", 0):
        items = tuple(
            value.shape[i] if d == 0 and i < len(value.shape) else d
            for i, d in enumerate(items)
        )
    return [AbstractValue(reshaped(value.shape, items), value.items)]


def _two(front: Shape, back: Shape) -> Shape:
    """Return the target shape of a flattening: rows on one side, all other axes on the
    other.
    """
    if front == () or all(size == 1 for size in front):
        return (1, -1)
    if len(front) == 1 and isinstance(front[0], Rows):
        return (front[0], -1)
    numbers = [size for size in back if isinstance(size, int)]
    if len(numbers) < len(back):
        raise Unproven("may put different rows together")
    return (-1, prod(numbers))


def squeeze(call: OperatorCall) -> Iterable[AbstractValue]:
    value = call.input()
    axes = call.numbers("axes", 1)
    if axes is None:
        if value.axis is not None or any(isinstance(d, str) for d in value.shape):
            raise Unproven("removes the axis of rows for a single row")
        axes = tuple(i for i, size in enumerate(value.shape) if size == 1)
    gone = {from_front(axis, len(value.shape)) for axis in axes}
    across(value, gone)
    shape = tuple(size for i, size in enumerate(value.shape) if i not in gone)
    return [AbstractValue(shape, value.items)]


def unsqueeze(call: OperatorCall) -> Iterable[AbstractValue]:
    value = call.input()
    axes = call.numbers("axes", 1) or ()
    rank = len(value.shape) + len(axes)
    new = {from_front(axis, rank) for axis in axes}
    old = iter(value.shape)
    shape = tuple(1 if i in new else next(old) for i in range(rank))
    return [AbstractValue(shape, value.items)]


def expand(call: OperatorCall) -> Iterable[AbstractValue]:
    items = call.input(1).items
    if items is None:
        raise Unproven(f"reads the shape {call.node.input[1]!r}, which is unknown")
    return [AbstractValue(broadcast([call.input().shape, items], call.counts))]


def tile(call: OperatorCall) -> Iterable[AbstractValue]:
    value, times = call.only(), call.constants(1)
    across(value, [axis for axis, count in enumerate(times) if count != 1])
    return [
        AbstractValue(
            tuple(
                size if count == 1 else unknown()
                for size, count in zip(value.shape, times, strict=True)
            )
        )
    ]


def pad(call: OperatorCall) -> Iterable[AbstractValue]:
    value = call.only()
    pads = call.numbers("pads", 1) or ()
    if call.has(3):
        raise Unproven("pads axes that another input lists")
    rank = len(value.shape)
    if len(pads) != 2 * rank:
        raise Unproven(f"has {len(pads)} pads for {rank} dimensions")
    wide = [axis for axis in range(rank) if pads[axis] or pads[rank + axis]]
    across(value, wide)
    shape = [unknown() if i in wide else size for i, size in enumerate(value.shape)]
    return [AbstractValue(tuple(shape))]


def one_hot(call: OperatorCall) -> Iterable[AbstractValue]:
    value = call.only()
    axis = call.axis(-1, len(value.shape) + 1)
    items = call.input(1).items
    depth = items[0] if items else unknown()
    return [AbstractValue((*value.shape[:axis], depth, *value.shape[axis:]))]


def shape_of(call: OperatorCall) -> Iterable[AbstractValue]:
    shape = call.input().shape
    end = call.attribute("end")
    part = shape[call.number("start", 0) : None if end is None else int(end.i)]
    return [AbstractValue((len(part),), part)]


def size_of(call: OperatorCall) -> Iterable[AbstractValue]:
    if call.input().axis is not None:
        raise Unproven("counts rows")
    return [AbstractValue(())]


def filled(call: OperatorCall) -> Iterable[AbstractValue]:
    """Apply `ConstantOfShape`."""
    items = call.input().items
    if items is None:
        raise Unproven(f"reads the shape {call.node.input[0]!r}, which is unknown")
    return [AbstractValue(items)]


def counted(call: OperatorCall) -> Iterable[AbstractValue]:
    """Apply `Range`."""
    if any(value.axis is not None for value in call.values):
        raise Unproven("has a result whose size depends on data")
    return [AbstractValue((unknown(),))]


MOVING: Mapping[str, Rule] = {
    "Concat": concat,
    "ConstantOfShape": filled,
    "Expand": expand,
    "Flatten": reshape,
    "Gather": gather,
    "GatherElements": gather_elements,
    "OneHot": one_hot,
    "Pad": pad,
    "Range": counted,
    "Reshape": reshape,
    "Shape": shape_of,
    "Size": size_of,
    "Slice": cut,
    "Split": split,
    "Squeeze": squeeze,
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": unsqueeze,
}
SIZES_OF_RESULTS = frozenset({("ConstantOfShape", 0), ("Expand", 1), ("Reshape", 1)})
"""Inputs of operators that set the size of their results.

They may depend on the number of rows, and then the results have rows.
"""
PASS_SIZES_ON = frozenset(
    {"Cast", "Concat", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Unsqueeze"}
)
"""Operators that may receive the number of rows, because their rules know the elements
of their results.
"""
