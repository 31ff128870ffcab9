"""The tables of the guide for migrating say what the modules are."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType

import model_runtime
import popef
import pytest

GUIDE = Path(__file__).parents[2] / "docs" / "migrating-from-model-runtime.md"
STATES = {"works", "differs", "not yet"}
#: Public names by which the faces know what is beneath them.
OURS = {"from_io", "to_io", "io", "engine", "of", "memory", "from_engine", "to_engine"}


def rows() -> Iterator[tuple[ModuleType, str, str, str]]:
    """(module, name, state, how) of every name."""
    module: ModuleType | None = None
    for line in GUIDE.read_text().splitlines():
        if line.startswith("## "):
            title = line[3:].partition(":")[0]
            module = {"model_runtime": model_runtime, "popef": popef}.get(title)
        if module is not None and line.startswith("| `"):
            names, state, how = (cell.strip() for cell in line.strip("|").split("|"))
            for name in re.findall(r"`([\w.]+)`", names):
                yield module, name, state, how


def exists(module: ModuleType, name: str) -> bool:
    first, _, member = name.partition(".")
    owner = getattr(module, first, None)
    if owner is None or not member:
        return owner is not None
    return hasattr(owner, member) or f"self.{member} = " in inspect.getsource(owner)


ROWS = list(rows())


@pytest.mark.parametrize(("module", "name", "state", "how"), ROWS)
def test_row(module: ModuleType, name: str, state: str, how: str) -> None:
    assert state in STATES
    assert exists(module, name) is (state != "not yet")
    assert how or state == "works"


@pytest.mark.parametrize("module", [model_runtime, popef])
def test_every_name_has_a_row(module: ModuleType) -> None:
    listed = [name for owner, name, _, _ in ROWS if owner is module]
    assert sorted(listed) == sorted(set(listed))
    missing = set(module.__all__) - set(listed)
    for name in module.__all__:
        owner = getattr(module, name)
        ours = getattr(owner, "__module__", "").startswith(module.__name__)
        if not inspect.isclass(owner) or not ours or issubclass(owner, Enum):
            continue
        members = {m for m in vars(owner) if not m.startswith("_")} - OURS
        missing |= {f"{owner.__name__}.{m}" for m in members} - set(listed)
    assert missing == set()
