"""Check that Python imports the packages beside this one.

They have everyday names (`engine`, `app`), and a program may have its own packages with
these names. A command of PopGate imports PopGate's. A program that imports both gets an
error, because Python can import only one of them.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parent.parent
#: The packages that a program needs, and those that the command needs besides.
LIBRARY = ("engine", "popef_io")
COMMAND = (*LIBRARY, "app")


def check_packages() -> None:
    """Raise ImportError if another package with the same name precedes ours."""
    for name in LIBRARY:
        loaded = sys.modules.get(name)
        spec = loaded.__spec__ if loaded is not None else find_spec(name)
        where = _place_of(spec)
        if where is not None and not where.is_relative_to(ROOT):
            raise ImportError(
                f"popgate needs its own package {name!r} ({ROOT / name}), but {where} "
                f"is in front of it on Python's path; rename that one, or run models "
                f"in a server of their own (popgate serve)"
            )


def prefer_own() -> None:
    """Import our packages from beside this one from now on.

    The current folder and PYTHONPATH have no effect then. For the process of a command.
    """
    if not any(isinstance(finder, OwnFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, OwnFinder())


class OwnFinder(MetaPathFinder):
    """Finds our packages beside this one."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname not in COMMAND or not (ROOT / fullname).is_dir():
            return None
        return PathFinder.find_spec(fullname, [str(ROOT)], target)


def _place_of(spec: ModuleSpec | None) -> Path | None:
    """Return the folder or file of a package; None if it is missing."""
    if spec is None:
        return None
    if spec.origin is not None:
        return Path(spec.origin).resolve()
    places = list(spec.submodule_search_locations or ())
    return Path(places[0]).resolve() if places else None
