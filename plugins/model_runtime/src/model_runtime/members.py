"""Public members of the original's structs.

An assignment copies the value and refuses values of a wrong type. help() describes each
member.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Self, TypeVar, overload

from model_runtime.arguments import named
from popef.errors import WrongType

Held = TypeVar("Held")
Given = TypeVar("Given")


class Member(Generic[Held, Given]):
    """One member. `take` converts an assigned value to the stored one, and raises
    WrongType or WrongOption. `default` is the first value; `doc` is for help().
    """

    def __init__(self, take: Callable[[Given], Held], default: Any, doc: str) -> None:
        self.take = take
        self.default = default
        self.__doc__ = doc
        self._name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, owner: None, kind: type) -> Self: ...
    @overload
    def __get__(self, owner: Struct, kind: type) -> Held: ...

    def __get__(self, owner: Struct | None, kind: type) -> Self | Held:
        if owner is None:
            return self
        held: Held = owner._held[self._name]
        return held

    def __set__(self, owner: Struct, value: Given) -> None:
        owner._held[self._name] = named(self._name, self.take, value)

    def __repr__(self) -> str:
        return f"<Member {self._name}>"


class Struct:
    """Base of classes with members and no other attributes."""

    __slots__ = ("_held",)

    def __init__(self, **given: Any) -> None:
        self._held: dict[str, Any] = {}
        members = self._members()
        for name in given:
            if name not in members:
                raise WrongType(f"{type(self).__name__} has no member {name!r}")
        for name, member in members.items():
            setattr(self, name, given.get(name, member.default))

    @classmethod
    def _members(cls) -> dict[str, Member[Any, Any]]:
        return {k: v for k, v in vars(cls).items() if isinstance(v, Member)}

    def __copy__(self) -> Self:
        made = type(self).__new__(type(self))
        members = self._members()
        made._held = {k: members[k].take(v) for k, v in self._held.items()}
        return made

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in self._held.items())
        return f"{type(self).__name__}({values})"


class Options(Struct):
    """A configuration. Configurations with equal members are equal."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._held == self._held

    __hash__ = None  # type: ignore[assignment]
