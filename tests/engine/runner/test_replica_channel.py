"""Requests end although their handling fails half-way, and so do requests beside them.

Covers: engine/runner/in_flight.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from engine import Device, DeviceLost, EngineError, ModelRunner, ModelRunnerConfig
from engine.devices.request import Request
from engine.errors import Cancelled, InvalidInput
from engine.model.interface import MIN_SLOTS
from engine.runner import replica_channel
from engine.tensor import Tensor
from popef_io import DataType
from tests.engine import models
from tests.engine.models import Port
from tests.interrupts import interrupt
from tests.support import WAIT, occupied, until

ROOT = Path(__file__).resolve().parents[3]


def on(device: Device, slots: int = 2 * MIN_SLOTS) -> ModelRunnerConfig:
    return ModelRunnerConfig(replica_to_device={0: device}, max_queue_size=slots)


def count(number: int) -> dict[str, Tensor]:
    return {"count": Tensor.from_numpy(np.array(number, np.int64))}


def row(value: float) -> dict[str, Tensor]:
    return {"input": Tensor.from_numpy(np.full((1, 4), value, np.float32))}


def finish(device: Device, *requests: Request) -> None:
    """Resolve them, and leave nothing behind."""
    until(lambda: [device.poll(), all(r.done for r in requests)][1])
    assert device.in_flight == 0


def test_one_that_cannot_be_copied_in_later_fails_alone(
    tmp_path: Path, own_device: Device
) -> None:
    with ModelRunner(models.slow(tmp_path / "m.popef"), on(own_device)) as runner:
        with occupied(runner):
            taken = memoryview(bytearray(8))
            good = [runner.submit(count(1)) for _ in range(MIN_SLOTS)]
            bad = runner.submit({"count": Tensor(DataType.S64, (), (taken,))})
            good += [runner.submit(count(2)) for _ in range(3)]
            taken.release()
        finish(own_device, bad, *good)
        assert isinstance(bad.error, EngineError)
        assert "released memoryview" in str(bad.error)
        assert [r.error for r in good] == [None] * len(good)
        assert runner.in_flight == 0


def test_too_many_dimensions_are_refused_where_there_is_no_room_either(
    tmp_path: Path, own_device: Device
) -> None:
    deep = Tensor(DataType.S64, (1,) * 28, (bytes(8),))
    with ModelRunner(models.slow(tmp_path / "m.popef"), on(own_device)) as runner:
        with occupied(runner):
            good = [runner.submit(count(1)) for _ in range(MIN_SLOTS)]
            with pytest.raises(InvalidInput, match="28 dimensions"):
                runner.submit({"count": deep}, validate=False)
            good.append(runner.submit(count(1)))
        finish(own_device, *good)
        assert [r.error for r in good] == [None] * len(good)


def test_what_is_given_up_without_room_is_released_at_once(
    tmp_path: Path, own_device: Device
) -> None:
    """Also behind a request that still waits for room."""
    with ModelRunner(models.slow(tmp_path / "m.popef"), on(own_device)) as runner:
        with occupied(runner):
            good = [runner.submit(count(1)) for _ in range(MIN_SLOTS)]
            waiting = runner.stats.awaiting
            arrays = [np.array(1, np.int64) for _ in range(3)]
            kept = [weakref.ref(array) for array in arrays]
            gone = [runner.submit({"count": Tensor.from_numpy(a)}) for a in arrays]
            good.append(runner.submit(count(1)))
            del arrays
            for request in gone:
                request.abandon(Cancelled("gone"))
            assert [one() for one in kept] == [None] * 3
            assert runner.stats.awaiting == waiting + 1
            assert runner.in_flight == len(good) + 1  # the one that occupies it
        finish(own_device, *good)
        assert [r.error for r in good] == [None] * len(good)
        assert runner.in_flight == 0


def test_one_whose_second_input_cannot_be_copied_leaves_no_trace(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.write_model(
        tmp_path / "m.popef",
        [helper.make_node("Add", ["a", "b"], ["output"])],
        [Port("a", (2,)), Port("b", (2,))],
        [Port("output", (2,))],
    )
    one = Tensor.from_numpy(np.ones(2, np.float32))
    gone = memoryview(bytearray(8))
    unreadable = Tensor(DataType.F32, (2,), (gone,))
    gone.release()
    with ModelRunner(path, on(shared_device)) as runner:
        with pytest.raises(ValueError, match="released memoryview"):
            runner.submit({"a": one, "b": unreadable})
        assert runner.in_flight == 0
        again = runner.submit({"a": one, "b": one})
        finish(shared_device, again)
        assert again.error is None
        assert again.outputs["output"].numpy().tolist() == [2, 2]


def test_requests_that_wait_for_room_end_with_a_device_that_dies_behind_results(
    tmp_path: Path, own_device: Device
) -> None:
    lost: list[Device] = []
    own_device.on_lost(lost.append)
    with ModelRunner(models.slow(tmp_path / "m.popef"), on(own_device)) as runner:
        with occupied(runner):
            requests = [runner.submit(count(1)) for _ in range(MIN_SLOTS + 5)]
        # All that the device has is done, and nobody has looked.
        until(lambda: runner.stats.awaiting == 6)
        until(lambda: own_device.ping().running_ns == 0)
        pid = own_device.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        until(lambda: not own_device.check())
        assert all(request.done for request in requests)
        assert [r.error for r in requests[:-6]] == [None] * (MIN_SLOTS - 1)
        assert all(isinstance(r.error, DeviceLost) for r in requests[-6:])
        assert (own_device.in_flight, runner.in_flight) == (0, 0)
        assert lost == [own_device]


def test_what_interrupts_one_completion_leaves_those_behind_it(
    tmp_path: Path, shared_device: Device
) -> None:
    def interrupt(request: Request) -> None:
        raise KeyboardInterrupt

    with ModelRunner(models.affine(tmp_path / "m.popef"), on(shared_device)) as runner:
        first = runner.submit(row(1), on_done=interrupt)
        second = runner.submit(row(2))
        until(lambda: runner.stats.awaiting == 0)
        until(lambda: shared_device.ping().running_ns == 0)
        with pytest.raises(KeyboardInterrupt):
            finish(shared_device, first, second)
        finish(shared_device, first, second)
        assert (first.error, second.error) == (None, None)


def run_script(text: str, *arguments: object) -> None:
    """In a process of its own: what is tried there would harm others."""
    done = subprocess.run(
        [sys.executable, "-c", text, *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "POPGATE_POOL": f"test-engine-{os.getpid()}"},
        capture_output=True,
        text=True,
        timeout=2 * WAIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr


EVERY_ALLOCATION = """
import sys, _testcapi, logging
import numpy as np
from engine import DeviceManager, EngineError, ModelRunner, ModelRunnerConfig, Tensor
from engine.transport.output_arrays import OutputArrays
from tests.support import until

logging.disable()
row = {"input": Tensor.from_numpy(np.ones((1, 4), np.float32))}
with DeviceManager("cpu:1").get_device() as device:
    config = ModelRunnerConfig(replica_to_device={0: device})
    with ModelRunner(sys.argv[1], config) as runner:
        failed = 0
        for number in range(1, 250):
            requests = [runner.submit(row, into=OutputArrays(None)),
                        runner.submit(row), runner.submit(row)]
            until(lambda: runner.stats.awaiting == 0)
            until(lambda: device.ping().running_ns == 0)
            _testcapi.set_nomemory(number, number + 1)
            try:
                device.poll()
            except MemoryError:
                pass
            finally:
                _testcapi.remove_mem_hooks()
            until(lambda: [device.poll(), all(r.done for r in requests)][1], number)
            errors = [r.error for r in requests if r.error is not None]
            assert all(isinstance(error, EngineError) for error in errors), errors
            failed += len(errors)
            for request in requests[1:]:
                if request.error is None:
                    assert request.outputs["output"].numpy().tolist() == [[3] * 4]
            assert (device.in_flight, runner.in_flight) == (0, 0), number
        assert failed > 0
        assert runner.execute({"input": np.ones((1, 4), np.float32)})["output"].any()
"""


def test_every_allocation_that_takes_a_result_may_fail(tmp_path: Path) -> None:
    pytest.importorskip("_testcapi")
    if not replica_channel.__file__.endswith(".py"):
        pytest.skip("compiled code ends a process without memory for a number")
    run_script(EVERY_ALLOCATION, models.affine(tmp_path / "m.popef"))


NO_ROOM = """
import resource, sys
import numpy as np
from engine import DeviceManager, ExecutionFailed, ModelRunner, ModelRunnerConfig
from engine import Tensor

MIB = 1 << 20
one = {"input": np.ones((4 * MIB, 4), np.float32)}
with DeviceManager("cpu:1").get_device() as device:
    config = ModelRunnerConfig(replica_to_device={0: device}, channel_memory=256 * MIB)
    with ModelRunner(sys.argv[1], config) as runner:
        runner.execute(one)
        pages = int(open("/proc/self/statm").read().split()[0])
        most = pages * resource.getpagesize() + 200 * MIB
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        kept, failures = [], []
        for number in range(12):
            result = runner.execute_async(one)
            try:
                result.wait()
                kept.append(result)
            except ExecutionFailed as error:
                failures.append(error)
            assert runner.in_flight == 0
        for number in range(6):
            tensors = {"input": Tensor.from_numpy(one["input"])}
            request = runner.submit(tensors)
            assert request.wait(60)
            if request.error is not None:
                failures.append(request.error)
            else:
                kept.append(request)
            assert runner.in_flight == 0
        assert kept, failures
        assert len(failures) >= 6, failures
        assert all("not enough memory" in str(error) for error in failures), failures
        del kept, result, request
        assert (runner.execute(one)["output"] == 3).all()
"""


def test_results_for_which_there_is_no_memory_fail_and_later_ones_do_not(
    tmp_path: Path,
) -> None:
    run_script(NO_ROOM, models.affine(tmp_path / "m.popef"))


def test_control_c_leaves_no_request_half_published(
    tmp_path: Path, own_device: Device
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: own_device})
    files = "engine/runner/", "engine/transport/", "engine/devices/linked_device.py"
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
        finish(own_device, runner.submit(row(0)))
        number = 1
        while interrupt(lambda: execute(runner, 0.5), number, *files):
            execute(runner, number)
            finish(own_device)
            number += 1


def execute(runner: ModelRunner, value: float) -> None:
    request = runner.submit(row(value))
    assert request.wait(WAIT), f"{request!r} waits for ever"
    assert request.error is None
    assert (request.outputs["output"].numpy() == 2 * value + 1).all()
