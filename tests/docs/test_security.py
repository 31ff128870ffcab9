"""docs/how-to/secure.md: what it says of attacks is tested.

`attacks.toml` names the tests of each attack of the page.
"""

from __future__ import annotations

import ast
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.app.served import ROOT

PAGE = (ROOT / "docs" / "how-to" / "secure.md").read_text()
TESTS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("attacks.toml").read_text()
)


def attacks() -> list[str]:
    """Return the attacks of the page's table, in order."""
    table = PAGE.partition("| Attack | What it gets |\n")[2].partition("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]
    assert all(len(row) == 2 for row in rows)
    return [attack for attack, _ in rows]


@cache
def functions_of(path: Path) -> frozenset[str]:
    return frozenset(
        item.name
        for item in ast.parse(path.read_text()).body
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_there_are_attacks() -> None:
    assert len(attacks()) >= 20


def test_the_page_and_the_tests_have_the_same_attacks() -> None:
    assert attacks() == list(TESTS)


@pytest.mark.parametrize("attack", TESTS)
def test_every_attack_has_tests(attack: str) -> None:
    assert TESTS[attack]
    for test in TESTS[attack]:
        file, _, name = test.partition("::")
        assert name.startswith("test_")
        assert name in functions_of(ROOT / file), f"{file} has no {name}"
