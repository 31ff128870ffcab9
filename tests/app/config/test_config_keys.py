"""How keys are declared and read: what a section makes of a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

import pytest
from pydantic import Strict, TypeAdapter, ValidationError

from app.config.config_keys import (
    DISTINCT,
    KeyProblem,
    ShapeKey,
    between,
    checked,
    default_of,
    entries,
    key,
    read_section,
    section,
    section_of,
    text,
)
from app.config.model_config import size
from app.limits import DEFAULT_LIMITS


def even_number(value: Any) -> int:
    if not isinstance(value, int) or value % 2:
        raise ValueError("an even number")
    return value


@section
@dataclass(frozen=True, slots=True)
class Inner:
    count: Annotated[int, between(1, 9)] = key(1, "how many")
    kind: Literal["a", "b"] = key("a", "which")

    def __post_init__(self) -> None:
        if self.kind == "b" and self.count > 5:
            raise ValueError("kind b has at most 5")


@section
@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner | None = key(None, "a table")
    several: Annotated[tuple[Inner, ...], entries(2)] = key((), "a list of tables")
    named: Annotated[Mapping[str, Inner], entries(2)] = key(dict, "tables by name")
    free: Mapping[str, Any] = key(dict, "anything")
    share: Annotated[float, between(0, 1)] = key(0.0, "a number")
    word: Annotated[str, text(3)] = key("", "a text")
    flag: Annotated[bool, Strict()] = key(False, "a boolean")
    memory: Annotated[int, size(1 << 20, 1 << 30)] = key(1 << 20, "bytes")
    even: Annotated[int, checked(even_number)] = key(0, "what a function checks")
    numbers: Annotated[
        tuple[Annotated[int, between(0, 9)], ...], entries(3, 1), DISTINCT
    ] = key((), "a list")


def read(**document: Any) -> Outer:
    return read_section(Outer, document)


def test_defaults() -> None:
    assert read() == Outer()
    assert [default_of(item) for item in fields(Outer)][:4] == [None, (), {}, {}]


def test_what_a_section_is_made_of() -> None:
    kinds = {item.name: section_of(Outer, item.name) for item in fields(Outer)}
    assert {name for name, kind in kinds.items() if kind is Inner} == {
        "inner",
        "several",
        "named",
    }


def test_sections_within_sections() -> None:
    found = read(
        inner={"count": 2}, several=[{}, {"kind": "b"}], named={"x": {"count": 3}}
    )
    assert found.inner == Inner(2)
    assert found.several == (Inner(), Inner(kind="b"))
    assert found.named == {"x": Inner(3)}


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"iner": {}}, "unknown key 'iner' (did you mean inner?)"),
        ({"inner": 3}, "inner must be a table, got 3"),
        ({"inner": {"count": 0}}, "inner.count must be at least 1, got 0"),
        ({"inner": {"count": 10**5000}}, "inner.count must be at most 9, got a"),
        ({"inner": {"cuont": 0}}, "inner: unknown key 'cuont' (did you mean count?)"),
        ({"inner": {"kind": "b", "count": 6}}, "inner: kind b has at most 5"),
        (
            {"several": {"count": 1}},
            (
                "several must be a list, got a table; write one entry of the list as "
                "[[several]]"
            ),
        ),
        ({"several": [{}, {}, {}]}, "several must be of at most 2 entries"),
        ({"several": [{}, {"count": "x"}]}, "several.1.count must be a whole number"),
        ({"several": [{}, {"cuont": 1}]}, "several.1: unknown key 'cuont'"),
        ({"several": [4]}, "several.0 must be a table"),
        ({"named": {"x": {"kind": "c"}}}, "named.x.kind must be 'a' or 'b', got 'c'"),
        ({"named": {"x": 1}}, "named.x must be a table, got 1"),
        ({"named": {"x": {"kimd": 1}}}, "named.x: unknown key 'kimd'"),
        ({"named": {"x": {}, "y": {}, "z": {}}}, "named must be of at most 2 entries"),
        ({"free": []}, "free must be a table, got []"),
        ({"share": float("nan")}, "share must be a finite number, got nan"),
        ({"share": True}, "share must be a number, got True"),
        ({"share": 2}, "share must be at most 1, got 2"),
        ({"word": "long"}, "word must be a string of at most 3 characters, got 'long'"),
        ({"word": 1}, "word must be a string, got 1"),
        ({"flag": 1}, "flag must be true or false, got 1"),
        ({"memory": 5}, "memory must be a size in bytes or as in"),
        ({"even": 3}, "even must be an even number, got 3"),
        ({"numbers": []}, "numbers must be of at least 1 entries, got []"),
        ({"numbers": [1, 1]}, "numbers must be a list without duplicates"),
        ({"numbers": [1, True]}, "numbers.1 must be a whole number, got True"),
        (
            {"share": 2, "flag": "x"},
            "share must be at most 1, got 2; flag must be true or false, got 'x'",
        ),
    ],
)
def test_what_is_wrong_is_named(document: dict[str, Any], message: str) -> None:
    with pytest.raises(KeyProblem) as caught:
        read(**document)
    assert str(caught.value).startswith(message)


def test_entries_that_are_wrong_are_entries() -> None:
    with pytest.raises(KeyProblem) as caught:
        read(numbers=[-1])
    assert str(caught.value) == "numbers.0 must be at least 0, got -1"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("share", 1, 1.0),
        ("word", "x", "x"),
        ("flag", False, False),
        ("numbers", [2, 0], (2, 0)),
        ("memory", "2MiB", 2 << 20),
    ],
)
def test_values(name: str, value: Any, expected: Any) -> None:
    assert getattr(read(**{name: value}), name) == expected


def test_many_mistakes_are_counted() -> None:
    with pytest.raises(KeyProblem, match=r"\(and 95 more\)$"):
        read(several=[{"count": 0}, {}], free={}, **{f"x{n}": 1 for n in range(99)})


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(KeyProblem) as caught:
        read(inner={"kind": "x" * 10_000})
    assert len(str(caught.value)) < 200


def test_shapes_have_the_default_limits_of_requests() -> None:
    check = TypeAdapter(ShapeKey).validate_python
    most = DEFAULT_LIMITS.max_elements
    assert check([most] * DEFAULT_LIMITS.max_rank)
    for shape in ([most + 1], [1] * (DEFAULT_LIMITS.max_rank + 1)):
        with pytest.raises(ValidationError):
            check(shape)
