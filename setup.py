"""What pyproject.toml cannot say: the README without links into the source tree, and
POPGATE_COMPILE=1, which compiles the hot path of a wheel.

    pip install '.[compile]'
    POPGATE_COMPILE=1 pip wheel --no-build-isolation --no-deps .

Without it nothing is compiled and no compiler is needed (docs/how-to/tune.md).
"""

from __future__ import annotations

import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import setup

# An index page has nothing beside it that these links could lead to.
README = re.sub(
    r"\[([^]]+)\]\((?!https?:)[^)]+\)",
    r"\1",
    Path(__file__).with_name("README.md").read_text(encoding="utf-8"),
)
DESCRIPTION = {
    "long_description": README,
    "long_description_content_type": "text/markdown",
}

if os.environ.get("POPGATE_COMPILE") == "1":
    if not (find_spec("mypy") and find_spec("fastapi")):
        # Types of the dependencies are compiled in, and a build cannot fetch them.
        sys.exit("POPGATE_COMPILE=1 needs: pip install '.[compile]', then pip wheel "
                 "--no-build-isolation")  # fmt: skip
    root = Path(__file__).parent
    sys.path.insert(0, str(root))
    from native.extensions import ParallelBuild, extensions

    setup(
        **DESCRIPTION,
        ext_modules=extensions(root),
        cmdclass={"build_ext": ParallelBuild},
    )
else:
    setup(**DESCRIPTION)
