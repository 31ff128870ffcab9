"""Everything on the list of the hot path can be translated to C."""

from __future__ import annotations

import dataclasses
import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Protocol, get_type_hints

import pytest

from native.modules import compiled_sources

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
