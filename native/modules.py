"""Which modules are compiled: those that every request goes through.

The list is in pyproject.toml, because building a wheel needs it too.
"""

from __future__ import annotations

import tomllib
from pathlib import Path


def compiled_sources(root: Path) -> list[str]:
    """Paths of the source files, relative to `root`, in a fixed order."""
    table = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["popgate"]
    found: list[str] = []
    for pattern in table["compiled"]:
        matches = sorted(root.glob(pattern))
        if not matches:
            raise FileNotFoundError(f"{pattern}: [tool.popgate] names no such file")
        found += [str(match.relative_to(root)) for match in matches]
    return [path for path in found if not path.endswith("__init__.py")]
