"""A server is as busy as its busiest model, not as its devices are in the mean."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.assembly import gateway_of
from app.gateway import Gateway
from app.settings import Settings
from engine import Tensor
from popgate_ray.saturation import Utilization, replicas_wanted, saturation_of
from tests.support import WAIT

SLEEPY = """
class Sleepy:
    inputs = {"x": "FP32[1]"}
    outputs = {"y": "FP32[1]"}

    def __call__(self, x):
        import time
        time.sleep(0.05)
        return {"y": x}
"""


def test_it_is_that_of_the_busiest_model() -> None:
    shares = {"cpu:0": 0.0, "cpu:1": 0.2, "python:0": 0.98, "python:1": 0.0}
    of_python, of_both, nowhere = {"python:0"}, {"cpu:0", "cpu:1"}, set[str]()
    assert saturation_of([of_both, of_python, nowhere], shares) == 0.98
    assert saturation_of([of_both], shares) == pytest.approx(0.1)
    assert saturation_of([{"gone"}], shares) == 0.0
    assert saturation_of([], shares) == 0.0


def test_a_saturated_replica_gets_another_one() -> None:
    """What the mean over its idle devices hid: 0.98 of one of five is 0.2."""
    assert replicas_wanted([0.98], 0.7) == pytest.approx(1.4)
    assert replicas_wanted([0.5, 0.5], 0.5) == 2.0
    assert replicas_wanted([0.05, 0.05], 0.7) < 1


async def keep_busy(gateway: Gateway, runs: int) -> None:
    """Have the Python model run so often, one request waiting behind each."""
    entry = gateway.table.paths["/v1/models/sleepy/infer"]
    ended = asyncio.Event()
    left = runs

    def ask() -> None:
        x = Tensor.from_numpy(np.zeros(1, np.float32))
        entry.runner.submit({"x": x}, on_done=done)

    def done(submitted: Any) -> None:
        nonlocal left
        assert submitted.error is None, submitted.error
        left -= 1
        if left > 1:
            ask()
        elif left == 0:
            ended.set()

    ask()
    ask()
    async with asyncio.timeout(WAIT):
        await ended.wait()


async def measured(root: Path) -> tuple[float, float]:
    """How busy a server with a saturated Python model is, and its devices in the
    mean."""
    settings = Settings(model_repository=root, devices="cpu:1", allow_python=True)
    gateway = gateway_of(settings)
    gateway.start()
    try:
        await gateway.wait_started()
        utilization = Utilization(gateway)
        before = {d.id: d.busy_ns for d in gateway.devices.summaries()}
        began = time.monotonic()
        await keep_busy(gateway, 20)
        seconds = time.monotonic() - began
        found = utilization()
        now = {d.id: d.busy_ns for d in gateway.devices.summaries()}
        mean = sum((now[d] - before[d]) / 1e9 for d in now) / len(now) / seconds
        return found, mean
    finally:
        await gateway.stop()


def test_a_python_model_that_is_saturated_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POPGATE_POOL", f"test-saturation-{os.getpid()}")
    (tmp_path / "sleepy" / "1").mkdir(parents=True)
    (tmp_path / "sleepy" / "1" / "model.py").write_text(SLEEPY)
    found, mean = asyncio.run(measured(tmp_path))
    # One of two devices is busy: the mean says at most a half.
    assert mean <= 0.5 < found
    assert replicas_wanted([found], 0.5) > 1


def test_a_server_that_does_nothing_is_not_busy() -> None:
    utilization = Utilization(gateway_of(Settings()))
    assert 0 <= utilization() <= 2  # of this process alone
    assert "since" in repr(utilization)
