"""Data types: singletons that know their counterparts in Python, numpy and torch."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np

import popir
from popart.enums import DataType, data_type_of, name_of

np_dtype_float8_143 = popir.NP_FLOAT8_143
np_dtype_float8_152 = popir.NP_FLOAT8_152

_torch_names = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "float16", "float32"}
    | {"float64", "complex64", "complex128"}
)


#: The name `bool` is a data type here.
_Bool = builtins.bool


class dtype:  # noqa: N801
    """A data type. Each exists once; new ones cannot be made."""

    _below: popir.DType

    def __init__(self) -> None:
        raise TypeError(
            f"Cannot create {self.__module__}.dtype instances directly; use the "
            "instances of popxl.dtypes, or dtype.as_dtype"
        )

    @classmethod
    def _make(cls, below: popir.DType) -> dtype:
        self = cls.__new__(cls)
        self._below = below
        return self

    @property
    def _pb_dtype(self) -> DataType:
        return data_type_of(self._below.name)

    @property
    def name(self) -> str:
        """Return the name, such as `float32`."""
        return self._below.name

    @property
    def _name(self) -> str:
        return self._below.name

    @property
    def is_complex(self) -> _Bool:
        """Return whether it is complex."""
        return self._below.is_complex

    @property
    def is_int(self) -> _Bool:
        """Return whether it is an integer; bool is not."""
        return self._below.is_int

    @property
    def is_floating_point(self) -> _Bool:
        """Return whether it is a floating point type, float8 included."""
        return self._below.is_float

    @property
    def is_signed(self) -> _Bool:
        """Return whether it has negative values."""
        return self._below.is_signed

    def as_numpy(self) -> np.dtype[Any]:
        """Return the numpy type."""
        return self._below.numpy

    def as_torch(self) -> Any:
        """Return the torch type; TypeError if there is none."""
        if self.name not in _torch_names:
            raise TypeError(f"dtype `{self.name}` does not have a torch equivalent")
        import torch  # type: ignore[import-not-found, unused-ignore]

        return getattr(torch, self.name)

    @classmethod
    def from_name(cls, name: str) -> dtype:
        """Return the type called `name`; ValueError if there is none."""
        found = _STR_TO_POPXL.get(name)
        if found is None:
            raise ValueError(f"There is no data type called {name!r}")
        return found

    @classmethod
    def as_dtype(cls, type_like: Any) -> dtype:
        """Return the type for a name, a Python, numpy or torch type, or any object with
        a `dtype`; ValueError for others.
        """
        found = _known(type_like)
        if found is not None:
            return found
        try:
            found = _NP_TO_POPXL.get(np.dtype(type_like))
        except TypeError:
            found = None
        if found is None and hasattr(type_like, "dtype"):
            found = _known(type_like.dtype)
        if found is None:
            raise ValueError(f"There is no data type for {type_like!r}")
        return found

    def __repr__(self) -> str:
        return f"popxl.dtypes.{self.name}"

    def __str__(self) -> str:
        return repr(self)

    def __deepcopy__(self, memo: Any) -> dtype:
        return self

    def __copy__(self) -> dtype:
        return self


def _known(value: Any) -> dtype | None:
    if isinstance(value, dtype):
        return value
    if isinstance(value, popir.DType):
        return _BELOW[value]
    if isinstance(value, DataType):
        return _STR_TO_POPXL.get(name_of(value))
    try:
        for table in (_STR_TO_POPXL, _PY_TO_POPXL, _NP_TO_POPXL):
            if value in table:
                return table[value]
    except TypeError:  # not hashable: no type
        return None
    text = str(value)
    if text.startswith("torch."):
        return _STR_TO_POPXL.get(text.removeprefix("torch."))
    return None


_BELOW: dict[popir.DType, dtype] = {each: dtype._make(each) for each in popir.DTYPES}
_STR_TO_POPXL: dict[str, dtype] = {each.name: made for each, made in _BELOW.items()}
_NP_TO_POPXL: dict[np.dtype[Any], dtype] = {
    each.numpy: made for each, made in _BELOW.items()
}

bool = _STR_TO_POPXL["bool"]
int8 = _STR_TO_POPXL["int8"]
int16 = _STR_TO_POPXL["int16"]
int32 = _STR_TO_POPXL["int32"]
int64 = _STR_TO_POPXL["int64"]
uint8 = _STR_TO_POPXL["uint8"]
uint16 = _STR_TO_POPXL["uint16"]
uint32 = _STR_TO_POPXL["uint32"]
uint64 = _STR_TO_POPXL["uint64"]
float8_143 = _STR_TO_POPXL["float8_143"]
float8_152 = _STR_TO_POPXL["float8_152"]
float16 = _STR_TO_POPXL["float16"]
float32 = _STR_TO_POPXL["float32"]
float64 = _STR_TO_POPXL["float64"]
complex64 = _STR_TO_POPXL["complex64"]
complex128 = _STR_TO_POPXL["complex128"]
half, float, double = float16, float32, float64

_PY_TO_POPXL: dict[Any, dtype] = {builtins.bool: bool, builtins.float: float32}


def __getattr__(name: str) -> Any:
    # Importing torch takes a second, so do it only when its types are needed.
    if name != "_PT_TO_POPXL":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import torch  # type: ignore[import-not-found, unused-ignore]
    except ModuleNotFoundError:
        found: dict[Any, dtype] = {}
    else:
        found = {getattr(torch, n): _STR_TO_POPXL[n] for n in sorted(_torch_names)}
    globals()[name] = found
    return found
