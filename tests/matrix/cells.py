"""The matrix of capabilities, as its files say: each pair is tested, refused or apart.

A cell is a line of `tests/matrix/ROW.toml`, under the name of its column:

    sequences = { test = "tests/app/serving/test_keys_apart.py::test_…" }
    python    = { refused = "words of the refusal", test = "tests/…::test_…" }
    drain     = { apart = "why the two have nothing to do with each other" }
    streams   = { missing = "what is not known about the two together" }

`test` is one name or a list. `Class::name` finds a method.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
KINDS = ("test", "refused", "apart", "missing")


class MatrixError(Exception):
    """A file of the matrix says something that cannot be."""


@dataclass(frozen=True)
class Subject:
    """A capability or a surface."""

    name: str
    title: str
    claims: tuple[str, ...] = ()


@dataclass(frozen=True)
class Cell:
    """How one pair stands: `kind` is one of KINDS; `words` are empty for a test."""

    kind: str
    words: str
    tests: tuple[str, ...]


@dataclass(frozen=True)
class Matrix:
    """`cells` by row and column; the row is the earlier of two capabilities."""

    capabilities: tuple[Subject, ...]
    surfaces: tuple[Subject, ...]
    ground: tuple[str, ...]
    missing: int
    cells: dict[tuple[str, str], Cell]

    def pairs(self) -> list[tuple[str, str]]:
        """Return every pair that must have a cell."""
        names = [one.name for one in self.capabilities]
        more = [one.name for one in self.surfaces]
        return [
            (row, column)
            for at, row in enumerate(names)
            for column in [*names[at + 1 :], *more]
        ]


def read_matrix(folder: Path = HERE) -> Matrix:
    """Return the matrix of `folder`; raise MatrixError where a file is wrong."""
    index = tomllib.loads((folder / "index.toml").read_text())
    capabilities = tuple(_subject(one) for one in index["capability"])
    rows = {one.name for one in capabilities}
    cells: dict[tuple[str, str], Cell] = {}
    for path in sorted(folder.glob("*.toml")):
        if path.stem == "index":
            continue
        if path.stem not in rows:
            raise MatrixError(f"{path.name}: no capability has this name")
        for column, table in tomllib.loads(path.read_text()).items():
            cells[path.stem, column] = _cell(f"{path.name}: {column}", table)
    return Matrix(
        capabilities,
        tuple(_subject(one) for one in index["surface"]),
        tuple(index["ground"]),
        index["missing"],
        cells,
    )


def _subject(table: dict[str, Any]) -> Subject:
    return Subject(table["name"], table["title"], tuple(table.get("claims", ())))


def _cell(where: str, table: Any) -> Cell:
    if not isinstance(table, dict) or not table or set(table) - set(KINDS):
        raise MatrixError(f"{where}: a table with {', '.join(KINDS)} is expected")
    tests = table.get("test", ())
    tests = (tests,) if isinstance(tests, str) else tuple(tests)
    words = [kind for kind in KINDS[1:] if kind in table]
    if len(words) > 1 or any(not table[kind].strip() for kind in words):
        raise MatrixError(f"{where}: one of {', '.join(KINDS[1:])}, with words")
    kind = words[0] if words else "test"
    if (kind in ("test", "refused")) != bool(tests):
        raise MatrixError(f"{where}: tests belong to `test` and `refused` only")
    return Cell(kind, table.get(kind, "") if words else "", tests)


@cache
def _names(path: Path) -> frozenset[str]:
    """Return the functions of a file of tests, methods as `Class::name`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            found.add(node.name)
        elif isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}::{inner.name}"
                for inner in node.body
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef)
            }
    return frozenset(found)


def has_test(test: str) -> bool:
    """Return whether `PATH::name` names a test of the repository."""
    path, _, name = test.partition("::")
    file = ROOT / path
    last = name.rpartition("::")[2]
    return file.is_file() and last.startswith("test_") and name in _names(file)


def says(test: str, words: str) -> bool:
    """Return whether the file of a test holds `words` in one of its strings."""
    tree = ast.parse((ROOT / test.partition("::")[0]).read_text())
    constants = (
        node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)
    )
    return any(isinstance(value, str) and words in value for value in constants)
