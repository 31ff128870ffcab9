"""Everything on the list of the hot path can be translated to C."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol, get_args, get_type_hints

import pytest

from native.modules import compiled_sources
from native.popgate_compiled import read_stamp

ROOT = Path(__file__).resolve().parents[2]
# Ends at once, as native/translate.py: freeing what mypy knows takes as long again.
TRANSLATE = """
import os, sys
from mypyc.build import mypycify
cache, folder, *sources = sys.argv[1:]
options = ["--config-file", "pyproject.toml", "--cache-dir", cache]
mypycify([*options, *sources], target_dir=folder, separate=True)
os._exit(0)
"""


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
    module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    for noun in vars(module).values():
        if dataclasses.is_dataclass(noun) and noun.__module__ == module.__name__:
            assert get_type_hints(noun)


def test_plain_classes_do_not_inherit_from_compiled_ones() -> None:
    """Which fails where the class is used, and only in a compiled build."""
    compiled = {path.removesuffix(".py") for path in compiled_sources(ROOT)}
    names = {path.replace("/", ".") for path in compiled}
    wrong = []
    for folder in ("app", "engine", "popef_io"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            module = str(path.relative_to(ROOT).with_suffix("")).replace("/", ".")
            if module in names or path.stem.startswith("__"):
                continue
            for noun in vars(importlib.import_module(module)).values():
                if not isinstance(noun, type) or Protocol in noun.__bases__:
                    continue  # a protocol is never made
                if noun.__module__ == module:
                    bases = {base.__module__ for base in noun.__mro__[1:]}
                    wrong += [f"{noun!r}: {base}" for base in bases & names]
    assert wrong == [], wrong


@pytest.mark.parametrize("path", compiled_sources(ROOT))
def test_no_default_of_a_protocol_stands_on_a_class(path: str) -> None:
    """Compiled instances have nothing there."""
    module = importlib.import_module(name_of(path))
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
        file = importlib.import_module(name_of(path)).__file__
        assert file is not None
        assert file.endswith(".py") is (stamp is None), file


def test_all_of_it_translates_to_c(tmp_path: Path) -> None:
    cache, folder = tmp_path / "cache", tmp_path / "c"
    # mypy, which ran before the tests, need not read other people's modules again.
    # `separate` makes mypyc use that, and only changes how the C is cut into files.
    if (ROOT / ".mypy_cache").is_dir():
        shutil.copytree(ROOT / ".mypy_cache", cache)
    sources = compiled_sources(ROOT)
    done = subprocess.run(
        [sys.executable, "-c", TRANSLATE, str(cache), str(folder), *sources],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(folder.rglob("__native_*.c"))) == len(sources)


def test_what_is_derived_from_the_list_is_on_it() -> None:
    """Compiled classes take no interpreted subclasses."""
    listed = {name_of(path) for path in compiled_sources(ROOT)}
    sources = [*(ROOT / "engine").rglob("*.py"), *(ROOT / "app").rglob("*.py")]
    others = {name_of(str(path.relative_to(ROOT))) for path in sources} - listed
    derived = []
    for name in sorted(n for n in others if not n.endswith("__main__")):
        for noun in vars(importlib.import_module(name)).values():
            if isinstance(noun, type) and noun.__module__ == name:
                derived += [
                    f"{name}.{noun.__name__} from {base.__name__}"
                    for base in noun.__mro__
                    if base.__module__ in listed
                    and not getattr(base, "_is_protocol", False)
                ]
    assert derived == []


def name_of(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
