"""Useful values for the columns of inputs, found in encoders, scalers and trees.

A model of columns gives the same result for nearly all synthetic rows: it knows none of
the words, and all numbers are far outside its range. Some models fail on unknown words.
So this module traces the constants that a node compares with back to their column of
the input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate, islice, zip_longest
from typing import Any, TypeAlias

Column: TypeAlias = tuple[str, int]
"""An input and the number of a column."""
Values: TypeAlias = tuple[float | str, ...]

MAX_VALUES = 64
"""The most values of one column."""
_AROUND = (0.0, -2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
"""Deviations to try around the mean that a scaler subtracts."""
_PASSED_ON = frozenset(
    {"Cast", "Flatten", "Identity", "Imputer", "Reshape", "Squeeze", "Unsqueeze"}
    | {"StringNormalizer", "Tokenizer"}
)
_MOST_STEPS = 64
_MOST_TOLD = 10_000
"""The most values of one node that are examined, because a forest has a million."""
_WORDS = ("cats_strings", "keys_strings", "pool_strings")
_NUMBERS = ("cats_int64s", "keys_int64s", "keys_floats")


def column_values(model: Any) -> dict[Column, Values]:
    """Return the values that the model distinguishes, by input column."""
    graph = _Graph(model.graph)
    found: dict[Column, dict[float | str, None]] = {}
    for node in model.graph.node:
        sources: dict[int, Column | None] = {}
        for column, value in islice(_told(node), _MOST_TOLD):
            if column not in sources:
                sources[column] = graph.source(node.input[0], column)
            source = sources[column]
            if source is not None:
                values = found.setdefault(source, {})
                if len(values) < MAX_VALUES:
                    values[value] = None
    return {column: tuple(values) for column, values in found.items()}


def _told(node: Any) -> Iterator[tuple[int, float | str]]:
    """Yield the values that `node` knows for the columns of its input."""
    if node.domain != "ai.onnx.ml" and node.op_type != "TfIdfVectorizer":
        return
    given = {a.name: a for a in node.attribute}
    for name in _WORDS:
        if name in given:
            yield from (
                (0, text.decode(errors="replace")) for text in given[name].strings
            )
    for name in _NUMBERS:
        if name in given:
            numbers = (*given[name].ints, *given[name].floats)
            yield from ((0, float(number)) for number in numbers)
    if node.op_type == "Scaler" and {"offset", "scale"} <= given.keys():
        pairs = zip(given["offset"].floats, given["scale"].floats, strict=False)
        for column, (offset, scale) in enumerate(pairs):
            yield from ((column, offset + d / (scale or 1.0)) for d in _AROUND)
    if node.op_type.startswith("TreeEnsemble") and "nodes_featureids" in given:
        for column, limit in _limits(given):
            yield column, limit
            yield column, limit + 1.0


def _limits(given: Mapping[str, Any]) -> Iterator[tuple[int, float]]:
    """Yield each column with the values that the trees compare it with."""
    features = given["nodes_featureids"].ints
    if "nodes_values" not in given:
        return  # the newest kind has its limits in a tensor
    limits = given["nodes_values"].floats
    modes = given["nodes_modes"].strings if "nodes_modes" in given else ()
    for column, limit, mode in zip_longest(features, limits, modes):
        if mode != b"LEAF" and column is not None and limit is not None:
            yield column, limit


class _Graph:
    """Sources of the columns of values in a graph."""

    def __init__(self, graph: Any) -> None:
        self._makers = {name: node for node in graph.node for name in node.output}
        self._constants = {t.name: t for t in graph.initializer}
        self._inputs = {
            value.name: list(value.type.tensor_type.shape.dim)
            for value in graph.input
            if value.name not in self._constants
        }

    def source(self, name: str, column: int) -> Column | None:
        """Return the input column that becomes `column` of the value `name`."""
        for _ in range(_MOST_STEPS):
            if name in self._inputs:
                return name, column
            node = self._makers.get(name)
            if node is None or not node.input:
                return None
            name = node.input[0]
            if node.op_type == "Concat":
                widths = [self._width(part) for part in node.input]
                ends = list(accumulate(w or 1 for w in widths))
                place = next((i for i, end in enumerate(ends) if column < end), None)
                if place is None or None in widths[:place]:
                    return None
                name, column = node.input[place], column - ([0, *ends][place])
            elif node.op_type in ("Gather", "ArrayFeatureExtractor"):
                chosen = self._integers(node.input[1])
                if not 0 <= column < len(chosen):
                    return None
                column = chosen[column]
            elif node.op_type not in _PASSED_ON:
                return None
        return None

    def _width(self, name: str, steps: int = _MOST_STEPS) -> int | None:
        """Return the number of columns of a value; None if it is unknown."""
        if name in self._inputs:
            dims = self._inputs[name]
            return (dims[1].dim_value or None) if len(dims) > 1 else 1
        node = self._makers.get(name)
        if node is None or not node.input or not steps:
            return None
        if node.op_type == "OneHotEncoder":
            return sum(len(a.strings) + len(a.ints) for a in node.attribute)
        if node.op_type in ("Gather", "ArrayFeatureExtractor"):
            return len(self._integers(node.input[1])) or None
        if node.op_type == "Reshape" and (shape := self._integers(node.input[1])):
            return shape[-1] if shape[-1] > 0 else None
        if node.op_type == "Concat":
            widths = [self._width(part, steps - 1) for part in node.input]
            known = [width for width in widths if width is not None]
            return sum(known) if len(known) == len(widths) else None
        if node.op_type in _PASSED_ON or node.op_type in ("Scaler", "LabelEncoder"):
            return self._width(node.input[0], steps - 1)
        return None

    def _integers(self, name: str) -> list[int]:
        from onnx import numpy_helper

        tensor = self._constants.get(name)
        if tensor is None or tensor.data_location == tensor.EXTERNAL:
            return []
        return [int(i) for i in numpy_helper.to_array(tensor).reshape(-1).tolist()]
