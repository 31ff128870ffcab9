from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from popef_io import WriterStateError
from popef_io.replacement import Replacement


def test_takes_the_place(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    output = Replacement(path)
    output.write_at(2, b"cd")
    output.write_at(0, memoryview(b"ab"))
    output.write_at(4, b"more")
    output.truncate(5)
    assert repr(output) == f"<Replacement of {path}>"
    assert path.read_bytes() == b"old"
    output.commit()
    assert path.read_bytes() == b"abcdm"
    assert os.listdir(tmp_path) == ["file"]
    output.discard()
    assert path.read_bytes() == b"abcdm"


@pytest.mark.parametrize("end", ["commit", "discard"])
def test_is_of_no_use_afterwards(tmp_path: Path, end: str) -> None:
    """Its descriptor's number may be another file's by then."""
    output = Replacement(tmp_path / "file")
    getattr(output, end)()
    with (tmp_path / "other").open("wb"):
        with pytest.raises(WriterStateError, match="is closed"):
            output.write_at(0, b"x")
        with pytest.raises(WriterStateError, match="is closed"):
            output.truncate(0)
        with pytest.raises(WriterStateError, match="is closed"):
            output.commit()
    assert (tmp_path / "other").read_bytes() == b""


def test_a_failed_rename_can_be_discarded(tmp_path: Path) -> None:
    path = tmp_path / "file"
    output = Replacement(path)
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        output.commit()
    output.discard()
    assert os.listdir(tmp_path) == ["file"]


def test_a_forked_child_leaves_it_alone(tmp_path: Path) -> None:
    code = (
        "import os, sys\n"
        "from popef_io.replacement import Replacement\n"
        "output = Replacement(sys.argv[1])\n"
        "output.write_at(0, b'x')\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "output.commit()\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    subprocess.run(command, check=True, timeout=60)
    assert (tmp_path / "file").read_bytes() == b"x"


def test_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = Replacement("file")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    output.commit()
    assert (tmp_path / "file").exists()
