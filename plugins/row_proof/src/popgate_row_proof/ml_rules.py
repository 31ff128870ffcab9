"""Rules for the rows of `ai.onnx.ml` operators.

Most of these operators read a matrix with one row for each request row. Some also
accept a vector and treat it as one row, so the rank matters.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from popgate_row_proof.call import OperatorCall, Rule, across
from popgate_row_proof.rules import same
from popgate_row_proof.values import (
    AbstractValue,
    Rows,
    Size,
    Unproven,
    matched,
    unknown,
)

ML = "ai.onnx.ml"
_SCALES = ("imputed_value_floats", "imputed_value_int64s", "offset", "scale")


def columns(call: OperatorCall) -> Iterable[AbstractValue]:
    """Return the values of operators that treat each column by its own setting."""
    return [AbstractValue(call.leading(2).shape)]


def scaled(call: OperatorCall) -> Iterable[AbstractValue]:
    """Return the same as `columns`, but also accept one setting for all columns."""
    found = (call.attribute(name) for name in _SCALES)
    settings = [max(len(a.floats), len(a.ints)) for a in found if a is not None]
    return same(call) if max(settings, default=0) <= 1 else columns(call)


def classified(call: OperatorCall) -> Iterable[AbstractValue]:
    """Return a label and the scores for each row of a matrix."""
    rows = call.leading(2).shape[0]
    return [AbstractValue((rows,)), AbstractValue((rows, _scores(call)))]


def _scores(call: OperatorCall) -> Size:
    labels = max(
        (_length(call.attribute(name)) for name in (
            "classlabels_int64s", "classlabels_ints", "classlabels_strings")),
        default=0,
    )  # fmt: skip
    return labels if labels > 2 else unknown()


def _length(attribute: Any) -> int:
    return 0 if attribute is None else max(len(attribute.ints), len(attribute.strings))


def regressed(call: OperatorCall) -> Iterable[AbstractValue]:
    """Return a few numbers for each row of a matrix."""
    rows = call.leading(2).shape[0]
    targets = call.number("n_targets", 0) or call.number("targets", 0)
    return [AbstractValue((rows, targets or unknown()))]


def encoded(call: OperatorCall) -> Iterable[AbstractValue]:
    """Apply `OneHotEncoder`, which adds a new last axis."""
    categories = max(
        _length(call.attribute(n)) for n in ("cats_int64s", "cats_strings")
    )
    return [AbstractValue((*call.input().shape, categories))]


def extracted(call: OperatorCall) -> Iterable[AbstractValue]:
    """Apply `ArrayFeatureExtractor`, which selects places along the last axis."""
    value, chosen = call.input(0), call.input(1)
    front = value.shape[:-1] or (1,)
    if chosen.axis is None:
        across(value, [len(value.shape) - 1])
        sizes = [size for size in chosen.shape if isinstance(size, int)]
        known = len(sizes) == len(chosen.shape)
        count = 1
        for size in sizes:
            count *= size
        return [AbstractValue((*front, count if known else unknown()))]
    if value.axis is not None:
        raise Unproven("selects rows by their number")
    rows = chosen.shape[chosen.axis]
    if not isinstance(rows, Rows) or any(
        size != 1 for size in chosen.shape if size is not rows
    ):
        raise Unproven("may put different rows together")
    return [AbstractValue((*front, rows))]


def vector(call: OperatorCall) -> Iterable[AbstractValue]:
    """Apply `FeatureVectorizer`, which joins columns. ONNX Runtime requires equal
    numbers of rows.
    """
    shapes = [value.shape for value in call.values]
    if any(len(shape) != 2 or not isinstance(shape[0], Rows) for shape in shapes):
        raise Unproven("expects a matrix with one row for each request row")
    rows = matched([shape[0] for shape in shapes], call.counts)
    if not isinstance(rows, Rows) or rows.each != 1:
        raise Unproven("expects a matrix with one row for each request row")
    return [AbstractValue((rows, unknown()))]


def text(call: OperatorCall) -> Iterable[AbstractValue]:
    """Apply `TfIdfVectorizer`, which returns numbers for each row of words."""
    rows = call.leading(2).shape[0]
    return [AbstractValue((rows, unknown()))]


def distances(call: OperatorCall) -> Iterable[AbstractValue]:
    """Apply `CDist`, which returns the distances of each row to a set of points."""
    points = call.input(1).shape
    rows = call.leading(2).shape[0]
    return [AbstractValue((rows, points[0]))]


LEARNING: Mapping[tuple[str, str], Rule] = {
    (ML, "ArrayFeatureExtractor"): extracted,
    (ML, "Binarizer"): same,
    (ML, "CategoryMapper"): same,
    (ML, "FeatureVectorizer"): vector,
    (ML, "Imputer"): scaled,
    (ML, "LabelEncoder"): same,
    (ML, "LinearClassifier"): classified,
    (ML, "LinearRegressor"): regressed,
    (ML, "Normalizer"): columns,
    (ML, "OneHotEncoder"): encoded,
    (ML, "SVMClassifier"): classified,
    (ML, "SVMRegressor"): regressed,
    (ML, "Scaler"): scaled,
    (ML, "TreeEnsemble"): regressed,
    (ML, "TreeEnsembleClassifier"): classified,
    (ML, "TreeEnsembleRegressor"): regressed,
    ("", "TfIdfVectorizer"): text,
    ("com.microsoft", "CDist"): distances,
}
