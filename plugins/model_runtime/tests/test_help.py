"""help(): every public name of both modules says what it is."""

from __future__ import annotations

import importlib.metadata
import inspect
import pydoc
import typing
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import model_runtime
import popef
from model_runtime import predicate_factory

MODULES: list[ModuleType] = [
    model_runtime,
    popef,
    predicate_factory,
    predicate_factory.anchor_callbacks,
    predicate_factory.popef_data_usage,
    predicate_factory.operators,
    model_runtime.ring_size_multiplier_factory,
]
FIELDS = [
    model_runtime.ModelRunnerConfig,
    model_runtime.SessionConfig,
    model_runtime.DeviceWaitConfig,
    model_runtime.DeviceConstraints,
    model_runtime.DataDesc,
]


def is_ours(what: object) -> bool:
    owner = getattr(what, "__module__", "") or ""
    return owner.partition(".")[0] in ("model_runtime", "popef", "engine", "popef_io")


def public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """What has a docstring of its own: classes and functions, and their members."""
    for name in getattr(module, "__all__", None) or vars(module):
        what = getattr(module, name)
        if name.startswith("_") or not is_ours(what):
            continue
        if inspect.isclass(what):
            yield name, what
            for base in what.__mro__:
                if not is_ours(base):
                    continue
                for member, value in vars(base).items():
                    described = inspect.isroutine(value) or isinstance(
                        value, property | staticmethod | classmethod
                    )
                    if described and not member.startswith("_"):
                        yield f"{name}.{member}", getattr(base, member)
        elif inspect.isroutine(what):
            yield name, what


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module: ModuleType) -> None:
    found = dict(public(module))
    assert len(found) > 1
    assert module.__doc__
    silent = [name for name, what in found.items() if not getattr(what, "__doc__", "")]
    assert silent == []


def test_every_alias_is_explained_in_its_source() -> None:
    """A type alias is no object of its own that could have a docstring."""
    aliases = [
        name
        for name in model_runtime.__all__
        if typing.get_origin(getattr(model_runtime, name)) is not None
    ]
    assert len(aliases) > 8
    lines = [
        line
        for path in Path(model_runtime.__file__).parent.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
    ]
    for name in aliases:
        (at,) = (n for n, line in enumerate(lines) if line.startswith(f"{name}: "))
        assert lines[at - 1].startswith("#: "), name


@pytest.mark.parametrize("kind", FIELDS)
def test_members_are_explained_in_help(kind: type) -> None:
    text = pydoc.plain(pydoc.render_doc(kind))
    members = list(kind._members())  # type: ignore[attr-defined]
    assert members
    for name in members:
        assert f"\n |  {name}\n |      " in text, f"help() does not explain {name}"


@pytest.mark.parametrize("module", [model_runtime, popef])
def test_version(module: Any) -> None:
    assert module.__version__ == importlib.metadata.version("popgate")
