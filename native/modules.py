"""The list of compiled modules: the modules that every request goes through.

The list is in pyproject.toml, because building a wheel needs it too. It has Python
modules for mypyc, and C files.
"""

from __future__ import annotations

import tomllib
from pathlib import Path


def c_sources(root: Path) -> list[str]:
    """Return the paths of the C files, relative to `root`."""
    return _listed(root, "c_modules")


def compiled_sources(root: Path) -> list[str]:
    """Return the paths of the Python files, relative to `root`, in a fixed order."""
    found = _listed(root, "compiled")
    return [path for path in found if not path.endswith("__init__.py")]


def module_file(path: str) -> str:
    """Return the path of a listed file below the folder from which Python imports it.

    A plugin's folder is ``plugins/NAME/src``.
    """
    parts = path.split("/")
    return "/".join(parts[3:] if parts[0] == "plugins" else parts)


def module_name(path: str) -> str:
    """Return the name of the module in a file, which is relative to the root."""
    name = module_file(path).removesuffix(".py").removesuffix(".c")
    return name.removesuffix("/__init__").replace("/", ".")


def _listed(root: Path, key: str) -> list[str]:
    table = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["popgate"]
    found: list[str] = []
    for pattern in table.get(key, ()):
        matches = sorted(root.glob(pattern))
        if not matches:
            raise FileNotFoundError(f"{pattern}: [tool.popgate] names no such file")
        found += [str(match.relative_to(root)) for match in matches]
    return found
