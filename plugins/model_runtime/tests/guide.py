"""The tables of the guide for migrating, made of `names.toml` and of the modules.

    python -P plugins/model_runtime/tests/guide.py   writes them into docs/

`names.toml` lists every name of the originals and says how it is with each; whether a
name is there, can be called, and has the default it should have is asked of the
modules themselves.
"""

from __future__ import annotations

import importlib
import inspect
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import model_runtime

HERE = Path(__file__).parent
GUIDE = HERE.parents[2] / "docs" / "reference" / "model-runtime-names.md"
BEGIN, END = "<!-- tables: begin -->\n", "<!-- tables: end -->\n"
STATES = {"how": "works", "differs": "differs", "missing": "no"}
_ENTRY = re.compile(r"(?P<path>[\w.:]+)(?P<call>\(.*\))?(?: = (?P<default>.*))?")
#: For an argument of which only the name is said.
ANY = "any"
_MAX_UNSIGNED = 2**32 - 1
_MAX_NS = timedelta(microseconds=(2**63 - 1) // 1000)


@dataclass(frozen=True)
class Name:
    """One name of the originals, and what is said of it."""

    module: ModuleType | None
    """None for what is no name of a module: tools and environment variables."""
    entry: str
    state: str
    how: str

    @property
    def path(self) -> str:
        path: str = self._parsed["path"]
        return path

    @property
    def is_call(self) -> bool:
        return self._parsed["call"] is not None

    @property
    def default(self) -> str | None:
        """What the field holds, or the enumerator's value, as text."""
        default: str | None = self._parsed["default"]
        return default

    @property
    def argument_defaults(self) -> dict[str, str]:
        inside = (self._parsed["call"] or "()")[1:-1]
        pairs = (part.partition("=") for part in inside.split(", ") if part)
        return {name: value or ANY for name, _, value in pairs}

    @property
    def _parsed(self) -> Mapping[str, Any]:
        match = _ENTRY.fullmatch(self.entry)
        assert match, f"{self.entry!r} is not written as names.toml says"
        return match.groupdict()

    def __str__(self) -> str:
        return f"{getattr(self.module, '__name__', '')} {self.entry}"


def sections() -> list[dict[str, Any]]:
    with (HERE / "names.toml").open("rb") as file:
        loaded: list[dict[str, Any]] = tomllib.load(file)["section"]
    return loaded


def names() -> Iterator[Name]:
    for section in sections():
        module = section.get("module")
        owner = importlib.import_module(module) if module else None
        for row in section["row"]:
            state, how = _state(row)
            for entry in row["names"]:
                yield Name(owner, entry, state, how)


def _state(row: dict[str, Any]) -> tuple[str, str]:
    (key,) = row.keys() - {"names"}
    return STATES[key], row[key]


def find(name: Name) -> tuple[bool, Any]:
    """(whether the module has the name, what it is); None for what only objects have"""
    found: Any = name.module
    *owners, last = name.path.split(".")
    for part in owners:
        found = getattr(found, part, None)
        if found is None:
            return False, None
    if hasattr(found, last):
        return True, getattr(found, last)
    if inspect.isclass(found):
        sources = (inspect.getsource(c) for c in found.__mro__ if _is_ours(c))
        return any(f"self.{last} = " in source for source in sources), None
    return False, None


def _is_ours(owner: type) -> bool:
    return owner.__module__.partition(".")[0] in ("model_runtime", "popef")


def actual_default(name: Name) -> str:
    """What a new object holds in the field, or an enumerator's value, as text."""
    there, found = find(name)
    assert there, name
    if isinstance(found, Enum):
        return str(found.value)
    owner, _, field = name.path.rpartition(".")
    return shown(getattr(find(Name(name.module, owner, "", ""))[1](), field))


def shown(value: Any) -> str:
    """A default as the originals' documents write it."""
    if isinstance(value, model_runtime.DeviceWaitConfig):
        return value.strategy.name
    if isinstance(value, Enum):
        return value.name
    if value == _MAX_NS:
        return "max"
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, Mapping):
        return str(dict(value))
    if isinstance(value, str) and value:
        return value
    if value == _MAX_UNSIGNED:
        return "0xFFFFFFFF"
    for name in ("null_popef_data_usage_predicate", "null_anchor_callback_predicate"):
        if value is not None and value is getattr(model_runtime, name, None):
            return name
    return repr(value)


def argument_defaults(name: Name) -> dict[str, str]:
    parameters = inspect.signature(find(name)[1]).parameters.values()
    wanted = name.argument_defaults
    return {
        p.name: ANY if wanted.get(p.name) == ANY else shown(p.default)
        for p in parameters
    }


def tables() -> str:
    """The generated part of the guide."""
    lines: list[str] = []
    for section in sections():
        lines += ["", f"## {section['title']}"]
        lines += _paragraph(section.get("before", ""))
        lines += ["", "| Name | State | How |", "| --- | --- | --- |"]
        for row in section["row"]:
            listed = ", ".join(f"`{entry}`" for entry in row["names"])
            state, how = _state(row)
            lines.append(f"| {listed} | {state} | {how} |".replace("|  |", "| |"))
        lines += _paragraph(section.get("after", ""))
    count = dict.fromkeys(STATES.values(), 0)
    for name in names():
        count[name.state] += 1
    total = ", ".join(f"{n} {state}" for state, n in count.items())
    return "\n".join([f"{sum(count.values())} names: {total}.", *lines]) + "\n\n"


def _paragraph(text: str) -> list[str]:
    return ["", *text.strip().splitlines()] if text.strip() else []


def written() -> str:
    """The guide as it should be."""
    text = GUIDE.read_text()
    head, _, rest = text.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return head + BEGIN + tables() + END + tail


if __name__ == "__main__":
    GUIDE.write_text(written())
