"""Search Markdown files: index them, find the nearest sections, rerank those.

python examples/search/make_models.py docs models
popgate serve -m models &
python examples/search/search.py docs "how do I limit requests per key?"
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np

from popgate import Client

LONGEST = 1200  # characters of a section


class Section(NamedTuple):
    """One section of a page, with the headings above it."""

    page: str
    title: str
    text: str


class Index:
    """Sections and their vectors."""

    def __init__(self, client: Client, sections: list[Section]) -> None:
        self.client = client
        self.sections = sections
        texts = [f"{one.title}\n{one.text}" for one in sections]
        self.vectors = client.embed("encoder", texts)

    def nearest(self, query: str, count: int = 20) -> list[Section]:
        """Return the sections whose vectors are nearest to the query's."""
        scores = self.vectors @ self.client.embed("encoder", query)
        return [self.sections[n] for n in np.argsort(-scores)[:count]]

    def search(self, query: str, count: int = 5) -> list[tuple[float, Section]]:
        """Return the best of the nearest sections, by the reranker's score."""
        near = self.nearest(query)
        texts = [f"{one.title}\n{one.text}" for one in near]
        best = self.client.rerank("reranker", query, texts, top=count)
        return [(one.score, near[one.index]) for one in best]


def sections(folder: Path) -> list[Section]:
    """Return the sections of all Markdown files below a folder."""
    found = []
    for path in sorted(folder.rglob("*.md")):
        page = str(path.relative_to(folder))
        title = page
        for part in re.split(r"^(#+ .*)$", path.read_text("utf-8"), flags=re.MULTILINE):
            if part.startswith("#"):
                title = part.lstrip("# ")
            elif part.strip():
                found.append(Section(page, title, part.strip()[:LONGEST]))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path, help="a folder with Markdown files")
    parser.add_argument("query", nargs="+")
    options = parser.parse_args()
    with Client() as client:
        index = Index(client, sections(options.folder))
        for score, one in index.search(" ".join(options.query)):
            print(f"{score:.2f}  {one.page}: {one.title}")
