"""What waits on a device that dies goes to another replica of the model.

Covers: engine/model/kept_state.py, engine/runner/failover.py.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from build_popef import build_accumulator

from engine import (
    DeviceLost,
    DeviceManager,
    ModelRunner,
    ModelRunnerConfig,
    PythonOptions,
    Request,
    Tensor,
    open_model,
)
from engine.model.kept_state import keeps_state
from popgate_python_files import read_python_model
from tests.engine import models
from tests.support import until

SLOW = """
import os, time

class Slow:
    inputs = {"x": "FP32[1]"}
    outputs = {"y": "FP32[1]"}
    def __call__(self, x):
        while x[0] == 0 and not os.path.exists("%s"):
            time.sleep(0.001)
        return {"y": x + 1}
"""


@contextlib.contextmanager
def two_replicas(folder: Path, **config: Any) -> Iterator[ModelRunner]:
    """Driven as an event loop does: by whoever calls `poll`."""
    file = folder / "model.py"
    file.write_text(SLOW % (folder / "go"))
    manager = DeviceManager("cpu:1")
    with contextlib.ExitStack() as ends:
        devices = []
        for _ in range(2):
            device = manager.create_python_device(PythonOptions())
            ends.callback(device.close)
            devices.append(device)
        model = read_python_model(devices[0], file)
        found = ModelRunnerConfig(
            replication_factor=2,
            replica_to_device=dict(enumerate(devices)),
            batching_dim=None,
            **config,
        )
        runner = ends.enter_context(ModelRunner(model, found))
        for device in devices:
            device.adopt()
        yield runner


def submit(runner: ModelRunner, value: float, **options: Any) -> Request:
    tensor = Tensor.from_numpy(np.array([value], np.float32))
    return runner.submit({"x": tensor}, **options)


def occupy(runner: ModelRunner) -> list[Request]:
    """Each replica runs a request, and has some that wait; the first two run."""
    running = [submit(runner, 0) for _ in range(2)]
    until(lambda: all(d.ping().running_ns for d in runner.devices))
    return running


def drive(runner: ModelRunner) -> None:
    for device in runner.devices:
        device.poll()


def lose(runner: ModelRunner, index: int = 0) -> None:
    device = runner.devices[index]
    assert device.pid is not None
    os.killpg(device.pid, signal.SIGKILL)
    until(lambda: not device.check())


def test_what_has_not_begun_goes_to_another_replica(tmp_path: Path) -> None:
    with two_replicas(tmp_path) as runner:
        running = occupy(runner)
        waiting = [submit(runner, value) for value in range(1, 9)]
        given_up = submit(runner, 20)
        given_up.cancel()
        lose(runner)
        assert [isinstance(r.error, DeviceLost) for r in running] == [True, False]
        assert [r.error for r in waiting] == [None] * 8
        assert runner.in_flight >= 9
        (tmp_path / "go").touch()

        def done() -> bool:
            drive(runner)
            return all(request.done for request in (*running, *waiting))

        until(done)
        values = [float(r.outputs["y"].numpy()[0]) for r in waiting]
        assert values == [value + 1.0 for value in range(1, 9)]
        assert [device.outstanding for device in runner.devices] == [0, 0]


def test_a_full_queue_takes_no_more_and_the_last_replica_fails_all(
    tmp_path: Path,
) -> None:
    with two_replicas(tmp_path, max_queue_size=3) as runner:
        occupy(runner)
        waiting = [submit(runner, value) for value in range(1, 5)]
        lose(runner, [d.outstanding for d in runner.devices].index(3))
        failed = [r for r in waiting if isinstance(r.error, DeviceLost)]
        assert len(failed) == 2
        lose(runner, next(i for i, d in enumerate(runner.devices) if d.pid is not None))
        assert all(isinstance(r.error, DeviceLost) for r in waiting)


def test_what_is_for_one_replica_stays_there(tmp_path: Path) -> None:
    with two_replicas(tmp_path) as runner:
        occupy(runner)
        waiting = [submit(runner, 1, replica_id=0), submit(runner, 1, replica_id=1)]
        lose(runner, 0)
        assert isinstance(waiting[0].error, DeviceLost)
        assert not waiting[1].done
        (tmp_path / "go").touch()


def test_whether_a_model_keeps_something(tmp_path: Path) -> None:
    assert not keeps_state(open_model(models.affine(tmp_path / "m.popef")))
    assert not keeps_state(open_model(models.weighted(tmp_path / "w.popef")))
    assert keeps_state(open_model(build_accumulator(tmp_path)))
