"""Commands in a terminal: reports and errors stand alone, whatever was drawn before."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from plugins.onnx.tests.test_compile_command import save
from tests.app.cli.terminal import in_terminal, shown
from tests.engine import models


def test_what_a_terminal_shows() -> None:
    assert shown("one\r\ntwo\r\x1b[2Kthree\r\n") == ["one", "three"]
    assert shown("bar 1\r\n\x1b[1A\x1b[2Kdone\x1b[?25h") == ["done"]
    assert shown("long line\rshort\x1b[K\x1b[31m!\x1b[0m") == ["short!"]
    assert shown("spin 0:00report\r\n") == ["spin 0:00report"]


def test_compile_reports_and_fails_on_lines_of_their_own(tmp_path: Path) -> None:
    good = save(tmp_path / "good.onnx")
    bad = save(tmp_path / "bad.onnx", operator="NoSuchOperator")
    seen = in_terminal("compile", good, bad, "--out-dir", ".", cwd=tmp_path)
    assert seen.code == 1
    assert "good.onnx: " in seen.written  # it was drawn, and is gone
    report, takes, gives, batching, error, *last = seen.lines
    assert re.fullmatch(re.escape(str(good)) + r" → good.popef, .* KiB, .* s", report)
    assert takes == "  takes x FP32[-1,3]"
    assert gives == "  gives y FP32[-1,3]"
    assert batching.startswith("  batching: on, ")
    assert error.startswith(f"popgate: error: {bad}: ")
    assert last[-1] == "1 compiled, 1 failed"


@pytest.mark.parametrize("what", [["run"], ["bench", "queues"], ["bench", "callbacks"]])
def test_measurements_follow_what_was_drawn(tmp_path: Path, what: list[str]) -> None:
    model = models.affine(tmp_path / "m.popef")
    options = ["--iterations", "50"] if what == ["run"] else ["--seconds", "0.02"]
    options += ["--threads", "1,2"] if "bench" in what else []
    seen = in_terminal(*what, model, *options)
    assert seen.code == 0, seen.lines
    assert "measuring" in seen.written or "running" in seen.written
    assert not any("measuring" in line or "running" in line for line in seen.lines)
    first = seen.lines[0]
    assert first.startswith("output  FP32[") if what == ["run"] else "batch" in first


def test_an_error_follows_what_was_drawn(tmp_path: Path) -> None:
    bad = save(tmp_path / "bad.onnx", operator="NoSuchOperator")
    seen = in_terminal("run", bad)
    assert seen.code == 1
    assert seen.lines[0].startswith(f"popgate: error: {bad}: ")
