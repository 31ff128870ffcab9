"""The base class of all views, and the function that finds an object's view."""

from __future__ import annotations

from typing import Any, ClassVar

import popir
from popart.enums import DataType, data_type_of


class View:
    """A view of an object of `popir`: equal to other views of the same object."""

    _below: Any
    _shows: ClassVar[type[Any] | None] = None
    _kinds: ClassVar[dict[type[Any], type[View]]] = {}

    def __init_subclass__(cls, shows: type[Any] | None = None) -> None:
        if shows is not None:
            View._kinds[shows] = cls

    def __init__(self, below: Any) -> None:
        self._below = below

    def __eq__(self, other: object) -> bool:
        return isinstance(other, View) and self._below is other._below

    def __hash__(self) -> int:
        return hash(id(self._below))


def shown(below: Any) -> Any:
    """Return the view of a graph, a tensor, an operator or an Ir."""
    return View._kinds[type(below)](below)


class TensorInfo:
    """Shape and type."""

    def __init__(self, spec: popir.Spec) -> None:
        self._spec = spec

    def shape(self) -> list[int]:
        """Return the dimensions."""
        return list(self._spec.shape)

    def metaShape(self) -> list[int]:  # noqa: N802 - the original's name
        """Return the shape of the tensor that this is a shard of."""
        return list(self._spec.meta_shape)

    def rank(self) -> int:
        """Return the number of dimensions."""
        return len(self._spec.shape)

    def nelms(self) -> int:
        """Return the number of elements."""
        count = 1
        for size in self._spec.shape:
            count *= size
        return count

    def nbytes(self) -> int:
        """Return the number of bytes."""
        return self.nelms() * self._spec.dtype.carrier.itemsize

    def dataType(self) -> DataType:  # noqa: N802 - the original's name
        """Return the type of elements."""
        return data_type_of(self._spec.dtype.name)

    def data_type(self) -> str:
        """Return the type of elements, such as `FLOAT`."""
        return self.dataType().name

    def data_type_lcase(self) -> str:
        """Return the type of elements, such as `float32`."""
        return self._spec.dtype.name

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorInfo) and self._spec == other._spec

    def __hash__(self) -> int:
        return hash(self._spec)

    def __repr__(self) -> str:
        return f"{self._spec.dtype.name.upper()} {self.shape()}"


class GraphId(str):
    """The id of a graph; empty for the main graph."""

    __slots__ = ()

    def str(self) -> Any:
        return self.__str__()

    @staticmethod
    def root() -> GraphId:
        """Return the id of the main graph."""
        return GraphId("")


class Region:
    """A box of a tensor's elements: from `lower` to `upper` along each axis."""

    def __init__(self, lower: Any, upper: Any, access: object = None) -> None:
        self._lower = [int(each) for each in lower]
        self._upper = [int(each) for each in upper]
        self._is_empty = False
        if len(self._lower) != len(self._upper):
            raise popir.IrError(f"the bounds {lower} and {upper} differ in rank")

    @staticmethod
    def getFull(shape: Any, access: object = None) -> Region:  # noqa: N802
        """Return all elements of a tensor of that shape."""
        dims = list(shape)
        return Region([0] * len(dims), dims)

    @staticmethod
    def getEmpty(rank: int) -> Region:  # noqa: N802 - the original's name
        empty = Region([0] * rank, [0] * rank)
        empty._is_empty = True
        return empty

    def lower(self) -> list[int]:
        """Return the first index along each axis."""
        return list(self._lower)

    def upper(self) -> list[int]:
        """Return the index after the last along each axis."""
        return list(self._upper)

    def rank(self) -> int:
        """Return the number of axes."""
        return len(self._lower)

    def nelms(self) -> int:
        """Return the number of elements."""
        count = 0 if self._is_empty else 1
        for low, high in zip(self._lower, self._upper, strict=True):
            count *= max(high - low, 0)
        return count

    def isEmpty(self) -> bool:  # noqa: N802 - the original's name
        return not self.nelms()

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Region)
            and (self._lower, self._upper) == (other._lower, other._upper)
            and self.isEmpty() == other.isEmpty()
        )

    def __hash__(self) -> int:
        return hash((tuple(self._lower), tuple(self._upper)))

    def __repr__(self) -> str:
        return f"L{self._lower} U{self._upper}"
