"""Lend the engine to another Python interpreter, which starts with this file.

That interpreter need not have PopGate installed. The first argument is a JSON object
with the packages that it finds where PopGate is installed, and the folder that each is
in. The dependencies of these packages (`NEEDED`) and those of the model come from the
interpreter. Standard library only.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import runpy
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType

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
    sys.meta_path.insert(0, LentFinder(json.loads(sys.argv.pop(1))))
    runpy.run_module("engine.worker.device_process", run_name="__main__")


if __name__ == "__main__":
    main()
