"""`popgate cache`: lists and empties the cache while a server runs.

Covers: plugins/admin/src/popgate_admin/cache.py,
    plugins/admin/src/popgate_admin/cache_contents.py.
"""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

from tests.app.served import ROOT, ServedGateway, run_popgate

DAY = 86400.0


def aged(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_it_is_emptied_while_a_server_runs(tmp_path: Path) -> None:
    root, folder = tmp_path / "models", tmp_path / "cache"
    root.mkdir()
    shutil.copy(ROOT / "examples" / "digits" / "digits.onnx", root)
    options = ("--cache-dir", str(folder))
    with ServedGateway(root, *options) as served:
        served.wait_ready()
        (file,) = folder.glob("*/*.popef")
        listed = run_popgate("cache", *options)
        assert listed.returncode == 0, listed.stderr
        assert "digits" in listed.stdout
        assert "in use" in listed.stdout  # it was compiled a moment ago
        aged(file, 2 * DAY)
        kept = run_popgate("cache", "--empty", "--older-than", "3d", *options)
        assert "removed 0 of 0" in kept.stdout
        assert file.exists()
        gone = run_popgate("cache", "--empty", "--older-than", "1d", *options)
        assert "removed 1 of 1" in gone.stdout, gone.stdout
        assert "2d ago" in gone.stdout
        assert not file.exists()
        served.infer("digits", image=[[[[0.0] * 8] * 8]])


def test_a_file_that_is_found_counts_as_used(tmp_path: Path) -> None:
    from popgate_onnx.compile_cache import OnnxCompileCache

    source = ROOT / "examples" / "digits" / "digits.onnx"
    cache = OnnxCompileCache(tmp_path)
    try:
        file = cache.popef_for(source)
        aged(file, DAY)
        assert cache.popef_for(source) == file
        assert time.time() - file.stat().st_mtime < DAY / 2
    finally:
        cache.close()


def test_an_age_that_is_none_is_refused() -> None:
    done = run_popgate("cache", "--older-than", "soon")
    assert done.returncode == 2
    assert "as in 30d" in done.stderr
