"""How the keys of a model's options are declared, read and checked.

A section of ``config.toml`` is a frozen dataclass. Each of its fields is one key, made
with `key`: its default, the check of its value, and what it is for. A section may be
the value of a key of another (`section`, `sections`). Adding an option is adding a
field::

    @dataclass(frozen=True, slots=True)
    class Warmup:
        count: int = key(1, integer(1, 100), "runs of each batch size")

    @dataclass(frozen=True, slots=True)
    class ModelConfig:
        warmup: Warmup = key(Warmup(), section(Warmup), "what runs before it is ready")

A check gets the value as it was written and returns it as it is kept. It raises
ValueError with the words that follow "must be": ``a whole number``. What two keys of a
section must fulfil together is checked in its ``__post_init__``, which raises
ValueError with a whole sentence.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields
from typing import Any, TypeAlias, TypeVar

from app.sizes import parse_size

T = TypeVar("T")
Check: TypeAlias = Callable[[Any], Any]


class KeyProblem(ValueError):
    """A key that cannot be used; `path` says which, as in ``warmup.count``."""

    def __init__(self, path: str, text: str) -> None:
        super().__init__(f"{path} {text}" if path else text)
        self.path = path
        self.text = text

    def within(self, name: str) -> KeyProblem:
        """The same problem, seen from the section around."""
        if not self.path:
            return KeyProblem("", f"{name}: {self.text}")
        return KeyProblem(f"{name}.{self.path}", self.text)


def key(default: Any, check: Check, purpose: str) -> Any:
    """A field of a section. A default that can be changed is given as its type."""
    metadata = {"check": check, "purpose": purpose}
    if hasattr(check, "kind"):
        metadata["kind"] = check.kind
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def purpose_of(item: Field[Any]) -> str:
    """What a key is for, as it was declared."""
    return str(item.metadata["purpose"])


def section_of(item: Field[Any]) -> type[Any] | None:
    """The class of the section, or of each of the sections, that a key holds."""
    return item.metadata.get("kind")


def default_of(item: Field[Any]) -> Any:
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default


def read_section(kind: type[T], document: Mapping[str, Any]) -> T:
    """The section of a parsed document. Raises `KeyProblem`."""
    known = {item.name: item for item in fields(kind)}  # type: ignore[arg-type]
    values: dict[str, Any] = {}
    for name, value in document.items():
        item = known.get(name)
        if item is None:
            raise KeyProblem("", _unknown(name, known))
        try:
            values[name] = item.metadata["check"](value)
        except KeyProblem as e:
            raise e.within(name) from None
        except ValueError as e:
            raise KeyProblem(name, f"must be {e}, got {_shown(value)}") from None
    try:
        return kind(**values)
    except KeyProblem:
        raise
    except ValueError as e:
        raise KeyProblem("", str(e)) from None


def _unknown(name: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(name[:100], known, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return (
        f"unknown key {_shown(name)}{hint}; known keys are {', '.join(sorted(known))}"
    )


def _shown(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # a number of more digits than Python writes
        return f"a {type(value).__name__} that is too large"
    return text if len(text) <= 100 else text[:97] + "..."


# -- checks


def section(kind: type[Any]) -> Check:
    """A table with the keys of `kind`."""

    def check(value: Any) -> Any:
        return read_section(kind, table(value))

    return _of(kind, check)


def sections(kind: type[Any], most: int = 100) -> Check:
    """A list of tables, each with the keys of `kind`; kept as a tuple."""

    def check(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, list) or len(value) > most:
            raise ValueError(f"a list of at most {most} tables")
        found = []
        for index, item in enumerate(value):
            try:
                found.append(read_section(kind, table(item)))
            except KeyProblem as e:
                raise e.within(str(index)) from None
        return tuple(found)

    return _of(kind, check)


def named_sections(kind: type[Any], most: int = 100) -> Check:
    """A table of name to table, each with the keys of `kind`."""

    def check(value: Any) -> dict[str, Any]:
        if len(table(value)) > most:
            raise ValueError(f"a table of at most {most} tables")
        found = {}
        for name, item in value.items():
            try:
                found[name] = read_section(kind, table(item))
            except KeyProblem as e:
                raise e.within(name) from None
            except ValueError as e:
                raise KeyProblem(name, f"must be {e}, got {_shown(item)}") from None
        return found

    return _of(kind, check)


def _of(kind: type[Any], check: Check) -> Check:
    """The check, which tells what it is made for (`section_of`)."""
    check.kind = kind  # type: ignore[attr-defined]
    return check


def integer(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError("a whole number")
        if not low <= value <= high:
            raise ValueError(f"between {low} and {high}")
        return value

    return check


def integers(low: int, high: int = 1 << 62) -> Check:
    """A list of different whole numbers, not empty; kept as a tuple."""
    one = integer(low, high)

    def check(value: Any) -> tuple[int, ...]:
        if not isinstance(value, list) or not value or len(value) > 1000:
            raise ValueError("a list of whole numbers")
        numbers = tuple(one(item) for item in value)
        if len(set(numbers)) != len(numbers):
            raise ValueError("a list without repetition")
        return numbers

    return check


def seconds(low: float, high: float) -> Check:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("a number of seconds")
        if not low <= value <= high:
            raise ValueError(f"between {low:g} and {high:g} seconds")
        return float(value)

    return check


def number(low: float, high: float) -> Check:
    def check(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError("a number")
        if not low <= value <= high:
            raise ValueError(f"between {low:g} and {high:g}")
        return float(value)

    return check


def boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def text(most: int = 1000) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or len(value) > most:
            raise ValueError(f"a text of at most {most} characters")
        return value

    return check


def one_of(*words: str) -> Check:
    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(" or ".join(f'"{word}"' for word in words))
        return str(value)

    return check


def size(low: int, high: int) -> Check:
    """Bytes, as a number or as in ``"256MiB"``."""
    wanted = (
        f'a size in bytes or as in "256MiB", from {_size_text(low)} to '
        f"{_size_text(high)}"
    )

    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | str):
            raise ValueError(wanted)
        try:
            found = parse_size(value)
        except ValueError:
            raise ValueError(wanted) from None
        if not low <= found <= high:
            raise ValueError(wanted)
        return found

    return check


def table(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("a table")
    return value


def _size_text(value: int) -> str:
    for unit in ("", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or value % 1024:
            return f"{value}{unit}"
        value //= 1024
    return f"{value}PiB"
