"""Print the lowest version of each dependency that pyproject.toml allows, in pip's
format: python -m native.lowest

It prints the dependencies of the product and of its tests, for `make test-lowest`.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: The extras that the tests use.
EXTRAS = ("dev", "examples")
_BOUNDED = re.compile(r"(?P<name>[\w.-]+(\[[\w,]+\])?)>=(?P<version>[\w.]+)(,.*)?")


def lowest(project: Mapping[str, Any]) -> Iterator[str]:
    """Yield each requirement with its lower bound as its version. A requirement without
    a lower bound stays unchanged.
    """
    required = list(project["dependencies"])
    for extra in EXTRAS:
        required += project["optional-dependencies"][extra]
    for requirement in required:
        found = _BOUNDED.fullmatch(requirement)
        yield f"{found['name']}=={found['version']}" if found else requirement


if __name__ == "__main__":
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    sys.stdout.writelines(f"{line}\n" for line in lowest(project))
