"""Check tensors against the model that another model runs."""

from __future__ import annotations

from collections.abc import Mapping

from app.errors import InvalidTensor
from app.sizes import counted
from app.spec import ModelSpec
from engine import Tensor


def common_shape(
    first: tuple[int, ...] | None, second: tuple[int, ...] | None
) -> tuple[int, ...] | None:
    """Return the shape that satisfies both; -1 is any size. Raises ValueError."""
    if first is None or second is None:
        return second if first is None else first
    if len(first) != len(second):
        raise ValueError("ranks differ")
    if any(a != b and -1 not in (a, b) for a, b in zip(first, second, strict=True)):
        raise ValueError("sizes differ")
    return tuple(max(a, b) for a, b in zip(first, second, strict=True))


def checked_rows(spec: ModelSpec, feed: Mapping[str, Tensor]) -> int:
    """Return the rows of a step's inputs, which must fit its model. Raises
    InvalidTensor.
    """
    rows = -1
    for item in spec.inputs:
        if item.name not in feed:
            continue
        shape = feed[item.name].shape
        try:
            common_shape(item.shape, shape)
        except ValueError:
            expected = "any" if item.shape is None else list(item.shape)
            msg = f"input {item.name!r} expects shape {expected}, got {list(shape)}"
            raise InvalidTensor(msg) from None
        if not spec.is_batched:
            continue
        if rows not in (-1, shape[0]):
            msg = (
                f"input {item.name!r} has {counted(shape[0], 'row')}, another input "
                f"{rows}"
            )
            raise InvalidTensor(msg)
        rows = shape[0]
    if spec.is_batched and 0 < spec.max_rows < rows:
        raise InvalidTensor(
            f"the request has {counted(rows, 'row')}, at most {spec.max_rows} are "
            "allowed"
        )
    return max(1, rows)
