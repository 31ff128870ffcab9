from __future__ import annotations

import pytest

from popgate_admin.table import align_columns, printable


def test_columns() -> None:
    rows = [["a", "bb", ""], ["ccc", "d", "e"]]
    assert align_columns(rows) == ["a    bb", "ccc  d   e"]
    assert align_columns(rows, right={0, 1}) == ["  a  bb", "ccc   d  e"]
    assert align_columns([["one"]]) == ["one"]
    assert align_columns([]) == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("Reshape:0/1 é 数", "Reshape:0/1 é 数"),
        ("a\tb\x7f", r"a\tb\x7f"),
        ("\u2028\u200b", r"\u2028\u200b"),
        ("\udc80", r"\udc80"),
        ("back\\slash", "back\\slash"),
    ],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
