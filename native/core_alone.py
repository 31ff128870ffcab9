"""Install the core without plugins in its own environment, for `make test-core`.

    python -m native.core_alone build/core

The new environment borrows the packages of the environment that runs this, but not its
`.pth` files. So the source tree and its plugins are not on its path.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CORE = ("popef_io", "engine", "app", "popgate")
_GROUP = re.compile(r"^\[project\.entry-points\..*?(?=^\[)", re.MULTILINE | re.DOTALL)
_WHERE = re.compile(r"^where = \[.*?\]", re.MULTILINE | re.DOTALL)


def without_plugins(pyproject: str) -> str:
    """Return the pyproject.toml without the plugins' entry points and folders."""
    return _WHERE.sub('where = ["."]', _GROUP.sub("", pyproject))


def copy_core(folder: Path) -> None:
    """Copy the files from which a wheel of the core is built."""
    for package in CORE:
        ignore = shutil.ignore_patterns("__pycache__", "*.so")
        shutil.copytree(ROOT / package, folder / package, ignore=ignore)
    for name in ("README.md", "LICENSE", "setup.py"):
        shutil.copy(ROOT / name, folder)
    text = without_plugins((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")


def install(target: Path) -> None:
    """Make the environment `target`. Replace one that is already there."""
    venv.create(target, clear=True, symlinks=True, with_pip=False)
    python = target / "bin" / "python"
    ask = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    answer = subprocess.run([python, "-c", ask], check=True, stdout=subprocess.PIPE)
    packages = Path(answer.stdout.decode().strip())
    ours = sysconfig.get_paths()["purelib"]
    with tempfile.TemporaryDirectory() as folder:
        copy_core(Path(folder))
        pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
        how = ["--no-deps", "--no-build-isolation", "--no-compile"]
        where = ["--target", str(packages), folder]
        subprocess.run([*pip, "install", *how, *where], check=True)
    # The borrowed packages come after the core, because the first distribution of a
    # name on the path provides its entry points.
    (packages / "borrowed.pth").write_text(f"{ours}\n")


if __name__ == "__main__":
    install(Path(sys.argv[1]))
