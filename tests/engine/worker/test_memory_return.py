"""Memory of large runs is given back: when a model goes, or nothing comes for long."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import Device, ModelRunner, ModelRunnerConfig
from engine.programs.onnx_session import OnnxSession, give_back_memory
from tests.engine import models
from tests.plain import plain

MIB = 1 << 20
COUNT = 32 * MIB
"""Elements of a run: 128 MiB."""


def expanding() -> bytes:
    """x: float[1], count: int64[1] -> the sum of so many copies of x."""
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("Expand", ["x", "count"], ["copies"]),
            helper.make_node("ReduceSum", ["copies"], ["y"], keepdims=0),
        ],
        "graph",
        [value("x", TensorProto.FLOAT, [1]), value("count", TensorProto.INT64, [1])],
        [value("y", TensorProto.FLOAT, [])],
    )
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    content: bytes = model.SerializeToString()
    return content


def inputs(count: int) -> dict[str, np.ndarray]:
    return {"x": np.ones(1, np.float32), "count": np.array([count], np.int64)}


def resident(pid: int | str = "self") -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * 4096


def test_the_arena_gives_back_what_no_session_uses() -> None:
    session = OnnxSession(expanding())
    session.raw_run(["y"], inputs(1), None)
    before = resident()
    session.raw_run(["y"], inputs(COUNT), None)
    assert resident() > before + 100 * MIB
    give_back_memory()
    assert resident() < before + 30 * MIB
    assert session.raw_run(["y"], inputs(8), None)[0] == 8


def test_a_device_gives_back_what_a_model_took(
    tmp_path: Path, shared_device: Device
) -> None:
    path = tmp_path / "m.popef"
    models.write_graph(path, onnx.load_from_string(expanding()))
    config = ModelRunnerConfig(replica_to_device={0: shared_device})
    with ModelRunner(path, config) as runner:
        assert runner.execute(inputs(1))["y"] == 1
        assert shared_device.pid is not None
        before = resident(shared_device.pid)
        runner.execute(inputs(COUNT))
        assert resident(shared_device.pid) > before + 100 * MIB
    end = time.monotonic() + 30
    while resident(shared_device.pid) > before + 30 * MIB:
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("long_ns", [0, 1 << 60])
def test_a_rest_after_a_long_run(monkeypatch: pytest.MonkeyPatch, long_ns: int) -> None:
    module = plain("engine.worker.scheduler")
    given_back = threading.Event()
    monkeypatch.setattr(module, "LONG_NS", long_ns)
    monkeypatch.setattr(module, "IDLE_TRIM_NS", 1_000_000)
    scheduler = module.Scheduler(give_back_memory=given_back.set)
    thread = threading.Thread(target=scheduler.run)
    thread.start()
    if long_ns == 0:
        assert given_back.wait(30)
    scheduler.commands.call(lambda: None)
    scheduler.commands.do(scheduler.stop)
    thread.join(30)
    assert not thread.is_alive()
    os.close(scheduler.wake_fd)
    assert given_back.is_set() == (long_ns == 0)
