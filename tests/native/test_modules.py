"""Everything on the list of the hot path can be translated to C."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Protocol, get_args, get_type_hints

import pytest

from native.modules import compiled_sources, module_name
from native.popgate_compiled import read_stamp

ROOT = Path(__file__).resolve().parents[2]


def test_the_list_names_files_that_exist() -> None:
    sources = compiled_sources(ROOT)
    assert "engine/runner/replica_channel.py" in sources
    assert len(sources) == len(set(sources))
    assert not [path for path in sources if path.endswith("__init__.py")]


def test_a_pattern_without_files_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.popgate]\ncompiled = ["engine/nothing.py"]\n'
    )
    with pytest.raises(FileNotFoundError, match=r"engine/nothing\.py"):
        compiled_sources(tmp_path)


@pytest.mark.parametrize("path", compiled_sources(ROOT))
def test_fields_of_dataclasses_are_known_when_it_runs(path: str) -> None:
    """Compiled dataclasses look their annotations up, which plain ones leave alone."""
    module = importlib.import_module(module_name(path))
    for noun in vars(module).values():
        if dataclasses.is_dataclass(noun) and noun.__module__ == module.__name__:
            assert get_type_hints(noun)


@pytest.mark.parametrize("path", compiled_sources(ROOT))
def test_no_default_of_a_protocol_stands_on_a_class(path: str) -> None:
    """Compiled instances have nothing there."""
    module = importlib.import_module(module_name(path))
    lost = [
        f"{noun.__name__}.{name}"
        for noun in vars(module).values()
        if isinstance(noun, type) and noun.__module__ == module.__name__
        for name in lost_defaults(noun)
    ]
    assert lost == []


def lost_defaults(noun: type) -> list[str]:
    if dataclasses.is_dataclass(noun):  # their constructors set it
        return []
    own = inspect.get_annotations(noun)
    hints = get_type_hints(noun) if own else {}
    return [
        name
        for name in own
        if name in noun.__dict__
        and any(
            getattr(kind, "_is_protocol", False)
            for kind in get_args(hints[name]) or (hints[name],)
        )
    ]


@pytest.mark.parametrize("path", compiled_sources(ROOT))
def test_finally_has_no_use_for_what_may_still_be_none(path: str) -> None:
    """Of a name that is None in front of `try` and set in it, compiled code takes for
    granted in `finally` that it is set, and refuses None."""
    assert none_in_finally((ROOT / path).read_text()) == []


def none_in_finally(source: str) -> list[str]:
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        empty = {
            target.id
            for node in ast.walk(function)
            if isinstance(node, ast.Assign | ast.AnnAssign)
            and isinstance(node.value, ast.Constant)
            and node.value.value is None
            for target in (
                node.targets if isinstance(node, ast.Assign) else [node.target]
            )
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.Try):
                risky = empty & names_in(node.body, ast.Store)
                risky &= names_in(node.finalbody, ast.Load)
                found += [f"{function.name}: {name}" for name in sorted(risky)]
    return found


def names_in(body: list[ast.stmt], use: type[ast.expr_context]) -> set[str]:
    nodes = [node for statement in body for node in ast.walk(statement)]
    return {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, use)}


def test_the_traps_are_seen() -> None:
    class Trap(Protocol):
        """Something to do."""

    class Holder:
        one: Trap | None = None
        other: int | None = None

    Holder.__annotations__ = {"one": Trap | None, "other": int | None}
    assert lost_defaults(Holder) == ["one"]
    trap = "def f():\n    a: T | None = None\n    try:\n        a = g()\n"
    assert none_in_finally(trap + "    finally:\n        h(a)\n") == ["f: a"]
    assert none_in_finally(trap + "    finally:\n        h()\n") == []


def test_what_is_compiled_here_is_what_is_used() -> None:
    """`make test-compiled` tests compiled code, and nothing else does."""
    root = str(ROOT)
    stamp = None if os.environ.get("POPGATE_PURE") else read_stamp(root)
    for path in compiled_sources(ROOT):
        file = importlib.import_module(module_name(path)).__file__
        assert file is not None
        assert file.endswith(".py") is (stamp is None), file


def test_all_of_it_translates_to_c(tmp_path: Path) -> None:
    sources = compiled_sources(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "native.translate", str(tmp_path), "1", *sources],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = [name for part in json.loads(done.stdout) for name in part["sources"]]
    modules = {name for name in made if "/__native_" in name}
    assert len(modules - {f"{tmp_path}/__native_popgate.c"}) == len(sources)
    # Of which compiled instances have nothing.
    assert "Unsupported default attribute value" not in done.stderr, done.stderr


def test_what_is_derived_from_the_list_is_on_it() -> None:
    """Compiled classes take no interpreted subclasses: it fails where the class is
    used, and only in a compiled build."""
    listed = {module_name(path) for path in compiled_sources(ROOT)}
    packages = ("app", "engine", "popef_io")
    sources = [path for name in packages for path in (ROOT / name).rglob("*.py")]
    others = {module_name(str(path.relative_to(ROOT))) for path in sources} - listed
    derived = []
    for name in sorted(n for n in others if not n.endswith("__main__")):
        for noun in vars(imported(name)).values():
            if isinstance(noun, type) and noun.__module__ == name:
                derived += [
                    f"{name}.{noun.__name__} from {base.__name__}"
                    for base in noun.__mro__
                    if base.__module__ in listed
                    and not getattr(base, "_is_protocol", False)
                ]
    assert derived == []


def imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if "popgate[" not in str(error):  # it names the extra that is missing
            raise
        return ModuleType(name)
