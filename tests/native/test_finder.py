"""Compiled modules are taken while they match their sources, and never otherwise."""

from __future__ import annotations

import json
import sysconfig
from pathlib import Path

import pytest

from native import popgate_compiled as finder

SUFFIX = sysconfig.get_config_var("EXT_SUFFIX")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A source tree with one compiled module; nothing of it is ever loaded."""
    source = tmp_path / "engine" / "thing.py"
    source.parent.mkdir()
    source.write_text("x = 1\n")
    folder = tmp_path / finder.FOLDER
    folder.mkdir(parents=True)
    stamp = {
        "sources": {"engine/thing.py": finder.digest(str(source))},
        "modules": {"engine.thing": f"engine/thing{SUFFIX}"},
        "group": {finder.GROUP: finder.GROUP + SUFFIX},
    }
    (folder / finder.STAMP).write_text(json.dumps(stamp))
    return tmp_path


def origin(tree: Path, name: str = "engine.thing") -> str | None:
    spec = finder.CompiledFinder().find_spec(name, [str(tree / "engine")])
    return None if spec is None else spec.origin


def test_a_module_that_matches_its_source_is_taken_compiled(tree: Path) -> None:
    assert origin(tree) == str(tree / finder.FOLDER / f"engine/thing{SUFFIX}")


def test_a_module_of_a_plugin_belongs_to_the_tree_around_it(tree: Path) -> None:
    folder = tree / "plugins" / "one" / "src" / "popgate_one"
    folder.mkdir(parents=True)
    stamp = tree / finder.FOLDER / finder.STAMP
    document = json.loads(stamp.read_text())
    document["modules"]["popgate_one.thing"] = f"popgate_one/thing{SUFFIX}"
    stamp.write_text(json.dumps(document))
    spec = finder.CompiledFinder().find_spec("popgate_one.thing", [str(folder)])
    assert spec is not None
    assert spec.origin == str(tree / finder.FOLDER / f"popgate_one/thing{SUFFIX}")


def test_the_library_comes_from_the_same_tree(tree: Path) -> None:
    mine = finder.CompiledFinder()
    assert mine.find_spec(finder.GROUP) is None  # nobody has asked for a module yet
    assert mine.find_spec("engine.thing", [str(tree / "engine")]) is not None
    library = mine.find_spec(finder.GROUP)
    assert library is not None
    assert library.origin == str(tree / finder.FOLDER / (finder.GROUP + SUFFIX))


def test_a_changed_source_makes_all_of_it_python_again(tree: Path) -> None:
    (tree / "engine" / "thing.py").write_text("x = 2\n")
    assert origin(tree) is None


def test_a_source_that_is_gone_does_too(tree: Path) -> None:
    (tree / "engine" / "thing.py").unlink()
    assert origin(tree) is None


@pytest.mark.parametrize("text", ["", "{", "\x00"])
def test_a_damaged_stamp_counts_as_none(tree: Path, text: str) -> None:
    (tree / finder.FOLDER / finder.STAMP).write_text(text)
    assert origin(tree) is None


@pytest.mark.parametrize("name", ["engine.other", "json.decoder", "engine"])
def test_other_modules_are_none_of_its_business(tree: Path, name: str) -> None:
    assert origin(tree, name) is None


def test_a_tree_that_was_never_compiled_is_python(tmp_path: Path) -> None:
    assert origin(tmp_path) is None
