"""Tables as values by name: DataFrames, Arrow tables, lists of records."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from popgate.client.errors import InvalidRequest


def columns_of(value: Any) -> dict[str, Any] | None:
    """Return the columns of a table by name; None for a value that is no table.

    A table is a DataFrame of pandas or polars, an Arrow table or record batch, or a
    list of records with the same keys. Raises `InvalidRequest` for records that differ.
    """
    if isinstance(value, list | tuple):
        return _columns_of_records(value)
    if hasattr(value, "column_names") and hasattr(value, "column"):  # Arrow
        return {
            str(name): value.column(name).to_pylist() for name in value.column_names
        }
    if hasattr(value, "columns") and hasattr(value, "iloc"):  # pandas
        return {str(name): value[name].to_numpy() for name in value.columns}
    if hasattr(value, "columns") and hasattr(value, "get_column"):  # polars
        return {str(name): value[name].to_numpy() for name in value.columns}
    return None


def inputs_of_table(
    columns: Mapping[str, Any], inputs: Collection[str]
) -> Mapping[str, Any]:
    """Return the values of a table's columns by input.

    If the model has one input and no column has its name, the rows of the table are
    the rows of that input.
    """
    if len(inputs) != 1 or not columns or set(columns) & set(inputs):
        return columns
    (name,) = inputs
    return {name: [list(row) for row in zip(*columns.values(), strict=True)]}


def _columns_of_records(records: Any) -> dict[str, Any] | None:
    if not records or not isinstance(records[0], Mapping):
        return None
    names = list(records[0])
    for number, record in enumerate(records):
        if not isinstance(record, Mapping) or set(record) != set(names):
            msg = f"record {number} has not the same keys as the first: {names}"
            raise InvalidRequest(msg)
    return {str(name): [record[name] for record in records] for name in names}
