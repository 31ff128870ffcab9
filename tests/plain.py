"""Modules as Python, for tests that reach into what compiled code keeps closed."""

from __future__ import annotations

import importlib
import importlib.util
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]


def plain(name: str) -> ModuleType:
    """A copy of a module, interpreted even where it is compiled otherwise."""
    importlib.import_module(name)  # dataclasses look it up
    path = ROOT / f"{name.replace('.', '/')}.py"
    loader = SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
