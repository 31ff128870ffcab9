"""The names of the compiler, which a plugin provides, for programs that import them
from here.
"""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import Any

#: Entry point group of modules of plugins, each under the name of a module of `engine`.
MODULES = "popgate.engine_modules"


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    for point in entry_points(group=MODULES, name="compiler"):
        return getattr(point.load(), name)
    raise ImportError(
        f"{__name__}.{name} needs a compiler, and no installed plugin provides one "
        f"(entry point compiler of {MODULES})"
    )
