"""The locked dependencies: Makefile, requirements/."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.native.installed import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMPILE = PROJECT["optional-dependencies"]["compile"]
HASH = re.compile(r"--hash=sha256:[0-9a-f]{64}")


def locked(name: str) -> list[tuple[Requirement, int]]:
    """Return the requirements of a lock file, each with its number of hashes."""
    text = (ROOT / "requirements" / name).read_text()
    lines = [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]
    assert not any(line.startswith(("-", "#")) for line in lines)
    return [
        (Requirement(line.partition("--hash")[0]), len(HASH.findall(line)))
        for line in lines
    ]


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("serve.txt", PROJECT["dependencies"]),
        ("build.txt", PROJECT["dependencies"] + COMPILE),
        ("pip.txt", ["pip"]),
    ],
)
def test_the_lock_is_what_the_project_asks_for(
    name: str, wanted: list[str], version: str
) -> None:
    """A change of pyproject.toml that the lock contradicts needs `make lock`."""
    environment = {"python_version": version, "python_full_version": f"{version}.0"}
    there = {
        requirement.name: str(requirement.specifier).removeprefix("==")
        for requirement, _ in locked(name)
        if requirement.marker is None or requirement.marker.evaluate(environment)
    }
    for each in map(Requirement, wanted):
        assert each.specifier.contains(there[each.name], prereleases=True), each


@pytest.mark.parametrize("name", ["serve.txt", "build.txt", "pip.txt"])
def test_every_line_has_hashes_and_no_host(name: str) -> None:
    for requirement, hashes in locked(name):
        assert hashes, requirement
        assert str(requirement.specifier).startswith("=="), requirement
        assert requirement.url is None
    assert "://" not in (ROOT / "requirements" / name).read_text()


def test_the_image_is_built_over_what_is_served() -> None:
    build = {str(requirement) for requirement, _ in locked("build.txt")}
    assert {str(requirement) for requirement, _ in locked("serve.txt")} <= build


@pytest.mark.parametrize("has_pip", [True, False])
def test_an_environment_has_pip_with_and_without_an_index(
    tmp_path: Path, has_pip: bool
) -> None:
    (tmp_path / "requirements").symlink_to(ROOT / "requirements")
    # This pip stands for that of the Python which makes the environment.
    (tmp_path / "base").mkdir()
    python = tmp_path / "base" / "python3"
    python.write_text(
        '#!/bin/sh\nif [ "$2" = pip ]; then\n'
        + ("exit 0\n" if has_pip else "exit 1\n")
        + f'fi\necho "$@" >> {tmp_path}/venvs\nexec {sys.executable} "$@"\n'
    )
    python.chmod(0o755)
    done = subprocess.run(
        [
            "make",
            "-f",
            ROOT / "Makefile",
            f"PYTHON={python}",
            "VENV=.venv",
            ".venv/.python",
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    made = (tmp_path / "venvs").read_text().splitlines()[1:]
    expected = ["-m venv --without-pip .venv"]
    assert made == (expected if has_pip else [*expected, "-m venv .venv"])
    if not has_pip:
        pip = [str(tmp_path / ".venv/bin/python"), "-m", "pip", "--version"]
        assert subprocess.run(pip, check=False, capture_output=True).returncode == 0


def test_pinning_writes_the_digest_beside_the_tag(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Dockerfile", tmp_path)
    docker = tmp_path / "docker"
    docker.write_text(
        '#!/bin/sh\necho sha256:$(printf %s "$4" | sha256sum | cut -c1-64)\n'
    )
    docker.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    for _ in range(2):
        done = subprocess.run(
            ["make", "-f", ROOT / "Makefile", "pin-image"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    bases = re.findall(r"^ARG BASE=(.*)$", (tmp_path / "Dockerfile").read_text(), re.M)
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.11-slim@sha256:[0-9a-f]{64}", bases[0])
