"""`popgate run`: data in, outputs and times out.

Covers: plugins/tools/src/popgate_tools/latency.py,
    plugins/tools/src/popgate_tools/local.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from build_popef import BATCH, ITERATIONS, build_iterations

from popgate_tools.latency import quantile
from tests.app.cli.calls import Call
from tests.engine import models

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def affine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """output = input * 2 + 1, any number of rows of four."""
    return models.affine(tmp_path_factory.mktemp("run") / "affine.popef")


def test_json_in_text_out(popgate: Call, affine: Path) -> None:
    done = popgate("run", affine, "-i", "input=[[1, 2, 3, 4]]")
    assert done.code == 0
    assert done.out == "output  FP32[1,4]\n[[3. 5. 7. 9.]]\n"
    assert "model on cpu:" in done.err


def test_files_in_file_out(popgate: Call, affine: Path, tmp_path: Path) -> None:
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    np.save(tmp_path / "a.npy", rows)
    np.savez(tmp_path / "a.npz", input=rows)
    np.savez(tmp_path / "other.npz", another_name=rows.astype(np.int64))
    for given in ("input=a.npy", "a.npz", "input=a.npz", "input=other.npz"):
        name, equals, path = given.rpartition("=")
        option = f"{name}{equals}{tmp_path / path}"
        done = popgate("run", affine, "-i", option, "--save", tmp_path / "out.npz")
        assert done.code == 0, done.err
        with np.load(tmp_path / "out.npz") as archive:
            np.testing.assert_array_equal(archive["output"], rows * 2 + 1)
            assert archive["output"].dtype == np.float32
    assert done.out == f"outputs → {tmp_path / 'out.npz'}\n"
    popgate("run", affine, "-i", tmp_path / "a.npz", "--save", tmp_path / "out.npy")
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), rows * 2 + 1)


def test_synthetic_data_follow_the_seed(popgate: Call, affine: Path) -> None:
    first, again, other = (
        popgate("run", affine, "--batch", 2, "--seed", seed).out for seed in (1, 1, 2)
    )
    assert first == again != other
    assert "FP32[2,4]" in first


def test_many_requests_are_summed_up(popgate: Call, affine: Path) -> None:
    done = popgate(
        "run", affine, "-n", 50, "--async", 8, "--replicas", 2, "-b", 3, "-q"
    )
    assert (done.code, done.out) == (0, "")
    first, second, third = done.err.splitlines()
    assert first.endswith("50 requests of 3 rows, 8 in flight")
    assert "requests/s" in second
    assert "rows/s" in second
    assert all(word in third for word in ("p50", "p90", "p99", "mean", "max"))


def test_other_types_and_free_shapes(popgate: Call, tmp_path: Path) -> None:
    text = models.text(tmp_path / "text.popef")
    assert popgate("run", text, "-i", "input=hello").out.endswith("['hello!']\n")
    assert "['text 0!' 'text 1!']" in popgate("run", text, "-b", 2).out
    index = models.gather(tmp_path / "gather.popef")
    done = popgate("run", index, "--shape", "index=5")
    assert "output  FP32[5,2]" in done.out
    np.savez(tmp_path / "i.npz", index=np.array([1.5]))
    done = popgate("run", index, "-i", tmp_path / "i.npz")
    assert done.code == 2
    assert "do not fit INT64" in done.err


def test_a_run_of_device_iterations_is_filled(popgate: Call, tmp_path: Path) -> None:
    path = build_iterations(tmp_path)
    assert f"FP32[{BATCH * ITERATIONS},4]" in popgate("run", path).out
    assert "FP32[5,4]" in popgate("run", path, "--batch", 5).out


def test_an_onnx_file_is_compiled_first(popgate: Call) -> None:
    digits = ROOT / "examples" / "digits"
    images = digits / "test_images.npy"
    done = popgate("run", digits / "digits.onnx", "-i", f"image={images}")
    assert done.code == 0
    assert "digit  INT64[360]" in done.out
    assert "compiled" in done.err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("-i", "x=1"), 2, "no input 'x'; the model takes input FP32[-1,4]"),
        (("-i", "input=[[1, 2]]"), 2, "expects shape"),
        (("--iterations", 0), 2, "--iterations"),
        (("--only-given",), 2, "input"),
        (
            ("--executable", "other"),
            1,
            "no executable 'other'; the executables are 'model'",
        ),
        (("--save", "out.txt"), 2, "expected .npz or .npy"),
        (("--save", "no/such/out.npz"), 2, "no such folder"),
        (("--devices", "what"), 2, "invalid devices 'what'"),
        (("--devices", "cpu:1", "--replicas", 2), 3, "2 replicas of 1 unit each"),
    ],
)
def test_mistakes_are_explained(
    popgate: Call, affine: Path, arguments: tuple[object, ...], code: int, words: str
) -> None:
    done = popgate("run", affine, *arguments)
    assert done.code == code, done.err
    assert words in done.err
    assert done.out == ""


def test_files_that_are_no_models(popgate: Call, tmp_path: Path) -> None:
    missing = popgate("run", tmp_path / "missing.popef")
    assert (missing.code, missing.out) == (1, "")
    assert "missing.popef" in missing.err
    (tmp_path / "bad.popef").write_bytes(b"This is not cache")
    (tmp_path / "bad.onnx").write_bytes(b"neither is this")
    for name in ("bad.popef", "bad.onnx"):
        done = popgate("run", tmp_path / name)
        assert (done.code, done.out) == (1, "")
        assert name in done.err


def test_control_c_ends_it_with_what_was_measured(affine: Path) -> None:
    process = subprocess.Popen(
        [
            *(sys.executable, "-c", "from app.cli import main; main()"),
            *("run", str(affine), "--iterations", "100000000", "--quiet"),
        ],
        cwd=ROOT,
        env={
            **os.environ,
            "MODEL_RUNTIME_LOG_LEVEL": "TRACE",
            "MODEL_RUNTIME_LOG_DEST": "stdout",
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    runs = 0
    while runs < 10:
        runs += "ran programs" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert "of 100000000 requests" in err
    assert "p99" in err
    assert "is detached" in rest


def test_quantiles_are_nearest_rank() -> None:
    values = [float(n) for n in range(1, 101)]
    assert [quantile(values, q) for q in (0.5, 0.9, 0.99, 1.0)] == [50, 90, 99, 100]
    assert quantile([7.0], 0.01) == 7.0
    assert quantile([], 0.5) == 0.0
