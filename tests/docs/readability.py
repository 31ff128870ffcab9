"""Count how readable the pages are: `python -m tests.docs.readability`.

Guide pages are those of docs/tutorials, docs/how-to and docs/explanation. Each must
have a Flesch reading ease of at least 50. No page, the reference included, may have a
sentence of more than 35 words. Code blocks, tables and headings do not count. Code in
a sentence counts as one word of one syllable.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

DOCS = Path(__file__).resolve().parents[2] / "docs"
GUIDES = ("tutorials", "how-to", "explanation")
LEAST_EASE = 50.0
MOST_WORDS = 35
_WORD = re.compile(r"[A-Za-z0-9][\w'-]*")
_END = re.compile(r"(?<=[.!?])[\"')]*\s+(?=[A-Z`\"'(0-9])")
_VOWELS = re.compile(r"[aeiouy]+")


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page. `line` is that of its paragraph, from 1."""

    page: str
    line: int
    text: str

    @property
    def words(self) -> list[str]:
        return _WORD.findall(self.text)


def sentences(path: Path) -> Iterator[Sentence]:
    """Yield the sentences of a page, those of list items included."""
    page = path.relative_to(DOCS).as_posix()
    tokens = MarkdownIt("commonmark").enable("table").parse(path.read_text("utf-8"))
    skipped = 0
    for token in tokens:
        if token.type in ("table_open", "heading_open"):
            skipped += 1
        elif token.type in ("table_close", "heading_close"):
            skipped -= 1
        elif token.type == "inline" and not skipped:
            assert token.map is not None
            for text in _END.split(_plain(token)):
                sentence = Sentence(page, token.map[0] + 1, text.strip())
                if sentence.words:
                    yield sentence


def _plain(token: Token) -> str:
    """Return the text of a paragraph, with each piece of code as the word `X`."""
    parts = []
    for child in token.children or []:
        match child.type:
            case "text":
                parts.append(child.content)
            case "code_inline":
                parts.append("X")
            case "softbreak" | "hardbreak":
                # The pages have one sentence in a line.
                parts.append("\n")
    return "".join(parts)


def syllables(word: str) -> int:
    """Estimate the syllables of an English word: groups of vowels, less a silent e."""
    word = word.lower()
    count = len(_VOWELS.findall(word))
    if word.endswith(("e", "es", "ed")) and not word.endswith(("le", "ted", "ded")):
        count -= 1
    return max(count, 1)


def reading_ease(found: list[Sentence]) -> float:
    """Return the Flesch reading ease: 100 is very easy, 50 fairly difficult."""
    words = [word for sentence in found for word in sentence.words]
    if not words:
        return 100.0
    per_word = sum(map(syllables, words)) / len(words)
    return 206.835 - 1.015 * len(words) / len(found) - 84.6 * per_word


def faults() -> Iterator[str]:
    """Yield what breaks the rules above, a line for each."""
    for path in sorted(DOCS.rglob("*.md")):
        found = list(sentences(path))
        for each in found:
            if len(each.words) > MOST_WORDS:
                yield (
                    f"docs/{each.page}:{each.line}: {len(each.words)} words, "
                    f"{MOST_WORDS} are allowed: {each.text[:60]}..."
                )
        page = path.relative_to(DOCS)
        ease = reading_ease(found)
        if page.parts[0] in GUIDES and ease < LEAST_EASE:
            yield f"docs/{page}: reading ease {ease:.0f}, at least {LEAST_EASE:.0f}"


def main() -> int:
    """Print all faults. Returns the exit code: 1 if there are any."""
    found = list(faults())
    sys.stdout.writelines(f"{fault}\n" for fault in found)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
