"""The archive and the wheel work where nothing of the source tree is.

The wheel is made from the files of the image's context, as the Dockerfile does.
"""

from __future__ import annotations

import email
import re
import shutil
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from native.build_context import context_files, copy_context
from tests.native.installed import ROOT, install, run, serves_the_example

#: Folders with packages in them.
FOLDERS = (ROOT, *sorted(ROOT.glob("plugins/*/src")))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_NOT_COPIED = (
    ".[!d]*",
    "build",
    "dist",
    "*.egg-info",
    "__pycache__",
    "*.so",
    "results",
)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source archive, which `python -m build` makes first."""
    folder = tmp_path_factory.mktemp("dist")
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(*_NOT_COPIED))
    build = (sys.executable, "-m", "build", "--no-isolation", "--sdist")
    run(*build, "-o", folder, cwd=source)
    (made,) = folder.glob("*.tar.gz")
    assert made.name == f"popgate-{PROJECT['version']}.tar.gz"
    return made


@pytest.fixture(scope="module")
def source(archive: Path) -> Path:
    """The files of the source archive."""
    with tarfile.open(archive) as packed:
        packed.extractall(archive.parent / "unpacked", filter="data")
    (folder,) = (archive.parent / "unpacked").iterdir()
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path) -> Path:
    """Made from no other files of the archive than a builder of the image receives."""
    context = source.parent / "context"
    copy_context(source, context)
    build = (sys.executable, "-m", "build", "--no-isolation", "--wheel")
    run(*build, "-o", source.parent / "wheel", cwd=context)
    (made,) = (source.parent / "wheel").glob("*.whl")
    return made


@pytest.fixture(scope="module")
def binaries(wheel: Path) -> Path:
    """Of an environment with the wheel, and the packages that it needs."""
    return install(wheel, wheel.parent / "venv")


def test_all_packages_and_their_data_are_in_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    found = {name for name in names if ".dist-info/" not in name}
    packages = {name.split("/")[0] for name in found}
    expected = {
        path.relative_to(folder).as_posix()
        for folder in FOLDERS
        for package in packages
        for path in (folder / package).rglob("*")
        if path.is_file() and path.suffix not in (".c", ".pyc", ".so", ".pyi")
    }
    assert expected <= found
    ours = "popgate", "app", "engine", "popef_io"
    plugins = {path.name for path in ROOT.glob("plugins/*/src/*") if path.is_dir()}
    assert plugins
    assert packages == {*ours, *plugins}
    assert {f"{name}/py.typed" for name in ("popgate", "app", "engine")} <= found


def test_the_source_archive_builds_the_image(source: Path) -> None:
    # Without what tools have left in the tree.
    built = re.compile(r".*\.(?:c|so)|.*(?:__pycache__|\.egg-info/|/\.).*")
    made = {name for name in context_files(ROOT) if not built.fullmatch(name)}
    there = set(context_files(source))
    assert made <= there, sorted(made - there)[:10]
    assert all((source / n).read_bytes() == (ROOT / n).read_bytes() for n in made)
    assert (source / "Dockerfile").read_text() == (ROOT / "Dockerfile").read_text()


def test_the_index_page_has_no_link_into_the_source_tree(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith("/METADATA")]
        metadata = email.message_from_string(archive.read(name).decode())
    assert metadata["Keywords"] == ",".join(PROJECT["keywords"])
    text = metadata.get_payload()
    assert isinstance(text, str)
    links = re.findall(r"\]\(([^)]+)\)", text)
    assert all(link.startswith(("https://", "#")) for link in links), links
    assert "docs/reference/runner.md" in text


def test_it_works_outside_the_source_tree(binaries: Path, tmp_path: Path) -> None:
    said = run(binaries / "popgate", "--version", cwd=tmp_path)
    assert said == f"popgate {PROJECT['version']}\n"
    code = (
        "import popgate, app, engine, model_runtime, popart, popef, popir, popxl\n"
        "for package in (popgate, app, engine, model_runtime, popart, popir, popxl):\n"
        "    print(package.__file__)\n"
        "print(popgate.__version__)"
    )
    *files, version = run(binaries / "python", "-c", code, cwd=tmp_path).splitlines()
    assert version == PROJECT["version"]
    assert all(Path(file).is_relative_to(binaries.parent) for file in files), files
    digits = ROOT / "examples" / "digits"
    run(binaries / "popgate", "compile", digits / "digits.onnx", "-o", "d.popef",
        cwd=tmp_path)  # fmt: skip
    code = (
        "import numpy, popgate\n"
        f"images = numpy.load({str(digits / 'test_images.npy')!r})[:4]\n"
        "with popgate.ModelRunner('d.popef') as runner:\n"
        "    print(runner.execute(images)['digit'].tolist())"
    )
    assert run(binaries / "python", "-c", code, cwd=tmp_path) == "[2, 8, 2, 6]\n"


def test_it_serves_outside_the_source_tree(binaries: Path, tmp_path: Path) -> None:
    serves_the_example(binaries, tmp_path)
