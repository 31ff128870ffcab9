"""The site of the documentation: navigation and links. `make docs` builds it."""

from __future__ import annotations

import re
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
MOST_PAGES = 40
_LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)")


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, which names Python functions, without importing them."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def settings() -> Any:
    """Return what mkdocs.yml says."""
    return yaml.load((ROOT / "mkdocs.yml").read_text(), Loader)


def in_navigation() -> list[str]:
    """Return the pages that mkdocs.yml lists, in order."""

    def pages(item: Any) -> list[str]:
        if isinstance(item, str):
            return [item]
        values = item.values() if isinstance(item, dict) else item
        return [page for value in values for page in pages(value)]

    return pages(settings()["nav"])


@cache
def anchors(path: Path) -> frozenset[str]:
    """Return the anchors of the headings of a page, and those in its HTML."""
    text = path.read_text(encoding="utf-8")
    tokens = MarkdownIt().parse(text)
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for opening, inline in pairwise(tokens):
        if opening.type == "heading_open":
            title = "".join(c.content for c in inline.children or [])
            slug = re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")
            found.add(slug)
    return frozenset(found)


def test_the_navigation_has_every_page_once() -> None:
    pages = [path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")]
    assert sorted(in_navigation()) == sorted(pages)
    assert len(pages) <= MOST_PAGES


def test_what_mkdocs_reads_is_in_the_repository() -> None:
    theme = settings()["theme"]
    named = [*settings()["hooks"], settings()["docs_dir"]]
    named += [theme[key] for key in ("custom_dir",) if key in theme]
    named += [f"docs/{theme[key]}" for key in ("favicon", "logo")]
    assert [path for path in named if not (ROOT / path).exists()] == []


def documents() -> list[Path]:
    made = ROOT / "build"  # `make test-buckets` puts others' documents there
    below = (p for p in ROOT.glob("[a-z]*/**/*.md") if not p.is_relative_to(made))
    return [*ROOT.glob("*.md"), *below]


@pytest.mark.parametrize("document", documents(), ids=lambda p: str(p)[-40:])
def test_links_lead_somewhere(document: Path) -> None:
    broken = []
    for target, anchor in _LINK.findall(document.read_text(encoding="utf-8")):
        path = document.parent / target if target else document
        is_page = path.suffix == ".md"
        if not path.exists() or (anchor and is_page and anchor not in anchors(path)):
            broken.append(f"{target}#{anchor}" if anchor else target)
    assert not broken, f"{document.relative_to(ROOT)} links to {broken}"


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("docs/explanation/architecture.md", "### A small JSON request, step by step"),
        ("CONTRIBUTING.md", "## Where is"),
    ],
)
def test_files_have_the_names_that_stand_beside_them(page: str, title: str) -> None:
    _, found, text = (ROOT / page).read_text().partition(f"\n{title}\n")
    assert found
    wrong = []
    for row in (line for line in text.splitlines() if line.startswith("|")):
        links = [link for link, _ in _LINK.findall(row)]
        code = "".join(((ROOT / page).parent / link).read_text() for link in links)
        wrong += [
            f"{name}: {', '.join(links)}"
            for name in re.findall(r"`([\w.]+)", row)
            if not re.search(rf"\b{name.rpartition('.')[2]}\b", code)
        ]
    assert not wrong
