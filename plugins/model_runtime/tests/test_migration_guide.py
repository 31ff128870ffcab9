"""The tables of the guide for migrating say what the modules are."""

from __future__ import annotations

import inspect
from enum import Enum
from types import ModuleType

import pytest

import model_runtime
import popef
from plugins.model_runtime.tests import guide
from plugins.model_runtime.tests.guide import Name

#: Public names by which the faces know what is beneath them.
OURS = {"from_io", "to_io", "io", "engine", "of", "memory", "from_engine", "to_engine"}
NAMES = list(guide.names())
IN_MODULES = [name for name in NAMES if name.module is not None]


@pytest.mark.parametrize("name", IN_MODULES, ids=str)
def test_name(name: Name) -> None:
    there, found = guide.find(name)
    if name.state == "no":
        assert not there, f"{name} is there: say in names.toml how it is with it"
        assert name.how, "what is missing has a reason"
        return
    assert there, f"{name} is not there: say in names.toml why"
    assert name.how or name.state == "works"
    assert callable(found) or not name.is_call
    assert name.is_call or not inspect.isfunction(found), f"{name} is called"
    if name.default is not None:
        assert guide.actual_default(name) == name.default
    if name.argument_defaults:
        actual = guide.argument_defaults(name)
        assert {k: actual.get(k) for k in name.argument_defaults} == (
            name.argument_defaults
        )


def test_no_name_is_listed_twice() -> None:
    listed = [(name.module, name.path) for name in NAMES]
    assert {pair for pair in listed if listed.count(pair) > 1} == set()


@pytest.mark.parametrize("module", [model_runtime, popef])
def test_every_name_of_the_modules_is_listed(module: ModuleType) -> None:
    listed = {name.path for name in NAMES if name.module is module}
    missing = set(module.__all__) - listed
    for name in module.__all__:
        owner = getattr(module, name)
        ours = getattr(owner, "__module__", "").startswith(module.__name__)
        if not inspect.isclass(owner) or not ours or issubclass(owner, Enum):
            continue
        members = {m for m in vars(owner) if not m.startswith("_")} - OURS
        missing |= {f"{owner.__name__}.{m}" for m in members} - listed
    assert missing == set()


def test_the_guide_holds_the_tables() -> None:
    assert guide.written() == guide.GUIDE.read_text(), (
        "run `python plugins/model_runtime/tests/guide.py`"
    )
