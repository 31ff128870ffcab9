"""The documentation stays short: its words are counted, and their number only falls."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
#: Pages that programs write, or that consist of what a program writes.
GENERATED = {
    "reference/api-engine.md",
    "reference/api-popef_io.md",
    "reference/model-runtime-names.md",
    "reference/openapi.md",
    "reference/popxl-names.md",
}
#: Words of all other pages together. Lower it when pages get shorter, never raise it:
#: a fact that is new on one page replaces another, or has a link in its place.
MOST_WORDS = 45_000


def words(text: str) -> int:
    """Count the words of a page, programs and tables included.

    Bars and dashes that draw a table are none.
    """
    return sum(any(map(str.isalnum, word)) for word in text.split())


def pages() -> dict[str, str]:
    """Return the pages that people write, by their names."""
    found = {p.relative_to(DOCS).as_posix(): p.read_text() for p in DOCS.rglob("*.md")}
    assert found.keys() > GENERATED
    return {name: text for name, text in found.items() if name not in GENERATED}


def test_bars_of_tables_are_no_words() -> None:
    assert words("| a `b c` | 12 |\n| --- | ---: |\n- d, e.") == 6


def test_the_pages_have_at_most_so_many_words() -> None:
    counts = {name: words(text) for name, text in pages().items()}
    longest = sorted(counts, key=lambda name: -counts[name])[:5]
    assert sum(counts.values()) <= MOST_WORDS, f"the longest pages: {longest}"
