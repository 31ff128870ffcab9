"""Docstrings, comments, messages and pages follow the rules of CONTRIBUTING.md."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.statements import statements

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: First words of a docstring that hide what the thing is or does.
NOT_FIRST = (
    "What", "Who", "Whoever", "Whose", "Where", "Whether", "Which", "Why", "How",
    "When", "Of", "As", "For", "The same", "From", "Also", "Those", "It", "Nobody",
    "Nothing",
)  # fmt: skip
#: First words of functions in the third person: the imperative is shorter.
THIRD_PERSON = (
    "Returns", "Raises", "Yields", "Runs", "Writes", "Refuses", "Removes", "Takes",
    "Stops", "Serves", "Ends", "Makes", "Reads a", "Gives", "Fails", "Keeps", "Lets",
    "Compiles", "Sends", "Loads", "Shows", "Leaves", "Begins", "Copies", "Puts",
    "Drops", "Adds", "Says", "Waits", "Fills", "Brings", "Downloads", "Appends",
)  # fmt: skip
#: Words that stand for one of the field's own, and the word to use.
NOT_USED = {
    r"[Ww]hoever": "the client, the caller",
    r"[Aa] text (?!model|of this|file|is parsed|that does)": "a string",
    r"[Ll]ikewise": "the fact itself",
    r"[Ww]here there (?:is|are)": "if there is",
    r"[Nn]obody|[Aa]nybody": "no client, any host",
}


#: Files of the repository, as docstrings and comments name them.
NAMED = re.compile(
    r"(?<![\w/.~-])(?:app|bench|docs|engine|examples|native|plugins|popef_io|popgate)"
    r"/[\w./-]+\.(?:c|md|py|sh|toml)\b"
)


@cache
def sources() -> tuple[Path, ...]:
    packages = ["app", "engine", "popef_io", "popgate", "native", "bench"]
    found = [p for name in packages for p in (ROOT / name).rglob("*.py")]
    found += ROOT.glob("plugins/*/src/**/*.py")
    return tuple(sorted(found))


def pages() -> list[Path]:
    """Return the pages that people read: not the changelog, nor what was measured."""
    found = [path for path in ROOT.glob("*.md") if path.name != "CHANGELOG.md"]
    found += [ROOT / name / "README.md" for name in ("bench", "examples")]
    return [*found, *DOCS.rglob("*.md"), *ROOT.glob("plugins/*/README.md")]


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in (tree, *statements(tree)):
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


def functions(path: Path) -> Iterator[tuple[ast.FunctionDef, str]]:
    for node in statements(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield node, text


def gives_a_value(node: ast.FunctionDef) -> bool:
    """Return whether callers get a value from it, which is no property."""
    wrapped = " ".join(ast.unparse(each) for each in node.decorator_list)
    if re.search(r"property|\.setter|contextmanager|fixture", wrapped):
        return False
    kind = ast.unparse(node.returns) if node.returns is not None else "None"
    return not re.match(r"None|NoReturn|Iterator|Generator", kind)


def test_functions_begin_with_a_verb() -> None:
    person = re.compile(rf"(?:{'|'.join(THIRD_PERSON)})\b")
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {text.splitlines()[0]}"
        for path in sources()
        for node, text in functions(path)
        if person.match(text) or (re.match("The |A |An ", text) and gives_a_value(node))
    ]
    assert not wrong, "begin with the imperative: Return ..., Raise ..."


@pytest.mark.parametrize("pattern", NOT_USED)
def test_words_that_are_not_used(pattern: str) -> None:
    word = re.compile(rf"\b(?:{pattern})\b" if pattern[-1] != ")" else pattern)
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in (*sources(), *pages())
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if word.search(line) and "popxl-names" not in path.name
    ]
    assert not found, f"write {NOT_USED[pattern]}"


def test_files_that_sources_name_are_there() -> None:
    code = [
        p for name in ("app", "bench", "popef_io") for p in (ROOT / name).rglob("*.c")
    ]
    found = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for path in (*sources(), *code)
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        for name in NAMED.findall(line)
        if not (ROOT / name).exists()
    ]
    assert not found
