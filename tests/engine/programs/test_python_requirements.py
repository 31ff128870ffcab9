"""Packages that a Python model asks for: how they are written."""

from __future__ import annotations

import pytest

from engine.programs.python_requirements import is_requirement, parse_requirement


@pytest.mark.parametrize("text", ["", "a b", "a>=", "a~=1", "a @ http://x", "a[x]"])
def test_what_is_not_understood(text: str) -> None:
    assert not is_requirement(text)


def test_a_package_and_its_versions() -> None:
    assert parse_requirement("numpy") == ("numpy", [])
    assert parse_requirement("numpy >= 2, <3.1") == (
        "numpy",
        [(">=", "2"), ("<", "3.1")],
    )
