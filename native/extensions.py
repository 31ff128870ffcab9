"""Build the hot path, for `make compiled` and for wheels: see setup.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from setuptools import Extension
from setuptools.command.build_ext import build_ext

from native.modules import c_sources, compiled_sources, module_name


class ParallelBuild(build_ext):  # type: ignore[misc]  # setuptools has no types
    """Compiles as many C files at once as there are cores.

    setuptools compiles the files of one extension one after the other.
    """

    def build_extensions(self) -> None:
        cores = len(os.sched_getaffinity(0))
        compile_some = self.compiler.compile
        with ThreadPoolExecutor(cores) as pool:

            def compile_all(sources: Iterable[str], **options: Any) -> list[str]:
                # Start with the largest file, so that it is not the only one left at
                # the end.
                largest_first = sorted(sources, key=os.path.getsize, reverse=True)
                made = pool.map(lambda c: compile_some([c], **options), largest_first)
                return [file for files in made for file in files]

            self.compiler.compile = compile_all
            self.parallel = cores
            super().build_extensions()


def extensions(root: Path) -> list[Extension]:
    """Return all extensions. Afterwards `build/c/` has the C code that mypyc made from
    the Python modules.

    Exits with the message of mypy or mypyc if one of them refuses a module.
    """
    level = os.environ.get("POPGATE_OPT_LEVEL", "3")
    translate = [sys.executable, "-m", "native.translate", "build/c", level]
    done = subprocess.run(
        [*translate, *compiled_sources(root)],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        sys.exit("the hot path could not be translated to C")
    return [
        *(Extension(**described) for described in json.loads(done.stdout)),
        *(
            Extension(module_name(path), [path], extra_compile_args=["-O3"])
            for path in c_sources(root)
        ),
    ]
