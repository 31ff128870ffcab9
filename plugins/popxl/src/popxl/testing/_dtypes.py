"""Properties of data types for tests."""

from __future__ import annotations

from popxl import dtypes


def get_all_dtypes() -> list[dtypes.dtype]:
    """Return integers, floating point and complex types; not bool."""
    return [each for each in dtypes._BELOW.values() if each is not dtypes.bool]


def get_all_int_dtypes(
    include_signed: bool = True, include_unsigned: bool = True
) -> list[dtypes.dtype]:
    """Return the integers."""
    return [
        each
        for each in get_all_dtypes()
        if each.is_int
        and ((each.is_signed and include_signed) or
             (not each.is_signed and include_unsigned))
    ]  # fmt: skip
