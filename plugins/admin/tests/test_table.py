from __future__ import annotations

import pytest

from popgate_admin.table import align_columns, bytes_text, printable


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (1 << 20, "1.0 MiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 40, "3.0 TiB"),
        (1 << 60, "1048576.0 TiB"),
    ],
)
def test_bytes(size: int, text: str) -> None:
    assert bytes_text(size) == text


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
