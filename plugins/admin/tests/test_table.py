from __future__ import annotations

from popgate_admin.table import align_columns


def test_columns() -> None:
    rows = [["a", "bb", ""], ["ccc", "d", "e"]]
    assert align_columns(rows) == ["a    bb", "ccc  d   e"]
    assert align_columns(rows, right={0, 1}) == ["  a  bb", "ccc   d  e"]
    assert align_columns([["one"]]) == ["one"]
    assert align_columns([]) == []
