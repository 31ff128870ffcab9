"""Uploaded files: where they are, and that nothing is left of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from app.repository.control.uploads import Uploads

HOLD = """
import sys
from pathlib import Path
from app.repository.control.uploads import Uploads
uploads = Uploads(Path(sys.argv[1]))
uploads.store("m", {"1/a": b"x"})
print("stored", flush=True)
sys.stdin.read()
"""


def files(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if p.is_file())


def test_nothing_is_made_until_something_is_stored(tmp_path: Path) -> None:
    folder = tmp_path / "uploads"
    uploads = Uploads(folder)
    uploads.sweep()
    uploads.close()
    assert not folder.exists()


def test_stored_removed_and_closed(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    first = uploads.store("m", {"1/a": b"xy", "config.toml": b""})
    second = uploads.store("m", {"1/b": b""})
    assert (first / "m" / "1" / "a").read_bytes() == b"xy"
    assert files(tmp_path) == [".lock", "a", "b", "config.toml"]
    (mine,) = tmp_path.iterdir()
    assert mine.stat().st_mode & 0o077 == 0
    uploads.remove(first)
    assert files(tmp_path) == [".lock", "b"]
    assert second.exists()
    uploads.close()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_left_is_swept_and_that_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stored\n"
        uploads = Uploads(tmp_path)
        uploads.sweep()
        assert files(tmp_path) == [".lock", "a"]
        process.kill()
        process.wait()
        uploads.sweep()
        assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    uploads = Uploads(tmp_path)
    with pytest.raises(OSError, match="long"):
        uploads.store("m", {"1/" + "x" * 300: b"x"})
    assert files(tmp_path) == [".lock"]
    uploads.close()


def test_a_folder_beside_an_unusable_cache_is_ours_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user may have made a folder of any name that can be guessed."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    guessed = tmp_path / f"popgate-{os.getuid()}"
    guessed.mkdir()
    guessed.chmod(0o777)
    (tmp_path / "cache").write_text("a file")
    uploads = Uploads(tmp_path / "cache" / "uploads")
    root = uploads.store("m", {"1/a": b"x"})
    assert root.parent.parent == tmp_path
    assert root.parent.stat().st_mode & 0o077 == 0
    assert list(guessed.iterdir()) == []
    uploads.close()
    assert not root.parent.exists()
