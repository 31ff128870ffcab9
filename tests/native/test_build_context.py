"""The container image is built from files that are there.

Covers: native/build_context.py, native/image.py.
"""

from __future__ import annotations

import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from setuptools import find_packages

from native.build_context import Ignored, context_files, copy_context, read_instructions
from native.image import ImageFolder
from tests.native.installed import ROOT

INSTRUCTIONS = read_instructions(ROOT / "Dockerfile")


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that a builder receives."""
    folder = tmp_path_factory.mktemp("image") / "context"
    copy_context(ROOT, folder)
    return folder


def test_every_source_of_a_copy_is_in_the_context(context: Path) -> None:
    sources = [
        source
        for instruction in INSTRUCTIONS
        if instruction.name == "COPY" and not instruction.stage
        for source in instruction.places[:-1]
    ]
    assert len(sources) >= 3
    assert [name for name in sources if not (context / name).exists()] == []


def test_every_package_is_in_the_context(context: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    found = project["tool"]["setuptools"]["packages"]["find"]
    there = set(context_files(ROOT))
    for place in found["where"]:
        packages = find_packages(str(ROOT / place), include=found["include"])
        assert packages
        for package in packages:
            folder = (ROOT / place / package.replace(".", "/")).relative_to(ROOT)
            assert (folder / "__init__.py").as_posix() in there, package
    assert not any(name.startswith(("tests/", "docs/", ".")) for name in there)


@pytest.mark.parametrize(
    ("rules", "path", "is_ignored"),
    [
        ("*\n!app", "app/main.py", False),
        ("*\n!app", "tests/test_main.py", True),
        ("*\n!deploy/health.py", "deploy/health.py", False),
        ("*\n!deploy/health.py", "deploy/compose.yaml", True),
        ("*\n!app\n**/*.pyc", "app/http/server.pyc", True),
        ("**/__pycache__", "app/__pycache__/server.txt", True),
        ("# app\n\n", "app/main.py", False),
        ("app/?.py", "app/ab.py", False),
    ],
)
def test_the_last_pattern_that_matches_decides(
    rules: str, path: str, is_ignored: bool
) -> None:
    assert Ignored(rules).covers(path) is is_ignored


def test_instructions_are_performed_below_a_folder(tmp_path: Path) -> None:
    dockerfile = tmp_path / "Dockerfile"
    dockerfile.write_text(
        "FROM base AS build\nWORKDIR /src\nCOPY a.txt ./\n"
        "RUN apt-get update && apt-get install -y gcc\n"
        "RUN mkdir -p /opt/app \\\n    && cp a.txt /opt/app\n"
        "FROM base\nCOPY --from=build /opt/app /opt/app\n"
        'ENV HOME_OF=/opt/app\nHEALTHCHECK CMD ["python", "/opt/app/a.txt"]\n'
        'ENTRYPOINT ["app", "serve"]\n'
    )
    context = tmp_path / "context"
    context.mkdir()
    (context / "a.txt").write_text("content")
    # The instructions need no pip.
    venv.create(tmp_path / "image" / "base", symlinks=True)
    image = ImageFolder(tmp_path / "image", context)
    for instruction in read_instructions(dockerfile):
        image.perform(instruction)
    assert (image.root / "opt/app/a.txt").read_text() == "content"
    assert image.size() == len("content")
    assert image.left_out == ["apt-get update", "apt-get install -y gcc"]
    assert image.entry_point == ["app", "serve"]
    assert image.health_check == ["python", f"{image.root}/opt/app/a.txt"]
    assert image.environment["HOME_OF"] == f"{image.root}/opt/app"


def test_an_instruction_that_is_not_known_ends_the_command(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("ONBUILD RUN true\n")
    code = (
        "from native.image import *\n"
        "image = ImageFolder(Path('i'), Path('c'))\n"
        "for each in read_instructions(Path('Dockerfile')): image.perform(each)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "ONBUILD" in done.stderr
