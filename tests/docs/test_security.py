"""docs/how-to/secure.md: what it says is tested is tested."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.app.served import ROOT

TESTS = ROOT / "tests" / "app"
PAGE = (ROOT / "docs" / "how-to" / "secure.md").read_text()


def attacks() -> dict[str, str]:
    """Each attack of the table, and what is said to show what it gets."""
    table = PAGE.partition("| Attack | What it gets | Test |\n")[2].partition("\n\n")[0]
    rows = [re.split(r" ?\| ?", line) for line in table.splitlines()[1:]]
    assert all(len(row) == 5 for row in rows)
    return {row[1]: row[3] for row in rows}


@cache
def functions_of(path: Path) -> frozenset[str]:
    return frozenset(
        item.name
        for item in ast.parse(path.read_text()).body
        if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def test_there_are_attacks() -> None:
    assert len(attacks()) >= 20


@pytest.mark.parametrize("attack", attacks())
def test_every_attack_has_tests(attack: str) -> None:
    shown = attacks()[attack]
    named = re.findall(r"`([\w/.]*)::(test_\w+)`", shown)
    file = ""
    for each, name in named:
        file = each or file  # `::test_x` is in the file before
        path = (ROOT if file.startswith("plugins/") else TESTS) / file
        assert name in functions_of(path), f"{file} has no {name}"
    pages = re.findall(r"\[[^]]+\]\(([^)#]+)(?:#[^)]+)?\)", shown)
    assert all((ROOT / "docs" / "how-to" / page).exists() for page in pages)
    assert named or pages
    assert shown.count("`") == 2 * len(named)
