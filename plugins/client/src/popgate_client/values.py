"""Values of programs: tables by column, arrays with missing dimensions.

Tables are DataFrames, Arrow tables and lists of records. `popgate.ModelRunner` takes
the same values.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]


class UnevenRecords(ValueError):
    """Records of a table that do not have the same keys."""


def columns_of(value: Any) -> dict[str, Any] | None:
    """Return the columns of a table by name; None for a value that is no table.

    A table is a DataFrame of pandas or polars, an Arrow table or record batch, or a
    list of records with the same keys. Raises `UnevenRecords` for records that differ.
    """
    if isinstance(value, list | tuple):
        return _columns_of_records(value)
    if hasattr(value, "column_names") and hasattr(value, "column"):  # Arrow
        return {
            str(name): value.column(name).to_pylist() for name in value.column_names
        }
    if hasattr(value, "columns") and hasattr(value, "iloc"):  # pandas
        return {str(name): _of_series(value[name]) for name in value.columns}
    if hasattr(value, "columns") and hasattr(value, "get_column"):  # polars
        return {str(name): value[name].to_numpy() for name in value.columns}
    return None


def inputs_of_table(
    columns: Mapping[str, Any], inputs: Collection[str], texts: Collection[str] = ()
) -> Mapping[str, Any]:
    """Return the values of a table's columns by input.

    If the model has one input and no column has its name, the rows of the table are the
    rows of that input. A gap in a column for one of `texts`, the string inputs, is the
    empty string.
    """
    if len(inputs) != 1 or not columns or set(columns) & set(inputs):
        return {
            name: [_text(value) for value in values] if name in texts else values
            for name, values in columns.items()
        }
    (name,) = inputs
    if name in texts:
        columns = {key: [_text(v) for v in values] for key, values in columns.items()}
    return {name: [list(row) for row in zip(*columns.values(), strict=True)]}


def _text(value: Any) -> Any:
    """Return an element of a column of strings; None and NaN become the
    empty string.
    """
    is_gap = value is None or (isinstance(value, float) and value != value)
    return "" if is_gap else value


def _of_series(series: Any) -> Any:
    """Return the values of a column of pandas. Its own gaps (``pd.NA``) are None."""
    found = series.to_numpy()
    if found.dtype == object:
        found = found.copy()
        found[series.isna().to_numpy()] = None
    return found


def _columns_of_records(records: Any) -> dict[str, Any] | None:
    if not records or not isinstance(records[0], Mapping):
        return None
    names = list(records[0])
    for number, record in enumerate(records):
        if not isinstance(record, Mapping) or set(record) != set(names):
            msg = f"record {number} has not the same keys as the first: {names}"
            raise UnevenRecords(msg)
    return {str(name): [record[name] for record in records] for name in names}


def with_rank(array: Array, shape: Sequence[int] | None) -> Array:
    """Return an array with the dimensions of 1 that it lacks for a model's `shape`.

    They are added in front. If the model takes one element per row, as in ``[-1, 1]``,
    a list is its rows. An array that still does not fit is returned unchanged.
    """
    missing = 0 if shape is None else len(shape) - array.ndim
    if shape is None or missing <= 0:
        return array
    if array.ndim == 1 and shape[0] == -1 and all(dim == 1 for dim in shape[1:]):
        return array.reshape(array.shape + (1,) * missing)
    if all(dim in (1, -1) for dim in shape[:missing]):
        return array.reshape((1,) * missing + array.shape)
    return array


def without_buffers(value: Any) -> Any:
    """Return a value with `bytes` for other buffers, whose bytes NumPy would take for
    numbers. If the first element is no buffer, NumPy keeps the others as they are.
    """
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, list | tuple) and value:
        first = without_buffers(value[0])
        if first is not value[0]:
            return [first, *map(without_buffers, value[1:])]
    return value


def whole_numbers(value: Any, array: Array) -> Array:
    """Return the array of a list: whole numbers of Python if NumPy made floats of them
    because they need 64 bits.
    """
    if array.dtype.kind != "f":
        return array
    exact = np.asarray(value, dtype=object)
    if not all(isinstance(item, int | np.integer) for item in exact.reshape(-1)):
        return array
    return exact


def with_gaps(array: Array) -> Array:
    """Return floats for Python's numbers, with NaN for None; return other arrays
    unchanged. Raises OverflowError for a number that no float holds.
    """
    if array.dtype != object:
        return array
    flat = array.reshape(-1).tolist()
    if not all(item is None or isinstance(item, int | float) for item in flat):
        return array
    values = [np.nan if item is None else item for item in flat]
    try:
        return np.array(values, np.float64).reshape(array.shape)
    except OverflowError:
        raise OverflowError("a finite number is too large") from None


def as_integers(array: Array, dtype: np.dtype[Any]) -> Array:
    """Return whole numbers as integers of another type. Raises OverflowError for one
    that the type cannot hold.
    """
    if array.dtype == object:
        low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
        wrong = [item for item in array.reshape(-1) if not low <= item <= high]
    else:
        cast = array.astype(dtype)
        if cast.dtype.kind == array.dtype.kind and cast.itemsize >= array.itemsize:
            return cast
        wrong = array[cast != array].tolist()
    if wrong:
        raise OverflowError(f"{wrong[0]} is out of range")
    return array.astype(dtype)


def as_floats(array: Array, dtype: np.dtype[Any], infinity: float = np.inf) -> Array:
    """Return numbers as floats of another type. Raises OverflowError if a finite number
    would become infinite, as those from `infinity` on do.
    """
    with np.errstate(over="ignore"):
        cast = array.astype(dtype, copy=False)
    infinite = np.abs(cast) >= infinity
    if infinite.any() and not np.isinf(array)[infinite].all():
        raise OverflowError("a finite number is too large")
    return cast


def fixed_width(array: Array) -> Array:
    """Return byte strings as ``.npy`` holds them. Raises ValueError for strings that it
    cannot hold.
    """
    if any(item.endswith(b"\0") for item in array.reshape(-1)):
        raise ValueError("has strings that end in a zero byte, which .npy cannot hold")
    return array.astype(np.bytes_)
