"""Translates the hot path to C: python -m native.translate FOLDER LEVEL MODULE.py

It runs in its own process, which ends without freeing mypy's data about a thousand
modules. Freeing them would take as long as the translation. It prints the extensions to
build from the C code, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from typing import Any

import setuptools  # noqa: F401  mypyc makes extensions of whichever is imported
from mypyc.build import mypycify

#: Functions of the compiled modules call each other directly. Without this option they
#: would call each other as functions of a library that others may replace.
DIRECT_CALLS = "-fvisibility=hidden"


def translate(folder: str, level: str, sources: list[str]) -> list[dict[str, Any]]:
    """Return the arguments of `setuptools.Extension` for each extension.

    `level` is the C compiler's optimisation level.
    """
    options = ["--config-file", "native/mypy.ini"]
    made = mypycify(
        [*options, *sources],
        debug_level="0",
        opt_level=level,
        group_name="popgate",
        multi_file=True,  # C files that can be compiled at the same time
        target_dir=folder,
    )
    return [
        {
            "name": extension.name,
            "sources": extension.sources,
            "include_dirs": extension.include_dirs,
            "extra_compile_args": [*extension.extra_compile_args, DIRECT_CALLS],
        }
        for extension in made
    ]


if __name__ == "__main__":
    with redirect_stdout(sys.stderr):
        extensions = translate(sys.argv[1], sys.argv[2], sys.argv[3:])
    print(json.dumps(extensions), flush=True)
    os._exit(0)
