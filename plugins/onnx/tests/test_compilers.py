"""ONNX files where the server and Python programs load them.

Covers: plugins/onnx/src/popgate_onnx/commands.py.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import engine.compiler
from app.plugins import COMPILERS, plugin
from app.repository.compilers import compiler
from popgate import EngineError, ModelRunner, ModelRunnerConfig, compile_model
from popgate_onnx import compiler as names
from popgate_onnx.commands import COMMANDS
from tests.app.cli.calls import Call
from tests.app.served import ROOT

DIGITS = ROOT / "examples" / "digits"


def test_the_server_finds_the_compiler() -> None:
    assert compiler() is plugin(COMPILERS, "onnx")


def test_programs_find_its_names() -> None:
    assert compile_model is names.compile_model
    assert engine.compiler.compile_fused is names.compile_fused
    with pytest.raises(AttributeError, match="nothing"):
        _ = engine.compiler.nothing


def test_the_help_of_the_command_is_its_first_line(popgate: Call) -> None:
    (command,) = COMMANDS
    assert command.help in popgate(command.name, "--help").out


def test_an_onnx_file_and_all_kinds_of_values() -> None:
    images = np.load(DIGITS / "test_images.npy")[:20]
    labels = np.load(DIGITS / "test_labels.npy")[:20].tolist()
    with ModelRunner(DIGITS / "digits.onnx") as runner:
        assert set(runner.inputs) == {"image"}
        assert runner.outputs["probabilities"].shape == (-1, 10)
        for value in (images, images.astype(np.float64), images.astype(int).tolist()):
            for inputs in (value, {"image": value}):
                assert runner.execute(inputs)["digit"].tolist() == labels
        # Its file was made for it and is gone; a device that dies needs it again.
        (device,) = set(runner.engine.devices)
        device.kill("a test")
        with pytest.raises(EngineError):
            runner.execute(images)
        device.recover(by_hand=True)
        assert runner.execute(images)["digit"].tolist() == labels


def test_a_packed_file(tmp_path: Path) -> None:
    target = tmp_path / "digits.popef"
    report = compile_model(DIGITS / "digits.onnx", target)
    assert report.batch.rows
    with ModelRunner([target], ModelRunnerConfig()) as runner:
        assert runner.execute(np.zeros((1, 1, 8, 8)))["digit"].shape == (1,)
