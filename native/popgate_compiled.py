"""Import a source tree's compiled modules instead of its Python modules, if they match.

`python -m native.build` copies this file into the environment, and the interpreter
imports it when it starts. Outdated compiled modules are never used. The stamp beside
them holds the digests of their sources, and a tree with changed sources runs as Python.
POPGATE_PURE=1 in the environment also turns compiled modules off.

It imports very little, because every Python of the environment runs it.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location

PACKAGES = ("popef_io.", "engine.", "app.", "popgate_")
#: The library that the modules share. mypyc calls modules that are compiled together a
#: group.
GROUP = "popgate__mypyc"
FOLDER = os.path.join("build", "compiled", str(sys.implementation.cache_tag))
STAMP = "stamp.json"


def digest(path: str) -> str:
    """Return the digest of a source file for a stamp."""
    import hashlib

    with open(path, "rb") as source:
        return hashlib.blake2b(source.read(), digest_size=16).hexdigest()


def read_stamp(root: str) -> dict[str, dict[str, str]] | None:
    """Return the stamp of a source tree, None if it is missing or outdated."""
    import json

    try:
        with open(os.path.join(root, FOLDER, STAMP), encoding="utf-8") as file:
            stamp: dict[str, dict[str, str]] = json.load(file)
    except (OSError, ValueError):
        return None
    for path, recorded in stamp["sources"].items():
        full = os.path.join(root, path)
        if not os.path.isfile(full) or digest(full) != recorded:
            return None
    return stamp


class CompiledFinder:
    """Finds the compiled modules of the source tree that a package comes from."""

    def __init__(self) -> None:
        self._stamps: dict[str, dict[str, dict[str, str]] | None] = {}
        self._root = ""

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> ModuleSpec | None:
        if name == GROUP and self._root:
            return self._spec(self._root, name, "group")
        if not name.startswith(PACKAGES) or not isinstance(path, list) or not path:
            return None
        root = path[0]
        for _ in range(name.count(".")):
            root = os.path.dirname(root)
        if os.path.basename(root) == "src":  # plugins/NAME/src
            root = os.path.dirname(os.path.dirname(os.path.dirname(root)))
        if root not in self._stamps:
            self._stamps[root] = read_stamp(root)
        # A process uses one tree, because the modules of two trees would share one
        # library.
        self._root = self._root or root
        return self._spec(root, name, "modules") if root == self._root else None

    def _spec(self, root: str, name: str, kind: str) -> ModuleSpec | None:
        stamp = self._stamps.get(root)
        file = stamp[kind].get(name) if stamp else None
        if file is None:
            return None
        return spec_from_file_location(name, os.path.join(root, FOLDER, file))


def install() -> None:
    if not os.environ.get("POPGATE_PURE"):
        sys.meta_path.insert(0, CompiledFinder())
