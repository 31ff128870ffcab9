"""Rules that concern several fields at once, for reading and writing alike.

These are pure functions. Each raises `RuleViolation` if its rule is broken. The rules
about single fields are in `popef_io.descriptor`. The rules about several blobs are in
`popef_io.reader` and `popef_io.model`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from math import prod
from typing import TypeVar

import numpy as np

from popef_io.datatypes import DataType, TensorType
from popef_io.errors import RuleViolation
from popef_io.fields import S64_MAX
from popef_io.metadata import FeedDataInfo, Metadata, TensorDataInfo, TensorInfo

MAX_RANK = 32  # the most that numpy before 2.0 can hold
STRING_HEAD_SIZE = 4  # bytes of the length in front of each STRING element

_Item = TypeVar("_Item")


def check_tensor_info(info: TensorInfo) -> None:
    """Check that the size in bytes fits into 63 bits, counting zero dimensions as ones.

    Numpy refuses larger shapes such as (0, 2**62, 2**62), so we must too.
    """
    if info.shape is None:
        return
    largest = prod(abs(size) or 1 for size in info.shape)
    size = largest * max(info.data_type.item_size, 1)
    if size > S64_MAX:
        raise RuleViolation("size of the tensor", limit=(size, S64_MAX))


def check_tensor_data(info: TensorDataInfo | FeedDataInfo) -> None:
    """Check that data have a known shape."""
    if not info.tensor_info.is_static:
        raise RuleViolation(f"data must have a known shape, got {info.tensor_info}")


def check_feed_data(info: FeedDataInfo) -> None:
    """Check feed data like tensor data, and also check the whole feed as one array with
    one more dimension.
    """
    check_tensor_data(info)
    shape = info.tensor_info.shape or ()
    if len(shape) >= MAX_RANK:
        raise RuleViolation("rank of a feed's tensor", limit=(len(shape), MAX_RANK - 1))
    check_tensor_info(
        TensorInfo((info.num_tensors, *shape), info.tensor_info.data_type)
    )


def check_metadata(metadata: Metadata) -> None:
    """Check that anchors and options have different names, and that anchors have
    handles.
    """
    anchors = metadata.anchors
    for index, anchor in enumerate(anchors):
        if not anchor.handle and anchor.type is not TensorType.UNKNOWN:
            violation = RuleViolation(
                f"{anchor.type.name} anchor {anchor.name!r} must have a handle"
            )
            raise violation.inside(f"[{index}]").inside("anchors")
        if len(set(anchor.programs)) != len(anchor.programs):
            violation = RuleViolation("a program is listed twice").inside("programs")
            raise violation.inside(f"[{index}]").inside("anchors")
    handles = (anchor.handle for anchor in anchors if anchor.handle)
    _check_unique(handles, "anchors", "handle {!r} is used twice".format)
    names = ((anchor.name, anchor.type.name) for anchor in anchors)
    _check_unique(
        names,
        "anchors",
        lambda pair: f"two {pair[1]} anchors have the name {pair[0]!r}",
    )
    for field in ("engine_options", "device_options"):
        options = (option.name for option in getattr(metadata, field))
        _check_unique(options, field, "option {!r} is set twice".format)


def _check_unique(
    items: Iterable[_Item], field: str, reason: Callable[[_Item], str]
) -> None:
    seen: set[Hashable] = set()
    for item in items:
        if item in seen:
            raise RuleViolation(reason(item)).inside(field)
        seen.add(item)


def check_data_size(info: TensorInfo, count: int, size: int) -> None:
    """Check that `size` bytes can hold `count` tensors of `info`.

    The check is exact for elements of fixed size. For STRING it checks that the data
    can hold at least the elements' lengths. So a small payload cannot announce more
    elements than it has bytes.
    """
    elements = count * info.element_count
    if info.data_type is DataType.STRING:
        needed = elements * STRING_HEAD_SIZE
        if size < needed or (not elements and size):
            raise RuleViolation(f"{size} bytes cannot hold {elements} strings")
        return
    needed = elements * info.data_type.item_size
    if size != needed:
        times = f"{count} x " if count != 1 else ""
        raise RuleViolation(
            f"got {size} bytes of data, expected {needed} for {times}{info}"
        )


def has_only_booleans(view: memoryview) -> bool:
    """Return whether all bytes are 0 or 1, because compiled code relies on that."""
    return not view.nbytes or int(np.frombuffer(view, np.uint8).max()) <= 1
