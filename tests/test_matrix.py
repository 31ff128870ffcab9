"""Every pair of capabilities is tested, refused in words, or has nothing in common.

`python -m tests.matrix` prints the table.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

from app.config.model_config import ModelConfig
from app.settings import Settings
from tests.matrix.cells import ROOT, Matrix, MatrixError, has_test, read_matrix, says


@pytest.fixture(scope="module")
def matrix() -> Matrix:
    return read_matrix()


def claimable() -> Iterator[str]:
    """Yield the settings, keys of models, commands and plugins that there are."""
    yield from Settings.model_fields
    yield from (f"model.{field.name}" for field in fields(ModelConfig))
    command = [sys.executable, "-c", "from app.cli import main; main()", "--help"]
    shown = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=True
    )
    for line in shown.stdout.partition("Commands:\n")[2].splitlines():
        if line.startswith("  ") and not line.startswith("   "):
            yield f"command {line.split()[0]}"
    for file in sorted((ROOT / "plugins").glob("*/src")):
        yield f"plugin {file.parent.name}"


def test_every_pair_has_its_cell(matrix: Matrix) -> None:
    pairs = set(matrix.pairs())
    assert not pairs - set(matrix.cells), "add these to tests/matrix/ROW.toml"
    assert not set(matrix.cells) - pairs, "the other of the pair has the cell"


def test_every_test_of_a_cell_is_there(matrix: Matrix) -> None:
    gone = [
        (pair, test)
        for pair, cell in matrix.cells.items()
        for test in cell.tests
        if not has_test(test)
    ]
    assert not gone


def test_refusals_have_the_words_that_their_tests_look_for(matrix: Matrix) -> None:
    wrong = [
        (pair, cell.words)
        for pair, cell in matrix.cells.items()
        if cell.kind == "refused"
        and not any(says(test, cell.words) for test in cell.tests)
    ]
    assert not wrong


def test_what_is_missing_gets_less(matrix: Matrix) -> None:
    missing = [pair for pair, cell in matrix.cells.items() if cell.kind == "missing"]
    assert len(missing) <= matrix.missing, "write a test instead"
    assert len(missing) == matrix.missing, "lower `missing` in tests/matrix/index.toml"


def test_whatever_is_new_belongs_to_a_row(matrix: Matrix) -> None:
    claims = Counter(matrix.ground)
    for one in (*matrix.capabilities, *matrix.surfaces):
        claims.update(one.claims)
    there = set(claimable())
    new, gone = sorted(there - set(claims)), sorted(set(claims) - there)
    assert new == [], "no row of tests/matrix/index.toml claims these"
    assert gone == [], "claimed, but not there any more"
    assert [name for name, count in claims.items() if count > 1] == []


@pytest.mark.parametrize(
    ("row", "cell"),
    [
        ("keys", "tls = { }"),
        ("keys", "tls = { test = [] }"),
        ("keys", 'tls = { apart = " " }'),
        ("keys", 'tls = { refused = "no test shows it" }'),
        ("keys", 'tls = { apart = "why", missing = "what" }'),
        ("keys", 'tls = { seen = "by somebody" }'),
        ("teleportation", 'tls = { apart = "why" }'),
    ],
)
def test_a_cell_says_one_thing(tmp_path: Path, row: str, cell: str) -> None:
    index = (ROOT / "tests/matrix/index.toml").read_text()
    (tmp_path / "index.toml").write_text(index)
    (tmp_path / f"{row}.toml").write_text(cell + "\n")
    with pytest.raises(MatrixError, match=row):
        read_matrix(tmp_path)


def test_names_are_found_in_the_syntax_tree() -> None:
    assert has_test("tests/test_matrix.py::test_a_cell_says_one_thing")
    assert has_test("tests/app/api/test_stock_client.py::TestBasePath::test_paths")
    for name in (
        "tests/test_matrix.py::test_that_is_not_there",
        "tests/test_matrix.py::claimable",
        "tests/app/api/test_stock_client.py::test_paths",
        "tests/test_gone.py::test_a_cell_says_one_thing",
    ):
        assert not has_test(name)


def test_the_command_prints_the_table() -> None:
    def printed(*names: str) -> str:
        command = [sys.executable, "-m", "tests.matrix", *names]
        return subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
        ).stdout

    assert "T test:" in printed()
    assert "tests/app/http/test_tls.py::test_a_certificate_is_a_key" in printed("tls")
