"""Docstrings, comments, messages and pages follow the rules of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: First words of a docstring that hide what the thing is or does.
NOT_FIRST = (
    "What", "Who", "Whoever", "Whose", "Where", "Whether", "Which", "Why", "How",
    "When", "Of", "As", "For", "The same", "From", "Also", "Those", "It", "Nobody",
    "Nothing",
)  # fmt: skip
#: Words that stand for one of the field's own, and the word to use.
NOT_USED = {
    r"[Ww]hoever": "the client, the caller",
    r"[Aa] text (?!model|of this|file|is parsed|that does)": "a string",
    r"[Ll]ikewise": "the fact itself",
    r"[Ww]here there (?:is|are)": "if there is",
    r"[Nn]obody|[Aa]nybody": "no client, any host",
}


@cache
def sources() -> tuple[Path, ...]:
    packages = [
        "app",
        "engine",
        "popef_io",
        "popgate",
        "native",
        "bench",
    ]
    found = [p for name in packages for p in (ROOT / name).rglob("*.py")]
    found += ROOT.glob("plugins/*/src/**/*.py")
    return tuple(sorted(found))


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def test_docstrings_begin_with_the_thing() -> None:
    begins = re.compile(rf"(?:{'|'.join(NOT_FIRST)})\b")
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sources()
        for line, text in docstrings(path)
        if begins.match(text)
    ]
    assert not wrong, "begin with a verb, or with the noun that the thing is"


@pytest.mark.parametrize("pattern", NOT_USED)
def test_words_that_are_not_used(pattern: str) -> None:
    word = re.compile(rf"\b(?:{pattern})\b" if pattern[-1] != ")" else pattern)
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (*sources(), *DOCS.rglob("*.md"), ROOT / "README.md")
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if word.search(line) and "popxl-names" not in path.name
    ]
    assert not found, f"write {NOT_USED[pattern]}"
