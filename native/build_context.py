"""The build context of the container image, which `.dockerignore` selects, and the
instructions of the Dockerfile that use this context.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Instruction:
    """An instruction of a Dockerfile in one line: its name and its arguments, such as
    `COPY` and `deploy /opt`.
    """

    name: str
    rest: str

    @property
    def stage(self) -> str:
        """Return the stage that a COPY reads; empty for the build context."""
        found = re.match(r"--from=(\S+)", self.rest)
        return found[1] if found else ""

    @property
    def places(self) -> list[str]:
        """Return the sources of a COPY, and its target as the last item."""
        return [word for word in self.rest.split() if not word.startswith("--")]


def read_instructions(dockerfile: Path) -> list[Instruction]:
    """Return the instructions of a Dockerfile, with continued lines joined."""
    lines = dockerfile.read_text().splitlines()
    text = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    joined = re.sub(r"\\\n\s*", " ", text)
    instructions = []
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        instructions.append(Instruction(name.upper(), rest.strip()))
    return instructions


def _expression(pattern: str) -> re.Pattern[str]:
    """Return the regular expression for a pattern as Docker reads it."""
    parts = re.split(r"(\*\*/?|\*|\?)", pattern.strip("/"))
    meaning = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    return re.compile("".join(meaning.get(part, re.escape(part)) for part in parts))


class Ignored:
    """The patterns of a `.dockerignore`. The last pattern that matches decides."""

    def __init__(self, text: str) -> None:
        lines = [line.strip() for line in text.splitlines()]
        rules = [line for line in lines if line and not line.startswith("#")]
        self._rules = [(_expression(r.lstrip("!")), r.startswith("!")) for r in rules]
        self._exceptions = [r[1:].strip("/") for r in rules if r.startswith("!")]

    def covers(self, path: str) -> bool:
        """Return whether the builder does not see a path, because of the path itself or
        a folder above it.
        """
        parts = path.split("/")
        names = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        ignored = False
        for expression, is_exception in self._rules:
            if any(expression.fullmatch(name) for name in names):
                ignored = not is_exception
        return ignored

    def may_have_exceptions(self, folder: str) -> bool:
        """Return whether an exception names a path inside a folder."""
        return any(name.startswith(f"{folder}/") for name in self._exceptions)


def context_files(root: Path) -> Iterator[str]:
    """Yield the paths below `root` that `.dockerignore` lets through."""
    ignored = Ignored((root / ".dockerignore").read_text())
    for folder, inner, files in os.walk(root):
        below = Path(folder).relative_to(root).as_posix()
        prefix = "" if below == "." else f"{below}/"
        inner[:] = [
            name
            for name in sorted(inner)
            if not ignored.covers(prefix + name)
            or ignored.may_have_exceptions(prefix + name)
        ]
        yield from (prefix + f for f in sorted(files) if not ignored.covers(prefix + f))


def copy_context(root: Path, target: Path) -> None:
    """Copy the build context of the tree at `root` into the folder `target`."""
    for name in context_files(root):
        place = target / name
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(root / name, place)
