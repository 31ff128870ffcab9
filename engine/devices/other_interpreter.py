"""Lend the engine to another Python interpreter, which starts with this file.

That interpreter need not have PopGate installed. It finds the packages of `LENT` where
this file is installed, and no other packages there. The first argument is a JSON object
with more packages, which run the model, and the folder that each is in. The
dependencies of these packages (`NEEDED`) and those of the model come from the
interpreter. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType

LENT = ("engine", "popef_io", "popgate")
NEEDED = ("numpy", "msgpack", "msgspec")
OLDEST = (3, 11)


class LentFinder:
    """Finds the lent packages before any other finder runs."""

    def __init__(self, places: Mapping[str, str]) -> None:
        #: The folder that each package is in.
        self._places = places

    def find_spec(
        self,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._places:
            return None
        return importlib.machinery.PathFinder.find_spec(name, [self._places[name]])


def missing() -> str:
    """Return in words what this interpreter lacks; empty if it lacks nothing."""
    have = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        return f"{sys.executable} is Python {have}; expected {oldest} or later"
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        return f"{sys.executable} (Python {have}) does not have {', '.join(absent)}"
    return ""


def main() -> None:
    problem = missing()
    if problem:
        sys.exit(problem)
    root = str(Path(__file__).resolve().parent.parent.parent)
    places = {**dict.fromkeys(LENT, root), **json.loads(sys.argv.pop(1))}
    sys.meta_path.insert(0, LentFinder(places))
    runpy.run_module("engine.worker.device_process", run_name="__main__")


if __name__ == "__main__":
    main()
