"""What pyproject.toml cannot say: POPGATE_COMPILE=1 compiles the hot path of a wheel.

    pip install '.[compile]'
    POPGATE_COMPILE=1 pip wheel --no-build-isolation --no-deps .

Without it nothing is compiled and no compiler is needed (docs/compiled.md).
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import Extension, setup

extensions = []
if os.environ.get("POPGATE_COMPILE") == "1":
    if not (find_spec("mypy") and find_spec("fastapi")):
        # Types of the dependencies are compiled in, and a build cannot fetch them.
        sys.exit("POPGATE_COMPILE=1 needs: pip install '.[compile]', then pip wheel "
                 "--no-build-isolation")  # fmt: skip
    sys.path.insert(0, str(Path(__file__).parent))
    from mypyc.build import mypycify

    from native.modules import DIRECT_CALLS, c_sources, compiled_sources

    root = Path(__file__).parent
    compiled = mypycify(compiled_sources(root), debug_level="0", group_name="popgate")
    for extension in compiled:
        extension.extra_compile_args += DIRECT_CALLS
    extensions = [
        *compiled,
        *(
            Extension(path.removesuffix(".c").replace("/", "."), [path])
            for path in c_sources(root)
        ),
    ]

setup(ext_modules=extensions)
