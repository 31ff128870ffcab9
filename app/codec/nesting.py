"""Limits of a document's nesting and of the values in its lists."""

from __future__ import annotations

from app.errors import BodyTooLarge, NestedTooDeep
from app.limits import Limits

# A list counts as this many values, because even an empty list takes memory.
LIST_WEIGHT = 8


def check_depth(value: object, limits: Limits, depth: int = 0) -> None:
    """Refuse lists and objects nested deeper than the limit. Does not recurse."""
    level: list[object] = [value]
    while level:
        deeper: list[object] = []
        for item in level:
            if isinstance(item, dict):
                deeper += [v for v in item.values() if isinstance(v, dict | list)]
            elif isinstance(item, list):
                deeper += [v for v in item if isinstance(v, dict | list)]
        level = deeper
        depth += 1
        if level and depth >= limits.max_json_depth:
            raise too_deep(limits)


def too_deep(limits: Limits) -> NestedTooDeep:
    return NestedTooDeep(
        f"JSON nesting depth exceeds maximum allowed limit ({limits.max_json_depth})"
    )


def too_many_values(limits: Limits) -> BodyTooLarge:
    return BodyTooLarge(
        f"the lists of the document hold more than {limits.max_document_values} "
        f"values (a list counts as {LIST_WEIGHT}); send large tensors as binary data"
    )


def too_many_strings(limits: Limits) -> BodyTooLarge:
    return BodyTooLarge(
        f"the document has more than {limits.max_strings} strings, which is the limit"
    )
