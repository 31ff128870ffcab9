"""A large request runs beside small ones of other models.

Covers: engine/worker/large_runs.py, engine/worker/present_runs.py,
engine/thread_priority.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from engine import (
    Cancelled,
    Device,
    DeviceLost,
    ExecutionFailed,
    ModelRunner,
    ModelRunnerConfig,
    Request,
    Tensor,
    weighted,
)
from engine.runner.channel_rings import MANY_STRINGS
from engine.thread_priority import NICENESS
from engine.transport.bulk_copy import COPIED_AT_ONCE
from engine.transport.device_messages import RunTold
from tests.engine import models
from tests.support import FOR_EVER, WAIT, until

#: Rows of `models.slow_rows`, of 8 bytes each.
MANY = COPIED_AT_ONCE // 8 + 1


def load(path: Path, device: Device, **options: float) -> ModelRunner:
    config = ModelRunnerConfig(
        replica_to_device={0: device}, run_timeout=options.get("run_timeout", 0.0)
    )
    return ModelRunner(models.slow_rows(path), config, name=path.stem)


@pytest.fixture
def runner(tmp_path: Path, shared_device: Device) -> Iterator[ModelRunner]:
    with load(tmp_path / "m.popef", shared_device) as made:
        yield made


@pytest.fixture
def neighbour(tmp_path: Path, shared_device: Device) -> Iterator[ModelRunner]:
    with load(tmp_path / "neighbour.popef", shared_device) as made:
        yield made


def submit(
    runner: ModelRunner, steps: int, rows: int = 1, *, priority: int = 0
) -> Request:
    data = np.full((rows, 1), steps, np.int64)
    return runner.submit({"count": Tensor.from_numpy(data)}, priority=priority)


def large(runner: ModelRunner, steps: int) -> Request:
    return submit(runner, steps, MANY)


def result(request: Request) -> set[int]:
    assert request.wait(WAIT)
    assert request.error is None
    return {*request.outputs["output"].numpy().reshape(-1).tolist()}


def runs(device: Device) -> list[RunTold]:
    return [run for run in device.ping().runs if run.running_ns > 0]


def niceness(device: Device) -> list[int]:
    """How nice the threads of the process are."""
    folder = Path(f"/proc/{device.pid}/task")
    return [
        os.getpriority(os.PRIO_PROCESS, int(each.name)) for each in folder.iterdir()
    ]


def test_small_requests_of_others_do_not_wait(
    shared_device: Device, runner: ModelRunner, neighbour: ModelRunner
) -> None:
    request = large(runner, FOR_EVER)
    until(lambda: runs(shared_device))
    for number in range(20):
        assert result(submit(neighbour, number)) == {number}
    both = submit(neighbour, FOR_EVER)
    until(lambda: len(runs(shared_device)) == 2)
    assert shared_device.report.is_occupied
    assert len(shared_device.report.running) == 2
    assert all(shared_device.report.since(n) for n in shared_device.report.running)
    both.cancel()
    until(lambda: len(runs(shared_device)) == 1)
    assert not request.done
    request.cancel()
    assert result(large(runner, 2)) == {2}
    until(lambda: not shared_device.report.is_occupied)


def test_nor_do_they_if_only_the_outputs_were_large(
    shared_device: Device, runner: ModelRunner, neighbour: ModelRunner
) -> None:
    # The outputs of this model are as large as its inputs.
    assert result(large(runner, 1)) == {1}
    request = submit(runner, FOR_EVER)
    until(lambda: runs(shared_device))
    for number in range(20):
        assert result(submit(neighbour, number)) == {number}
    request.cancel()
    assert result(submit(runner, 3)) == {3}
    until(lambda: not shared_device.report.is_occupied)


def test_the_thread_of_large_requests_gives_way(
    shared_device: Device, runner: ModelRunner, neighbour: ModelRunner
) -> None:
    assert result(large(runner, 1)) == {1}
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    assert max(niceness(shared_device)) == min(19, mine + NICENESS)


def test_without_other_models_it_runs_as_the_others(
    tmp_path: Path, own_device: Device
) -> None:
    with load(tmp_path / "alone.popef", own_device) as runner:
        assert result(large(runner, 1)) == {1}
        assert len({*niceness(own_device)}) == 1


def test_requests_of_a_model_keep_their_order(
    shared_device: Device, runner: ModelRunner, neighbour: ModelRunner
) -> None:
    first = large(runner, FOR_EVER)
    until(lambda: runs(shared_device))
    others = [submit(runner, 3), large(runner, 4), submit(runner, 5)]
    assert result(submit(neighbour, 6)) == {6}
    assert not any(request.done for request in others)
    first.cancel()
    assert [result(request) for request in others] == [{3}, {4}, {5}]
    assert result(submit(runner, 7)) == {7}


def test_one_large_request_runs_at_a_time(
    tmp_path: Path, shared_device: Device, runner: ModelRunner, neighbour: ModelRunner
) -> None:
    with load(tmp_path / "third.popef", shared_device) as third:
        first = large(runner, FOR_EVER)
        until(lambda: runs(shared_device))
        waiting = [large(neighbour, 2), submit(neighbour, 3), large(third, 4)]
        assert len(runs(shared_device)) == 1
        assert not any(request.done for request in waiting)
        first.cancel()
        assert [result(request) for request in waiting] == [{2}, {3}, {4}]


def test_a_model_is_unloaded_during_its_large_run(
    tmp_path: Path, shared_device: Device, neighbour: ModelRunner
) -> None:
    other = load(tmp_path / "other.popef", shared_device)
    request = large(other, FOR_EVER)
    until(lambda: runs(shared_device))
    waiting = large(neighbour, 2)
    other.close()
    assert request.done
    assert result(waiting) == {2}
    assert result(submit(neighbour, 3)) == {3}


def test_a_large_run_beyond_its_limit_ends(tmp_path: Path, own_device: Device) -> None:
    with (
        load(tmp_path / "m.popef", own_device, run_timeout=0.2) as runner,
        load(tmp_path / "neighbour.popef", own_device) as neighbour,
    ):
        request = large(runner, FOR_EVER)
        until(lambda: own_device.ping().running_ns > 200_000_000)
        beside = submit(neighbour, FOR_EVER)
        until(lambda: len(runs(own_device)) == 2)
        end = own_device.limits.judge(own_device.ping())
        assert end is not None
        end()
        until(lambda: len(runs(own_device)) == 1)
        assert not beside.done
        beside.cancel()  # the thread that schedules tells the clients of both
        assert request.wait(WAIT)
        assert isinstance(request.error, ExecutionFailed)
        assert "exceeded the limit of 0.2 s" in str(request.error)
        assert result(large(runner, 1)) == {1}
        assert own_device.restarts == 0


@pytest.mark.parametrize("proven", ["none", "large", "small"])
def test_the_model_to_blame_for_a_crash(
    tmp_path: Path, own_device: Device, proven: str
) -> None:
    """If two run, it is the one that has not succeeded yet, if that says which."""
    with (
        load(tmp_path / "m.popef", own_device) as runner,
        load(tmp_path / "neighbour.popef", own_device) as neighbour,
    ):
        if proven != "none":
            assert result(submit(runner if proven == "large" else neighbour, 1)) == {1}
        request, beside = large(runner, FOR_EVER), submit(neighbour, FOR_EVER)
        until(lambda: len(runs(own_device)) == 2)
        pid = own_device.pid
        assert pid is not None
        os.kill(pid, signal.SIGSEGV)
        for each in (request, beside):
            assert each.wait(WAIT)
            assert isinstance(each.error, DeviceLost)
            culprit = {"none": "", "large": neighbour.name, "small": runner.name}
            assert each.error.culprit == culprit[proven]


def test_results_that_find_no_room_wait_for_it(
    tmp_path: Path, shared_device: Device, neighbour: ModelRunner
) -> None:
    node = helper.make_node("Concat", ["x", "x", "x"], ["y"], axis=0)
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None])
        for name in "xy"
    )
    graph = helper.make_graph([node], "thrice", [x], [y])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    path = models.write_graph(tmp_path / "thrice.popef", model)
    data = np.arange(COPIED_AT_ONCE // 4 + 1, dtype=np.float32)
    config = ModelRunnerConfig(
        replica_to_device={0: shared_device}, channel_memory=4 * data.nbytes
    )
    with ModelRunner(path, config) as runner:
        requests = [runner.submit({"x": Tensor.from_numpy(data)}) for _ in range(3)]
        # The first is not taken, so the results of the second find no room.
        number = runner._replicas.channels[0].replica
        until(lambda: RunTold(number, 0, 0, 0) in shared_device.ping().runs)
        for request in requests:
            assert request.wait(WAIT)
            assert request.error is None
            got = request.outputs["y"].numpy()
            assert np.array_equal(got, np.concatenate([data] * 3))
        assert result(submit(neighbour, 1)) == {1}


def test_users_pay_for_large_runs(
    tmp_path: Path, shared_device: Device, runner: ModelRunner, neighbour: ModelRunner
) -> None:
    for weight in (1, 3):
        priority = weighted(0, weight)
        request = submit(runner, 2, MANY, priority=priority)
        assert result(submit(neighbour, 3, priority=priority)) == {3}
        assert result(request) == {2}


def test_a_cancelled_large_request_is_dropped(
    shared_device: Device, runner: ModelRunner, neighbour: ModelRunner
) -> None:
    first = large(neighbour, FOR_EVER)
    until(lambda: runs(shared_device))
    second = large(runner, FOR_EVER)
    second.cancel()
    assert isinstance(second.error, Cancelled)
    first.cancel()
    assert result(large(runner, 1)) == {1}


def test_many_strings_run_beside_others_too(tmp_path: Path, own_device: Device) -> None:
    """They are more work than as many bytes of numbers."""
    config = ModelRunnerConfig(replica_to_device={0: own_device})
    few = np.full(10, "a" * 20, object)
    many = np.full(MANY_STRINGS // 5 + 1, "a", object)
    assert Tensor.from_numpy(many).nbytes < COPIED_AT_ONCE
    with (
        load(tmp_path / "neighbour.popef", own_device),
        ModelRunner(models.text(tmp_path / "text.popef"), config) as runner,
    ):
        assert runner.execute({"input": few})["output"].size == 10
        assert len({*niceness(own_device)}) == 1
        assert runner.execute({"input": many})["output"].size > 10_000
        assert len({*niceness(own_device)}) == 2
