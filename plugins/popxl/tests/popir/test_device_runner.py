"""Programs on a device of the pool; and what ends them, on both kinds of device."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import popart
import popxl
from engine import DeviceManager, NoDeviceAvailable
from plugins.popxl.tests.popir.test_programs import COUNT, check
from popxl import ops, utils
from tests.support import WAIT

KINDS = ["ipu_model", "ipu_hw"]


def endless() -> tuple[popxl.Ir, Any, Any]:
    """A program that says when it runs, and then runs for hours."""
    ir = popxl.Ir()
    with ir.main_graph, popxl.in_sequence():
        v = popxl.variable(7, popxl.int32, "v")
        ops.print_tensor(v, title="running")
        graph = ir.create_graph(lambda a: a + 1, v)
        (result,) = ops.repeat(graph, 10**9, v)
        ops.var_updates.copy_var_update_(v, result)
    return ir, v, graph


def counting() -> tuple[popxl.Ir, Any, Any, Any]:
    ir = popxl.Ir()
    ir.num_host_transfers = 2
    with ir.main_graph, popxl.in_sequence():
        x = popxl.h2d_stream((3,), popxl.float32, "x")
        out = popxl.d2h_stream((3,), popxl.float32, "out")
        total = popxl.variable(np.zeros(3, np.float32), name="total")

        def step(t: popxl.TensorByRef) -> None:
            ops.add_(t, ops.host_load(x))
            ops.host_store(out, t)

        step.__annotations__["t"] = popxl.TensorByRef
        ops.repeat(ir.create_graph(step, total), 2, total)
    return ir, x, out, total


@pytest.mark.parametrize("kind", KINDS)
def test_weights_streams_and_state(kind: str) -> None:
    ir, x, out, total = counting()
    session = popxl.Session(ir, kind)
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    with session:
        for n in range(2):
            found = session.run({x: data})[out]
            sums = np.cumsum(data, 0) + n * data.sum(0)
            np.testing.assert_array_equal(found, sums)
        session.write_variable_data(total, np.full(3, 100, np.float32))
        session.run({x: data})
    expected = 100 + data.sum(0)
    np.testing.assert_array_equal(session.get_tensor_data(total), expected)
    with session:
        np.testing.assert_array_equal(
            session.run({x: data})[out][0], expected + data[0]
        )


def test_a_session_has_its_device_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POPGATE_DEVICES", "cpu:1")
    monkeypatch.setenv("POPGATE_POOL", f"one-device-{os.getpid()}")
    ir, x, _, _ = counting()
    with popxl.Session(ir, "ipu_hw") as session:
        with pytest.raises(NoDeviceAvailable):
            DeviceManager().get_device()
        session.run({x: np.zeros((2, 3))})
        monkeypatch.setattr(utils, "HW_DEVICE_CONNECTION_TIMEOUT", 0)
        other = popxl.Session(ir, "ipu_hw")
        with pytest.raises(popart.poplar_runtime_error, match="Failed to acquire"):
            other.__enter__()
    with DeviceManager().get_device():
        pass


def test_a_device_that_dies_in_a_run_is_an_error_and_not_the_end() -> None:
    ir, v, _ = endless()
    session = popxl.Session(ir, "ipu_hw")
    below = session._session
    killed = threading.Event()

    def kill(*_: object) -> None:
        device: Any = below._device
        os.kill(device.pid, signal.SIGKILL)
        killed.set()

    below._printer = kill  # called when the program runs
    with pytest.raises(popart.poplar_runtime_error, match="SIGKILL"), session:
        session.run()
    assert killed.is_set()
    assert not session.is_attached
    with session:
        assert session.get_tensor_data(v) == 7


def test_an_error_that_is_caught_inside_is_not_raised_again_at_the_end() -> None:
    ir, v, _ = endless()
    session = popxl.Session(ir, "ipu_hw")
    below = session._session
    below._printer = lambda *_: os.kill(below._device.pid, signal.SIGKILL)  # type: ignore[union-attr]
    with session, pytest.raises(popart.poplar_runtime_error):
        session.run()
    assert session.get_tensor_data(v) == 7


@pytest.mark.parametrize("kind", KINDS)
def test_an_interrupt_ends_a_long_run(kind: str) -> None:
    text = f"""
from plugins.popxl.tests.popir.test_device_runner import endless
import popxl
ir, v, _ = endless()
session = popxl.Session(ir, {kind!r})
try:
    with session:
        session.run()
except KeyboardInterrupt:
    print("interrupted", flush=True)
with session:
    print(session.get_tensor_data(v), flush=True)
"""
    process = subprocess.Popen(
        [sys.executable, "-c", text],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        assert process.stdout is not None
        for line in process.stderr:
            if line.startswith("running"):
                break
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "interrupted\n7\n"
        assert process.wait(WAIT) == 0


def test_an_attached_device_serves_several_sessions() -> None:
    """Weights go to it once, when the session is made; it stays attached."""
    device = popart.DeviceManager().acquireAvailableDevice(1)
    assert device.isAttached
    with device:
        for n in range(2):
            ir, x, out, total = counting()
            session = popxl.Session(ir, device)
            assert session.is_attached
            data = np.full((2, 3), n + 1, np.float32)
            session.run({x: data})
            with session:
                found = session.run({x: data})[out]
            assert session.is_attached
            assert found[1, 0] == 4 * (n + 1)
            assert session.get_tensor_data(total)[0] == 4 * (n + 1)
    assert not device.isAttached


def test_random_programs_on_a_device_of_the_pool() -> None:
    """What test_programs.py checks in this process, on one device."""
    with popart.DeviceManager().acquireAvailableDevice(1) as device:
        for seed in range(1000, 1000 + COUNT // 8):
            check(seed, device)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_least_integer_divided_by_minus_one(dtype: Any) -> None:
    """On the processor this is a signal that ends the process."""
    ir = popxl.Ir()
    with ir.main_graph:
        kind = popxl.dtype.as_dtype(dtype)
        x, y = (popxl.h2d_stream((5,), kind) for _ in range(2))
        out, fixed = (popxl.d2h_stream((5,), kind) for _ in range(2))
        dividend = ops.host_load(x)
        ops.host_store(out, dividend / ops.host_load(y))
        ops.host_store(fixed, dividend / popxl.constant(-1, kind, downcast=False))
    low = np.iinfo(dtype).min
    dividends = np.array([low, 7, -7, 8, low], dtype)
    fed = {x: dividends, y: np.array([-1, -2, -1, 3, -1], dtype)}
    with popxl.Session(ir, "ipu_hw") as session:
        found = session.run(fed, downcast_inputs=False)
    assert found[out].tolist() == [low, -3, 7, 2, low]
    assert found[fixed].tolist() == [low, -7, 7, -8, low]
