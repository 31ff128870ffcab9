"""Compile a module in C, so that it is tested where all else is plain Python."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType


def compiled(source: Path, folder: Path) -> ModuleType:
    """Return the module of a C file, compiled in `folder` without warnings."""
    library = folder / f"{source.stem}{sysconfig.get_config_var('EXT_SUFFIX')}"
    compiler = sysconfig.get_config_var("CC").split()
    include = sysconfig.get_paths()["include"]
    options = ["-O2", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror"]
    subprocess.run(
        [*compiler, *options, "-shared", "-fPIC", f"-I{include}", str(source),
         "-o", str(library)],
        check=True,
    )  # fmt: skip
    spec = importlib.util.spec_from_file_location(source.stem, library)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
