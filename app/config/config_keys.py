"""Declaration and reading of a model's option keys.

A section of ``config.toml`` is a frozen dataclass; pydantic validates it when it is
read, and only then. A field is a key: its type says which values are allowed, and `key`
gives its default and its purpose. To add an option, add a field::

    @section
    @dataclass(frozen=True, slots=True)
    class Warmup:
        count: Annotated[int, between(1, 100)] = key(1, "runs of each batch size")

    @section
    @dataclass(frozen=True, slots=True)
    class ModelConfig:
        warmup: Warmup = key(Warmup(), "what runs before it is ready")

If a type is not enough, pass a function to `checked`. The function receives the value
as written. It returns the value to keep, or raises ValueError with the words that
follow "must be". A section checks conditions between its keys in its ``__post_init__``,
which raises ValueError with a whole sentence.
"""

from __future__ import annotations

import difflib
import os
import stat
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeAlias, TypeVar, get_args, get_type_hints

import pydantic
from pydantic import AfterValidator, ConfigDict, PlainValidator, TypeAdapter
from pydantic_core import ErrorDetails, PydanticCustomError

T = TypeVar("T")
S = TypeVar("S", bound=type)

#: Pydantic's kinds of errors, in the words that follow "must be".
_WANTED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dataclass_type": "a table",
    "dict_type": "a table",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "more than {gt}",
    "greater_than_equal": "at least {ge}",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "mapping_type": "a table",
    "must_be": "{wanted}",
    "must_be_hidden": "{wanted}",
    "string_too_long": "a string of at most {max_length} characters",
    "string_too_short": "a string of at least {min_length} characters",
    "string_type": "a string",
    "too_long": "of at most {max_length} entries",
    "too_short": "of at least {min_length} entries",
    "tuple_type": "a list",
}


class KeyProblem(ValueError):
    """Invalid keys; the message names each, as in ``warmup.count``."""


class ModelConfigError(Exception):
    """An invalid ``config.toml``; the message names file and key."""


def section(kind: S) -> S:
    """Turn a dataclass into a section for `read_section`: an unknown key is
    an error.
    """
    config = ConfigDict(extra="forbid", strict=False, allow_inf_nan=False)
    kind.__pydantic_config__ = config  # type: ignore[attr-defined]
    return kind


def key(default: Any, purpose: str, *, hidden: bool = False) -> Any:
    """Return a field of a section. A mutable default is given as its type.

    Messages show only numbers that were written in a `hidden` field.
    """
    metadata = {"purpose": purpose, "hidden": hidden}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


def default_of(item: Field[Any]) -> Any:
    """Return the value of a key that is missing in the file."""
    if item.default_factory is not MISSING:
        return item.default_factory()
    return item.default


def section_of(kind: type[Any], name: str) -> type[Any] | None:
    """Return the class of the section, or list of sections, in key `name`."""
    return _dataclass_in(get_type_hints(kind)[name])


def _dataclass_in(hint: Any) -> type[Any] | None:
    if isinstance(hint, type) and is_dataclass(hint):
        return hint if hasattr(hint, "__pydantic_config__") else None
    return next(filter(None, map(_dataclass_in, get_args(hint))), None)


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read_section(kind: type[T], document: Mapping[str, Any]) -> T:
    """Return the section of a parsed document. Raises `KeyProblem`, which names every
    key that is wrong.
    """
    try:
        found: T = _adapter(kind).validate_python(dict(document))  # type: ignore[arg-type]
        return found
    except pydantic.ValidationError as e:
        problems = [
            _problem(kind, each)
            for each in e.errors(include_url=False)
            # Entries that are wrong, which have a problem of their own, do not count.
            if each["type"] != "too_short" or not each["input"]
        ]
    most = 5
    more = f" (and {len(problems) - most} more)" if len(problems) > most else ""
    raise KeyProblem("; ".join(problems[:most]) + more)


def read_bounded(path: Path, most: int) -> bytes:
    """Return at most `most` bytes of a regular file, without waiting for a pipe. Raise
    `KeyProblem`, and OSError.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise KeyProblem("it is not a regular file")
        data = file.read(most + 1)
    if len(data) > most:
        raise KeyProblem(f"it has more than {most} bytes")
    return data


def read_document(kind: type[T], data: bytes) -> T:
    """Return the section that is a TOML document. Raise `KeyProblem`."""
    try:
        document = tomllib.loads(data.decode())
    except (ValueError, RecursionError) as e:  # TOMLDecodeError, UnicodeDecodeError
        raise KeyProblem(f"not TOML: {e}") from None
    return read_section(kind, document)


def _problem(kind: type[Any], error: ErrorDetails) -> str:
    *around, last = [*error["loc"]] or [""]
    path = ".".join(_shown_part(part) for part in error["loc"])
    if error["type"] == "unexpected_keyword_argument":
        inner: type[Any] = kind
        for part in around:  # list indices and entry names stay in the section
            if part in {item.name for item in fields(inner)}:
                inner = section_of(inner, str(part)) or inner
        prefix = ".".join(map(_shown_part, around)) + ": " if around else ""
        return prefix + _unknown(str(last), [item.name for item in fields(inner)])
    context = error.get("ctx", {})
    if error["type"] == "value_error":  # from a __post_init__: a whole sentence
        is_whole = not path or isinstance(context["error"], KeyProblem)
        return str(context["error"]) if is_whole else f"{path}: {context['error']}"
    wanted = wanted_by(error)
    if error["type"] == "must_be_hidden":
        return f"{path} must be {wanted}"
    if error["type"] == "tuple_type" and isinstance(error["input"], Mapping):
        return (
            f"{path} must be a list, got a table; write one entry of the list as "
            f"[[{path}]]"
        )
    if _is_hidden(kind, error):
        return f"{path} must be {wanted}"
    return f"{path} must be {wanted}, got {shown_value(error['input'])}"


def wanted_by(error: ErrorDetails) -> str:
    """Return the words that follow "must be" for an error of pydantic."""
    bounds = {
        k: f"{v:.12g}" if isinstance(v, float) else v
        for k, v in error.get("ctx", {}).items()
    }
    wanted = _WANTED.get(error["type"])
    return wanted.format_map(bounds) if wanted else error["msg"]


def _is_hidden(kind: type[Any], error: ErrorDetails) -> bool:
    """Return whether the wrong value may be, or contain, a secret."""
    first, *inner = error["loc"] or [""]
    if not any(i.name == first and i.metadata.get("hidden") for i in fields(kind)):
        return False
    return not inner or not isinstance(error["input"], int | float)


def _unknown(name: str, known: list[str]) -> str:
    if close := difflib.get_close_matches(name[:100], known, n=1):
        return f"unknown key {shown_value(name)} (did you mean {close[0]}?)"
    return f"unknown key {shown_value(name)}; known keys are {', '.join(sorted(known))}"


def _shown_part(part: str | int) -> str:
    text = str(part)
    return text if len(text) <= 100 else text[:97] + "..."


def shown_value(value: Any) -> str:
    """Return a value for a message, in 100 characters."""
    try:
        text = repr(value)
    except ValueError:  # the number has more digits than Python writes
        return f"a {type(value).__name__} that is too large"
    return text if len(text) <= 100 else text[:97] + "..."


# -- conditions that types alone do not express


def checked(check: Callable[[Any], Any], *, hidden: bool = False) -> PlainValidator:
    """Return a key whose value `check` converts.

    A `hidden` one is a secret: messages do not show it.
    """

    def validate(value: Any) -> Any:
        try:
            return check(value)
        except KeyProblem:
            raise  # which names its keys
        except ValueError as e:
            raise must_be(str(e), hidden=hidden) from None

    return PlainValidator(validate)


def must_be(wanted: str, *, hidden: bool = False) -> PydanticCustomError:
    """Return the error for a value of the wrong kind."""
    kind = "must_be_hidden" if hidden else "must_be"
    return PydanticCustomError(kind, "{wanted}", {"wanted": wanted})


def between(low: float, high: float) -> Any:
    """Return a number between two, both included and never NaN. It is whole if the key
    is an `int`.
    """
    return pydantic.Field(strict=True, ge=low, le=high)


def text(most: int = 1000, least: int = 0) -> Any:
    """Return a string of so many characters."""
    return pydantic.Field(strict=True, min_length=least, max_length=most)


def entries(most: int, least: int = 0) -> Any:
    """Return a list or table of so many entries."""
    return pydantic.Field(min_length=least, max_length=most)


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(set(values)) != len(values):
        raise must_be("a list without duplicates")
    return values


#: A list without repeated entries.
DISTINCT = AfterValidator(_distinct)


#: The shape of a tensor, within the default limits of requests (`app.limits`).
ShapeKey: TypeAlias = Annotated[
    tuple[Annotated[int, between(0, 1 << 31)], ...], entries(32)
]
