"""Columns of the DataFrame that an estimator of scikit-learn was fitted on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np

from app.cli.errors import EXIT_USAGE, CommandError
from popgate_tools.packed import library

#: Value for an empty string in a column: an empty string, or a gap of pandas or Python.
Gap = Literal["", "nan", "None"]
#: Type of string columns if the steps do not show more.
_ANY_TEXT: Final = "BYTES"
_NUMBER: Final = "FP64"
_SIZES: Final = {
    "bool": "BOOL", "int8": "INT8", "int16": "INT16", "int32": "INT32",
    "int64": "INT64", "uint8": "UINT8", "uint16": "UINT16", "uint32": "UINT32",
    "uint64": "UINT64", "float16": "FP16", "float32": "FP32", "float64": "FP64",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Column:
    """A column. `values` are examples of its values. `is_category` is true for the
    dtype `category` of pandas. `is_known` is false if the type is a guess.
    """

    name: str
    datatype: str
    values: tuple[Any, ...] = ()
    gap: Gap = "nan"
    is_category: bool = False
    is_known: bool = True

    @property
    def example(self) -> Any:
        """Return a value of the column."""
        empty = {_ANY_TEXT: "", "BOOL": False}.get(self.datatype, 0)
        return self.values[0] if self.values else empty


class UnknownType(Exception):
    """A step that does not state its inputs; the message is its name."""


def columns_of(model: Any, names: Sequence[str]) -> list[Column]:
    """Return the columns that a fitted estimator takes, by the first steps that receive
    them.

    A column that no step takes is not among them. Raises `UnknownType`.
    """
    found = _of_step(model, names)
    return [found[name] for name in names if name in found]


def columns_of_sample(frame: Any, names: Sequence[str], file: Path) -> list[Column]:
    """Return the columns by the types of a DataFrame. Raises `CommandError`."""
    missing = [name for name in names if name not in frame.columns]
    if missing:
        msg = (
            f"--sample {file}: the model also takes {', '.join(missing)}; add "
            "these columns"
        )
        raise CommandError(msg, EXIT_USAGE)
    return [_of_series(name, frame[name], file) for name in names]


def read_sample(file: Path, most: int = 1000) -> Any:
    """Return the first rows of a table as a DataFrame. Raises `CommandError`."""
    pd = library("pandas")
    readers = {
        ".csv": lambda: pd.read_csv(file, nrows=most),
        ".parquet": lambda: pd.read_parquet(file)[:most],
        ".jsonl": lambda: pd.read_json(file, lines=True, nrows=most),
    }
    read = readers.get(file.suffix)
    if read is None:
        msg = f"--sample {file}: expected .csv, .parquet or .jsonl"
        raise CommandError(msg, EXIT_USAGE)
    try:
        return read()
    except (OSError, ValueError, ImportError) as error:
        raise CommandError(f"--sample {file}: {error}", EXIT_USAGE) from None


def _of_step(step: Any, names: Sequence[str]) -> dict[str, Column]:
    if hasattr(step, "transformers_"):  # ColumnTransformer
        return _of_transformers(step, names)
    if hasattr(step, "steps"):
        return _of_pipeline([each for _, each in step.steps], names)
    if hasattr(step, "transformer_list"):  # FeatureUnion
        return _merged(_of_step(each, names) for _, each in step.transformer_list)
    if isinstance(step, str) or step is None:  # passthrough
        return {name: Column(name, _NUMBER, is_known=False) for name in names}
    known = getattr(step, "categories_", None)
    if isinstance(known, list) and len(known) == len(names):
        return {
            n: _of_categories(n, values, step)
            for n, values in zip(names, known, strict=True)
        }
    filled = getattr(step, "statistics_", None)
    if filled is not None and len(filled) == len(names):  # SimpleImputer
        return {
            n: Column(n, _ANY_TEXT, (value,)) if isinstance(value, str)
            else Column(n, _NUMBER, is_known=False)
            for n, value in zip(names, filled, strict=True)
        }  # fmt: skip
    if hasattr(step, "analyzer"):  # a vectorizer takes one column of strings
        return {name: Column(name, _ANY_TEXT, gap="") for name in names}
    module, is_own = type(step).__module__.partition(".")[0], _is_any(step)
    if module not in ("sklearn", "lightgbm", "xgboost") or is_own:
        raise UnknownType(type(step).__name__)
    return {name: Column(name, _NUMBER, is_known=False) for name in names}


def _is_any(step: Any) -> bool:
    """Return whether a step of scikit-learn takes columns of any type."""
    is_function = type(step).__name__ == "FunctionTransformer"
    if is_function and getattr(step, "func", None) is None:
        return False  # passthrough, as a fitted ColumnTransformer writes it
    return is_function or getattr(step, "is_categorical_", None) is not None


def _of_transformers(step: Any, names: Sequence[str]) -> dict[str, Column]:
    places = step._transformer_to_input_indices
    return _merged(
        _of_step(inner, [names[at] for at in places[name]])
        for name, inner, _ in step.transformers_
        if places.get(name) and not (isinstance(inner, str) and inner == "drop")
    )


def _of_pipeline(steps: Sequence[Any], names: Sequence[str]) -> dict[str, Column]:
    """Return the type of a column after an imputer; the encoder that follows knows the
    values.
    """
    first, *others = [s for s in steps if not isinstance(s, str) and s is not None]
    found = _of_step(first, names)
    if not hasattr(first, "statistics_") or not others:
        return found
    known = getattr(others[0], "categories_", None)
    if not isinstance(known, list) or len(known) != len(names):
        return found
    for name, values in zip(names, known, strict=True):
        encoded = _of_categories(name, values, others[0])
        if encoded.datatype == found[name].datatype:
            found[name] = replace(encoded, gap=found[name].gap)
    return found


def _merged(parts: Iterable[dict[str, Column]]) -> dict[str, Column]:
    """Merge the facts that several steps know about one column."""
    found: dict[str, Column] = {}
    for part in parts:
        for name, column in part.items():
            before = found.get(name)
            if before is None or (column.is_known and not before.is_known):
                found[name] = column
    return found


def _of_categories(name: str, values: Any, step: Any) -> Column:
    given = np.asarray(values)
    if given.dtype.kind != "O":
        datatype = _SIZES.get(str(given.dtype), _ANY_TEXT)
        gaps = given.dtype.kind == "f"
        known = given[~np.isnan(given)] if gaps else given
        return Column(name, datatype, tuple(known.tolist()))
    texts = tuple(value for value in given.tolist() if isinstance(value, str))
    others = [value for value in given.tolist() if not isinstance(value, str)]
    if any(value is not None and value == value for value in others):
        raise UnknownType(f"{type(step).__name__}, which has values of several types")
    gap: Gap = "None" if None in others else "" if "" in texts else "nan"
    return Column(name, _ANY_TEXT, texts, gap)


def _of_series(name: str, series: Any, file: Path) -> Column:
    given = series.dropna()
    dtype = str(getattr(series.dtype, "numpy_dtype", series.dtype))
    is_category = dtype == "category"
    if is_category:
        given = given.astype(given.dtype.categories.dtype)
        dtype = str(given.dtype)
    some = tuple(dict.fromkeys(given.head(100).tolist()))
    if dtype in _SIZES and not (len(given) < len(series) and dtype[:5] != "float"):
        return Column(name, _SIZES[dtype], some, is_category=is_category)
    if dtype in _SIZES and dtype != "bool":  # whole numbers with gaps
        return Column(name, _NUMBER, some, is_category=is_category)
    if len(given) and all(isinstance(value, str) for value in given):
        gap: Gap = "" if "" in set(given) else "nan"
        return Column(name, _ANY_TEXT, some, gap, is_category)
    msg = f"--sample {file}: column {name!r} of {series.dtype} is neither numbers "
    msg += "nor strings; convert it before the pipeline is fitted"
    raise CommandError(msg, EXIT_USAGE)
