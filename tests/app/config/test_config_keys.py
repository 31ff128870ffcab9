"""How keys are declared and read: what a section makes of a document."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import pytest

from app.config.config_keys import (
    KeyProblem,
    boolean,
    default_of,
    integer,
    integers,
    key,
    named_sections,
    number,
    one_of,
    read_section,
    section,
    sections,
    size,
    table,
    text,
)


@dataclass(frozen=True, slots=True)
class Inner:
    count: int = key(1, integer(1, 9), "how many")
    kind: str = key("a", one_of("a", "b"), "which")

    def __post_init__(self) -> None:
        if self.kind == "b" and self.count > 5:
            raise ValueError("kind b has at most 5")


@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner = key(Inner(), section(Inner), "a table")
    several: tuple[Inner, ...] = key((), sections(Inner, 2), "a list of tables")
    named: Mapping[str, Inner] = key(dict, named_sections(Inner, 2), "tables by name")
    free: Mapping[str, Any] = key(dict, table, "anything")


def read(**document: Any) -> Outer:
    return read_section(Outer, document)


def test_defaults() -> None:
    assert read() == Outer()
    assert [default_of(item) for item in fields(Outer)] == [Inner(), (), {}, {}]


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
        ({"inner": {"count": 0}}, "inner.count must be between 1 and 9, got 0"),
        ({"inner": {"cuont": 0}}, "inner: unknown key 'cuont'"),
        ({"inner": {"kind": "b", "count": 6}}, "inner: kind b has at most 5"),
        ({"several": {}}, "several must be a list of at most 2 tables"),
        ({"several": [{}, {}, {}]}, "several must be a list of at most 2 tables"),
        ({"several": [{}, {"count": "x"}]}, "several.1.count must be a whole number"),
        ({"several": [4]}, "several must be a table"),
        ({"named": {"x": {"kind": "c"}}}, 'named.x.kind must be "a" or "b", got \'c\''),
        ({"named": {"x": 1}}, "named.x must be a table, got 1"),
        ({"named": {"x": {}, "y": {}, "z": {}}}, "named must be a table of at most 2"),
    ],
)
def test_what_is_wrong_is_named(document: dict[str, Any], message: str) -> None:
    with pytest.raises(KeyProblem) as caught:
        read(**document)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (number(0, 1), 1, 1.0),
        (text(), "x", "x"),
        (boolean, False, False),
        (integers(0), [2, 0], (2, 0)),
        (size(1, 1 << 40), "2MiB", 2 << 20),
    ],
)
def test_values(check: Any, value: Any, expected: Any) -> None:
    assert check(value) == expected


@pytest.mark.parametrize(
    ("check", "value", "expected"),
    [
        (number(0, 1), float("nan"), "between 0 and 1"),
        (number(0, 1), True, "a number"),
        (text(3), "long", "at most 3 characters"),
        (integers(0), list(range(2000)), "a list of whole numbers"),
        (size(1 << 20, 1 << 30), 5, "from 1MiB to 1GiB"),
    ],
)
def test_values_that_are_refused(check: Any, value: Any, expected: str) -> None:
    with pytest.raises(ValueError, match=expected):
        check(value)


def test_a_long_value_is_not_repeated_in_full() -> None:
    with pytest.raises(KeyProblem) as caught:
        read(inner={"kind": "x" * 10_000})
    assert len(str(caught.value)) < 200
