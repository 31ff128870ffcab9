"""What the engine and its device processes log when the environment asks."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine import models

ROOT = Path(__file__).parents[2]
RUN = """
import os, signal, sys
import numpy as np
from engine import DeviceLost, DeviceManager, ModelRunner, ModelRunnerConfig
device = DeviceManager("cpu:1").get_device()
config = ModelRunnerConfig(replica_to_device={0: device})
with ModelRunner(sys.argv[1], config) as runner:
    runner.execute({"input": np.ones((1, 4), np.float32)})
    if len(sys.argv) > 2:
        os.kill(device.pid, signal.SIGKILL)
        while device.check(): pass
        device.recover()
device.close()
"""


def run(*arguments: str | Path, code: str = RUN, **environment: str) -> tuple[str, str]:
    inherited = {k: v for k, v in os.environ.items() if "_LOG_" not in k}
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT,
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout, done.stderr


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.affine(tmp_path_factory.mktemp("logs") / "model.popef")


def test_silent_unless_asked(model: Path) -> None:
    assert run(model) == ("", "")


def test_info_tells_the_life_of_devices_and_models(model: Path) -> None:
    out, log = run(model, "kill", MODEL_RUNTIME_LOG_LEVEL="INFO")
    assert out == ""
    words = [
        r"I \d+ engine.devices.device: device cpu:0 is attached: process \d+",
        r"I \d+ engine.runner.replica_set: replica 0 of 'model' is loaded on cpu:0",
        r"W \d+ engine.devices.device: device cpu:0 was lost",
        r"I \d+ engine.devices.device: device cpu:0 restarted: process",
        r"I \d+ engine.runner.replica_set: replica 0 of 'model' is loaded on cpu:0",
        r"I \d+ engine.devices.device: device cpu:0 is detached",
    ]
    assert len(log.splitlines()) == len(words), log
    for line, expected in zip(log.splitlines(), words, strict=True):
        assert re.search(expected, line), log


def test_trace_tells_what_devices_run_on_standard_output_too(model: Path) -> None:
    out, log = run(
        model,
        MODEL_RUNTIME_LOG_LEVEL="TRACE",
        MODEL_RUNTIME_LOG_DEST="stdout",
        POPEF_LOG_LEVEL="DEBUG",
        POPEF_LOG_DEST="stderr",
    )
    assert re.search(r"T \d+ popgate-cpu:0 engine\S+scheduler: .* ran programs", out)
    assert re.search(r"D \d+ popgate-cpu:0 engine.worker.device_service: loaded", out)
    # Both the owner and the device read the file.
    assert len(re.findall(r"D \d+ popef_io.reader: read", log)) == 1
    assert len(re.findall(r"D \d+ popgate-cpu:0 popef_io.reader: read", log)) == 1
    assert "engine" not in log


def test_a_file_takes_the_lines_of_all_processes(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "log.txt"
    assert run(
        model, MODEL_RUNTIME_LOG_LEVEL="DEBUG", MODEL_RUNTIME_LOG_DEST=str(file)
    ) == ("", "")
    text = file.read_text()
    assert "popgate-cpu:0 engine.worker.device_service" in text
    assert "engine.devices.device: device cpu:0 is attached" in text
