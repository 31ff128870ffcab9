"""The reference in docs/api/ says what the docstrings say now."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import engine
import popef_io

API = Path(__file__).resolve().parents[2] / "docs" / "api"
SCRIPT = runpy.run_path(str(API / "generate.py"))


@pytest.mark.parametrize("package", SCRIPT["PACKAGES"])
def test_the_pages_are_up_to_date(package: str) -> None:
    committed = (API / f"{package}.md").read_text(encoding="utf-8")
    assert SCRIPT["page"](package) == committed, "run `make docs-api`"


def test_every_public_name_has_its_entry() -> None:
    for package in (engine, popef_io):
        text = (API / f"{package.__name__}.md").read_text(encoding="utf-8")
        entries = re.findall(r"^### `(\w+)`\n\n```python\n", text, re.MULTILINE)
        assert sorted(entries) == sorted(package.__all__)
