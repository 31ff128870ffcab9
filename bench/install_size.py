"""Measure an installation without extras: `python -m bench.install_size`.

It makes a fresh virtual environment, runs `pip install .` there and adds up the
installed files. Bytecode is counted apart: pip writes it, and Python would write it at
first import.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bench.servers.server import ROOT

#: Distributions that `python -m venv` installs by itself.
NOT_OURS = ("pip", "setuptools")


@dataclass(frozen=True, slots=True)
class Size:
    """Size of one distribution, in bytes."""

    name: str
    version: str
    files: int
    bytecode: int

    @property
    def total(self) -> int:
        return self.files + self.bytecode


def installed(site_packages: Path) -> list[Size]:
    """Return the distributions in a folder, the largest first."""
    sizes = []
    for each in importlib.metadata.distributions(path=[str(site_packages)]):
        paths = {Path(str(each.locate_file(file))) for file in each.files or ()}
        plain = [path for path in paths if path.suffix != ".pyc"]
        folders = {path.parent for path in plain if path.suffix == ".py"}
        names = {path.stem for path in plain}
        compiled = [
            path
            for folder in folders
            for path in (folder / "__pycache__").glob("*.pyc")
            if path.name.split(".")[0] in names
        ]
        sizes.append(Size(each.name, each.version, _sum(plain), _sum(compiled)))
    return sorted(sizes, key=lambda size: -size.total)


def _sum(paths: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in paths if path.is_file())


def copy_of_the_source(folder: Path) -> Path:
    """Copy the sources to another folder, because building leaves folders behind."""
    packages = ("popef_io", "engine", "app", "popgate", "plugins")
    for package in packages:
        if (ROOT / package).is_dir():
            shutil.copytree(ROOT / package, folder / package)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, folder)
    return folder


def download_size(python: Path, sizes: Iterable[Size], folder: Path) -> int:
    """Return the bytes of the wheels that such an installation downloads."""
    needed = [f"{size.name}=={size.version}" for size in sizes]
    pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "download", "--no-deps", "-d", str(folder), *needed],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return sum(path.stat().st_size for path in folder.glob("*.whl"))


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        home = Path(name, "venv")
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        python = home / "bin" / "python"
        pip = [str(python), "-m", "pip", "-q", "--disable-pip-version-check"]
        source = copy_of_the_source(Path(name, "source"))
        subprocess.run(
            [*pip, "install", str(source)], check=True, stderr=subprocess.DEVNULL
        )
        (site_packages,) = home.glob("lib/python*/site-packages")
        sizes = [s for s in installed(site_packages) if s.name not in NOT_OURS]
        others = [s for s in sizes if s.name != "popgate"]
        wheels = Path(name, "wheels")
        downloaded = download_size(python, others, wheels)
        print(f"{'distribution':<24} {'version':<12} {'files':>9} {'bytecode':>9}")
        for size in sizes:
            print(
                f"{size.name:<24} {size.version:<12}"
                f" {size.files / 1e6:6.1f} MB {size.bytecode / 1e6:6.1f} MB"
            )
        files = sum(size.files for size in sizes)
        bytecode = sum(size.bytecode for size in sizes)
        print(
            f"\n{len(sizes)} distributions: {downloaded / 1e6:.0f} MB downloaded,"
            f" {files / 1e6:.0f} MB of files on disk,"
            f" {bytecode / 1e6:.0f} MB of bytecode,"
            f" {(files + bytecode) / 1e6:.0f} MB together"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
