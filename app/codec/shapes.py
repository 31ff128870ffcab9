"""Shapes of inputs: checked, counted, discovered from nesting, deduced from bytes."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any, Final

from app.errors import InvalidRequest, InvalidShape, InvalidTensor, NestedTooDeep
from app.give_way import BLOCK, MANY, give_way, in_blocks
from app.limits import Limits

Shape = tuple[int, ...]

# Other programs cannot count this many elements.
_COUNTABLE = 1 << 63
_NESTED: Final = frozenset((dict, list))


def written(shape: Shape | list[int] | None) -> str:
    """Return a shape as error messages show it: ``[1,16]``."""
    if shape is None:
        return "of any rank"
    return "[" + ",".join(map(str, shape)) + "]"


def shown(value: object) -> str:
    """Return a value of a document as error messages show it.

    A list or an object may be long, and nested deeper than Python can write.
    """
    if isinstance(value, dict):
        return "an object"
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str | bytes | int | float):
        return f"{value!r:.80}"
    return "bytes" if isinstance(value, memoryview) else "a list"


def parse_shape(name: str, shape: object, limits: Limits) -> Shape:
    """Return a shape from a document.

    Raises InvalidRequest if it is not a shape, or absurd.
    """
    if type(shape) is not list:
        what = "is missing" if shape is None else f"is {shown(shape)}"
        msg = f"'shape' of input '{name}' {what}; expected a list of integers"
        raise InvalidRequest(msg)
    if len(shape) > limits.max_rank:
        msg = (
            f"'shape' of input '{name}' has {len(shape)} dimensions; "
            f"at most {limits.max_rank} are allowed"
        )
        raise InvalidRequest(msg)
    for dim in shape:
        if type(dim) is not int or dim < 0:
            msg = (
                "Unable to parse 'shape': attempt to access JSON non-unsigned-integer "
                f"as unsigned-integer (input '{name}' has dimension {shown(dim)})"
            )
            raise InvalidShape(msg)
    count_elements(name, shape, limits)
    return tuple(shape)


def count_elements(name: str, shape: list[int] | Shape, limits: Limits) -> int:
    """Return the product of the dimensions.

    A dimension of 0 does not hide others, for which memory or time may be needed all
    the same. Raises InvalidTensor if the product exceeds the limit.
    """
    count = 1
    largest = limits.max_elements
    for dim in shape:
        count *= dim or 1
        if count > largest:
            msg = (
                f"shape {written(tuple(shape))} of input '{name}' causes total element "
                f"count to exceed maximum size of {largest}"
            )
            if math.prod(shape) < _COUNTABLE:  # a small excess gets the usual message
                msg = f"byte size overflow for input '{name}': {msg}"
            raise InvalidTensor(msg)
    if 0 not in shape:
        return count
    if (rows := math.prod(shape[: shape.index(0)])) > limits.max_empty_rows:
        msg = f"shape {written(tuple(shape))} of input '{name}' has {rows} rows without"
        raise InvalidTensor(f"{msg} elements; at most {limits.max_empty_rows} may come")
    return 0


def fits(expected: Shape | None, shape: Shape) -> bool:
    """Return whether a shape matches one with -1 for free dimensions."""
    if expected is None:
        return True
    return len(expected) == len(shape) and all(
        want in (-1, got) for want, got in zip(expected, shape, strict=True)
    )


def flatten(name: str, data: list[Any], shape: Shape, limits: Limits) -> list[Any]:
    """Return a nested list as a flat one; its nesting must match `shape`, or be deeper.

    `data` is a list whose first element is a list. Brackets beyond those of the shape
    are ignored: the elements are taken in the order of the text.
    """
    rows = data
    wrong = len(rows) != shape[0] if shape else True
    for dim in shape[1:]:
        if wrong:
            break
        inner: list[Any] = []
        for block in in_blocks(rows):
            wrong = any(type(row) is not list or len(row) != dim for row in block)
            if wrong:
                break
            inner += chain.from_iterable(block)
        rows = inner
    # Elements that still are lists are left to the packer, which names the first.
    if wrong or (rows and type(rows[0]) is list):
        true = _first_dims(data, limits)
        if len(true) > len(shape):
            return _leaves(data, limits)
        check_depth(data, limits)
        if fits(shape, tuple(true)):
            msg = (
                f"the lists of input '{name}' are nested unevenly; its shape is "
                f"{written(shape)}"
            )
            raise InvalidTensor(msg)
        msg = (
            "Unable to parse 'data': Shape does not match true shape of 'data' field "
            f"(input '{name}' has shape {written(shape)}, its data {written(true)})"
        )
        raise InvalidTensor(msg)
    return rows


def _first_dims(row: Any, limits: Limits) -> list[int]:
    """Return the lengths of the lists around the first element, outermost first."""
    dims: list[int] = []
    while type(row) is list and len(dims) <= limits.max_rank:
        dims.append(len(row))
        row = row[0] if row else None
    return dims


def _leaves(data: list[Any], limits: Limits) -> list[Any]:
    """Return all elements that are not lists, in their order. Does not recurse."""
    found: list[Any] = []
    open_lists = [iter(data)]
    passed = 0
    while open_lists:
        for item in open_lists[-1]:
            passed += 1
            if passed % BLOCK == 0 and passed > MANY:
                give_way()
            if type(item) is not list:
                found.append(item)
                continue
            if len(open_lists) >= limits.max_json_depth:
                raise NestedTooDeep(limits.max_json_depth)
            open_lists.append(iter(item))
            break
        else:
            open_lists.pop()
    return found


def check_depth(value: object, limits: Limits, depth: int = 0) -> None:
    """Refuse lists and objects nested deeper than the limit. Does not recurse."""
    level: list[object] = [value]
    passed = 0
    while level:
        deeper: list[object] = []
        for item in level:
            members = list(item.values()) if isinstance(item, dict) else item
            for block in in_blocks(members) if isinstance(members, list) else ():
                if not _NESTED.isdisjoint(map(type, block)):  # a third of the time
                    deeper += [v for v in block if type(v) in _NESTED]
                passed += 1 + len(block)
            if passed > 2 * MANY:
                passed = 0
                give_way()
        level = deeper
        depth += 1
        if level and depth >= limits.max_json_depth:
            raise NestedTooDeep(limits.max_json_depth)


def discover(
    name: str, value: object, expected: Shape | None, limits: Limits
) -> tuple[Shape, list[Any]]:
    """Return shape and flat elements of the shorthand's (nested) value.

    Missing leading dimensions are 1 if the model leaves them free or fixes them at 1.
    So one row needs no brackets around it, and a single number none at all. If that
    does not fit, missing last dimensions of 1 are added: numbers in a list are the rows
    of a column. An empty list takes its invisible dimensions from the model.
    """
    nested = _first_dims(value, limits)
    if len(nested) > limits.max_rank:
        check_depth(value, limits)
        msg = f"input '{name}' is nested deeper than {limits.max_rank} dimensions"
        raise InvalidRequest(msg)
    shape = tuple(nested)
    if type(value) is not list:
        flat = [value]
    elif type(value[0] if value else None) is list:
        flat = flatten(name, value, shape, limits)
    else:
        flat = value
    return completed(shape, expected), flat


def completed(shape: Shape, expected: Shape | None) -> Shape:
    """Return a shape with its missing dimensions added, as `discover` says."""
    if expected is None or len(shape) >= len(expected):
        return shape
    missing = len(expected) - len(shape)
    if shape and shape[-1] == 0 and (expected[0] == -1 or expected[0] == shape[0]):
        return shape + tuple(max(dim, 0) for dim in expected[len(shape) :])
    leading = all(dim in (-1, 1) for dim in expected[:missing])
    if leading and fits(expected[missing:], shape):
        return (1,) * missing + shape
    known = len(shape)
    if all(dim == 1 for dim in expected[known:]) and fits(expected[:known], shape):
        return shape + (1,) * missing
    return (1,) * missing + shape if leading else shape


def deduce(
    name: str, nbytes: int, item_size: int, expected: Shape | None, *, batched: bool
) -> Shape:
    """Return the shape of bytes without a stated one (raw requests).

    One dimension may be free. In a batched model the batch may be free as well, and is
    then 1. Raises InvalidTensor if more are free, or the bytes do not fit.
    """
    dims = [] if expected is None else list(expected)
    if dims and batched and dims.count(-1) > 1 and dims[0] == -1:
        dims[0] = 1
    if expected is None or dims.count(-1) > 1:
        msg = (
            f"The shape of the raw input '{name}' can not be deduced because there are "
            "more than one variable-sized dimension"
        )
        raise InvalidTensor(msg)
    known = item_size
    for dim in dims:
        known *= 1 if dim == -1 else dim
    if -1 in dims:
        free = nbytes // known if known else 0
        if free * known != nbytes or not known:
            msg = (
                f"input byte size mismatch for input '{name}'. Expected a multiple of "
                f"{known} for shape {written(expected)}, got {nbytes}"
            )
            raise InvalidTensor(msg)
        dims[dims.index(-1)] = free
    return tuple(dims)
