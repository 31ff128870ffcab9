"""Kinds of descriptor fields: one definition each for packing and unpacking.

A kind converts a Python value into msgpack types (`pack`) and back (`unpack`). It
raises `RuleViolation` for any other value, by the same rule in both directions. Types
are strict: true is not a number, and a number is not text. A map has exactly the keys
of its record, in the record's order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from itertools import pairwise
from typing import Any, Protocol

from popef_io.errors import RuleViolation

U32_MAX = (1 << 32) - 1
S64_MAX = (1 << 63) - 1


class Kind(Protocol):
    """Kind of a field: the values that it may hold."""

    def pack(self, value: Any) -> Any:
        """Return `value` in a form that msgpack can hold."""

    def unpack(self, plain: Any) -> Any:
        """Return the value that `plain` stands for. `plain` was decoded from a file."""


class Text:
    """Unicode text of at most `limit` bytes in UTF-8. It may be required not to be
    empty.
    """

    def __init__(self, limit: int, *, may_be_empty: bool = True) -> None:
        self._limit = limit
        self._may_be_empty = may_be_empty

    def pack(self, value: Any) -> str:
        """Check and return `value`. Refuse lone surrogates."""
        if isinstance(value, str):
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise RuleViolation(f"not valid Unicode: {error.reason}") from None
        return self.unpack(value)

    def unpack(self, plain: Any) -> str:
        if not isinstance(plain, str):
            raise RuleViolation(f"expected a string, got {_kind_of(plain)}")
        if not plain and not self._may_be_empty:
            raise RuleViolation("must not be empty")
        size = len(plain) if plain.isascii() else len(plain.encode())
        if size > self._limit:
            raise RuleViolation("size in bytes", limit=(size, self._limit))
        return plain


class Integer:
    """A whole number from `lowest` to `highest`."""

    def __init__(self, lowest: int, highest: int) -> None:
        self._lowest = lowest
        self._highest = highest

    def pack(self, value: Any) -> int:
        """Check and return `value`. numpy's integers become Python's."""
        if not isinstance(value, int):
            try:
                value = operator.index(value)
            except TypeError:
                raise RuleViolation(
                    f"expected an integer, got {_kind_of(value)}"
                ) from None
        return self.unpack(value)

    def unpack(self, plain: Any) -> int:
        if type(plain) is not int:
            raise RuleViolation(f"expected an integer, got {_kind_of(plain)}")
        if plain < self._lowest:
            raise RuleViolation(f"expected at least {self._lowest}, got {plain}")
        if plain > self._highest:
            raise RuleViolation("value", limit=(plain, self._highest))
        return plain


class Flag:
    """True or false."""

    def pack(self, value: Any) -> bool:
        return self.unpack(value)

    def unpack(self, plain: Any) -> bool:
        if not isinstance(plain, bool):
            raise RuleViolation(f"expected true or false, got {_kind_of(plain)}")
        return plain


class Choice:
    """A member of an enumeration, held as its number."""

    def __init__(self, enumeration: type[Enum]) -> None:
        self._enumeration = enumeration
        self._member_by_number = {member.value: member for member in enumeration}

    def pack(self, value: Any) -> int:
        if not isinstance(value, self._enumeration):
            name = self._enumeration.__name__
            raise RuleViolation(f"expected {name}, got {_kind_of(value)}")
        number: int = value.value
        return number

    def unpack(self, plain: Any) -> Enum:
        if type(plain) is not int:
            raise RuleViolation(f"expected an integer, got {_kind_of(plain)}")
        member = self._member_by_number.get(plain)
        if member is None:
            known = ", ".join(f"{m.value} ({m.name})" for m in self._enumeration)
            raise RuleViolation(
                f"{plain} is not a {self._enumeration.__name__}; expected {known}"
            )
        return member


class Shape:
    """A tuple of dimensions, -1 for an unknown one; None for no shape at all."""

    def __init__(self, max_rank: int) -> None:
        self._max_rank = max_rank

    def pack(self, value: Any) -> list[int] | None:
        if value is None:
            return None
        dimensions = [_DIMENSION.pack(size) for size in _items(value)]
        self.unpack(dimensions)
        return dimensions

    def unpack(self, plain: Any) -> tuple[int, ...] | None:
        if plain is None:
            return None
        if type(plain) is not list:
            raise RuleViolation(f"expected a list or nil, got {_kind_of(plain)}")
        if len(plain) > self._max_rank:
            raise RuleViolation("rank", limit=(len(plain), self._max_rank))
        for size in plain:
            _DIMENSION.unpack(size)
        return tuple(plain)


class ListOf:
    """A tuple of at most `limit` items of one kind."""

    def __init__(self, item: Kind, limit: int) -> None:
        self.item = item
        self.limit = limit

    def pack(self, value: Any) -> list[Any]:
        items = _items(value)
        if len(items) > self.limit:
            raise RuleViolation("length", limit=(len(items), self.limit))
        return [self._each(self.item.pack, i, item) for i, item in enumerate(items)]

    def unpack(self, plain: Any) -> Any:
        if type(plain) is not list:
            raise RuleViolation(f"expected a list, got {_kind_of(plain)}")
        return self.read(len(plain), plain)

    def read(self, count: int, items: Iterable[Any]) -> Any:
        """Return the value of the field from `count` items, which are decoded one by
        one.
        """
        if count > self.limit:
            raise RuleViolation("length", limit=(count, self.limit))
        return tuple(
            self._each(self.item.unpack, i, item) for i, item in enumerate(items)
        )

    @staticmethod
    def _each(convert: Callable[[Any], Any], index: int, item: Any) -> Any:
        try:
            return convert(item)
        except RuleViolation as violation:
            raise violation.inside(f"[{index}]") from None


class MapOf(ListOf):
    """A mapping, stored as a list of [key, value] in the order of the keys."""

    def __init__(self, key: Kind, value: Kind, limit: int) -> None:
        super().__init__(Pair(key, value), limit)

    def pack(self, value: Any) -> list[Any]:
        if not isinstance(value, Mapping):
            raise RuleViolation(f"expected a mapping, got {_kind_of(value)}")
        return sorted(super().pack(list(value.items())))

    def read(self, count: int, items: Iterable[Any]) -> dict[Any, Any]:
        pairs = super().read(count, items)
        for (key, _), (following, _) in pairwise(pairs):
            if not key < following:
                raise RuleViolation(
                    f"key {following} follows key {key}; expected ascending keys"
                )
        return dict(pairs)


class Pair:
    """Two values of different kinds."""

    def __init__(self, first: Kind, second: Kind) -> None:
        self._first = first
        self._second = second

    def pack(self, value: Any) -> list[Any]:
        return [self._first.pack(value[0]), self._second.pack(value[1])]

    def unpack(self, plain: Any) -> tuple[Any, Any]:
        if type(plain) is not list or len(plain) != 2:
            raise RuleViolation(f"expected a list of two, got {_kind_of(plain)}")
        return self._first.unpack(plain[0]), self._second.unpack(plain[1])


class RecordKind:
    """A value class with its fields, stored as a map with exactly these keys in this
    order.
    """

    def __init__(
        self,
        cls: type,
        fields: Mapping[str, Kind],
        rule: Callable[[Any], None] | None = None,
    ) -> None:
        self.cls = cls
        self.fields = fields
        self._rule = rule
        self._kinds = tuple(fields.items())

    def pack(self, value: Any) -> dict[str, Any]:
        """Return `value` as a map. Also check its rule."""
        if not isinstance(value, self.cls):
            raise RuleViolation(f"expected {self.cls.__name__}, got {_kind_of(value)}")
        plain = {}
        for name, kind in self._kinds:
            try:
                plain[name] = kind.pack(getattr(value, name))
            except RuleViolation as violation:
                raise violation.inside(name) from None
        if self._rule:
            self._rule(value)
        return plain

    def unpack(self, plain: Any) -> Any:
        """Return the value of `plain`, which is a map as the decoder returns it: a list
        of (key, value).
        """
        if type(plain) is not PairList:
            raise RuleViolation(f"expected a map, got {_kind_of(plain)}")
        return self.read(len(plain), plain, lambda kind, item: kind.unpack(item))

    def read(
        self,
        count: int,
        pairs: Iterable[tuple[Any, Any]],
        unpack: Callable[[Kind, Any], Any],
    ) -> Any:
        """Return the value of `count` keys and their values, which `unpack` unpacks in
        turn.
        """
        if count != len(self._kinds):
            raise RuleViolation(f"expected {len(self._kinds)} fields, got {count}")
        values = []
        for (name, kind), (key, item) in zip(self._kinds, pairs, strict=False):
            if key != name:
                raise RuleViolation(f"expected field {name!r}, got {str(key)[:64]!r}")
            try:
                values.append(unpack(kind, item))
            except RuleViolation as violation:
                raise violation.inside(name) from None
        value = self.cls(*values)
        if self._rule:
            self._rule(value)
        return value


class PairList(list[tuple[Any, Any]]):
    """A decoded map: its pairs in the order of the file, with duplicate keys."""


_DIMENSION = Integer(-1, S64_MAX)


def _items(value: Any) -> list[Any]:
    if isinstance(value, (str, bytes, Mapping)):
        raise RuleViolation(f"expected a sequence, got {_kind_of(value)}")
    try:
        return list(value)
    except TypeError:
        raise RuleViolation(f"expected a sequence, got {_kind_of(value)}") from None


def _kind_of(value: Any) -> str:
    if value is None:
        return "nil"
    return "map" if type(value) is PairList else type(value).__name__
