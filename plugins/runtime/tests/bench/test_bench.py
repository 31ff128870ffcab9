"""`popgate bench`: sessions by callbacks and through queues.

Covers: plugins/runtime/src/popgate_runtime/bench/command.py,
    plugins/runtime/src/popgate_runtime/bench/queues.py,
    plugins/runtime/src/popgate_runtime/bench/callbacks.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from build_popef import build_fused

from popef_io import load_model
from popgate_runtime.bench import queues
from popgate_tools.local import Interrupt
from tests.app.cli.calls import Call
from tests.engine import models

ROOT = Path(__file__).resolve().parents[4]
QUICK = ("--seconds", 0.05)


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Batches of three rows of four."""
    path = tmp_path_factory.mktemp("bench") / "affine.popef"
    return models.affine(path, batch_size=3)


def lines(text: str) -> list[list[str]]:
    """The rows of the table, title first; each as its cells."""
    rows = [line.split() for line in text.splitlines()]
    return [row for row in rows if row and not row[0].startswith("─")]


def number(text: str) -> float:
    return float(text.replace(",", ""))


def test_callbacks(popgate: Call, affine: Path) -> None:
    done = popgate("bench", "callbacks", affine, *QUICK, "--threads", "1,2")
    assert (done.code, done.err) == (0, "")
    head, one, two = lines(done.out)
    titles = ["batch", "rows", "threads", "callbacks/s", "runs/s", "rows/s"]
    assert head[:6] == titles
    assert (one[:3], two[:3]) == (["3", "3", "1"], ["3", "3", "2"])
    for row in (one, two):
        called, runs, rows = map(number, row[3:6])
        assert runs > 0
        assert rows == pytest.approx(3 * runs, rel=0.1, abs=4)
        assert called == pytest.approx(
            2 * runs, rel=0.2, abs=4
        )  # an input and an output
        p50, p90, p99 = map(number, row[6:])
        assert 0 < p50 <= p90 <= p99


def test_queues(popgate: Call, affine: Path) -> None:
    done = popgate(
        "bench", "queues", affine, *QUICK,
        "--batch", "1,5", "--ring-multiplier", "1,4", "--threads", "2",
    )  # fmt: skip
    assert (done.code, done.err) == (0, "")
    head, *rows = lines(done.out)
    assert head[:6] == ["batch", "rows", "ring", "threads", "requests/s", "rows/s"]
    assert [row[:4] for row in rows] == [
        ["3", rows, ring, "2"] for rows in "15" for ring in "14"
    ]
    assert all(number(row[4]) > 0 for row in rows)


def test_queues_of_one_of_several_fused_models(popgate: Call, tmp_path: Path) -> None:
    fused = build_fused(tmp_path)
    for seed in range(4):
        done = popgate("bench", "queues", fused, *QUICK, "--batch", "2", "--seed", seed)
        assert (done.code, done.err) == (0, "")
        _, row = lines(done.out)
        assert row[:2] == ["mixed", "2"]
        # None waits for the other model, which never runs: that takes 0.2 s to end.
        assert number(row[6]) < 200


def test_a_late_request_of_a_fused_model_is_not_joined_with_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Zeros after a late request would choose the first model. The rows added for the
    # second one would then stand before those of the next request.
    monkeypatch.setattr(queues, "_FLUSH_NS", 1)
    monkeypatch.setattr(queues, "_LAST", 10.0)
    fused = load_model(build_fused(tmp_path))
    case = queues.QueueCase(rows=2, multiplier=1, threads=1)
    for seed in range(4):
        measured = queues.measure_queues(fused, case, 0.05, seed, Interrupt())
        assert len(measured.latencies) > 0


def test_an_onnx_file_is_compiled_for_each_batch(popgate: Call) -> None:
    digits = ROOT / "examples" / "digits" / "digits.onnx"
    done = popgate("bench", "callbacks", digits, *QUICK, "--compile-batch", "2,4")
    assert done.code == 0
    assert [row[:2] for row in lines(done.out)[1:]] == [["2", "2"], ["4", "4"]]
    free = popgate("bench", "queues", digits, *QUICK, "--batch", "6")
    assert lines(free.out)[1][:3] == ["free", "6", "2"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (
            ("callbacks", "--threads", "0"),
            2,
            "--threads 0: expected whole numbers from 1",
        ),
        (("callbacks", "--threads", "1000"), 3, "1000 replicas of 1 unit each are"),
        (
            ("queues", "--ring-multiplier", "999999999"),
            2,
            "999999999: expected whole numbers from 1 to 1048576, at most 32",
        ),
        (("queues", "--batch", "9" * 5000), 2, "9: expected whole numbers"),
        (("queues", "--batch", "a"), 2, "--batch a: expected whole numbers"),
        (("queues", "--compile-batch", "8"), 2, "is for ONNX files"),
        (("queues", "--executable", "other"), 1, "no executable 'other'"),
    ],
)
def test_mistakes_are_explained(
    popgate: Call, affine: Path, arguments: tuple[str, ...], code: int, words: str
) -> None:
    command, *options = arguments
    done = popgate("bench", command, affine, *QUICK, *options)
    assert done.code == code, done.err
    assert words in done.err


def test_queues_of_rows_without_elements(popgate: Call, tmp_path: Path) -> None:
    path = models.affine(tmp_path / "none.popef", width=0)
    done = popgate("bench", "queues", path, *QUICK)
    assert done.code == 2
    assert "has rows without elements" in done.err


def test_control_c_prints_what_was_measured(affine: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from app.cli import main; main()"),
            *("bench", "queues", str(affine), "--seconds", "1000"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "MODEL_RUNTIME_LOG_LEVEL": "DEBUG",
            "MODEL_RUNTIME_LOG_DEST": "stdout",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    while "is attached" not in process.stdout.readline():
        pass
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert "requests/s" in out
