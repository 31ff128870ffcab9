"""Requests to a model that another process has loaded; here the same one has, which
feeds it over a link of its own.

Covers: engine/runner/runner_description.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import msgpack
import numpy as np
import pytest

from engine import (
    Cancelled,
    DeadlineExceeded,
    Device,
    DeviceLost,
    ExecutionFailed,
    InvalidInput,
    JoinedDevice,
    JoinedRunner,
    ModelRunner,
    ModelRunnerConfig,
    QueueFull,
    RunnerClosed,
    RunnerDescription,
    Tensor,
)
from engine.devices import linked_device
from tests.engine import models
from tests.support import occupied


@pytest.fixture(scope="module")
def joined(shared_device: Device) -> Iterator[JoinedDevice]:
    with JoinedDevice(shared_device.id, shared_device.invite()) as found:
        yield found


def over_the_wire(description: RunnerDescription) -> RunnerDescription:
    raw = msgpack.packb(description.to_message())
    return RunnerDescription.from_message(msgpack.unpackb(raw))


def join(runner: ModelRunner, device: JoinedDevice, clients: int = 1) -> JoinedRunner:
    description = over_the_wire(runner.description).shared(clients)
    return JoinedRunner(description, {device.id: device})


def count(value: int) -> dict[str, Tensor]:
    return {"count": Tensor.from_numpy(np.array(value, np.int64))}


def test_it_answers_as_the_owner_does_until_it_is_closed(
    tmp_path: Path, shared_device: Device, joined: JoinedDevice
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: shared_device})
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as owner:
        runner = join(owner, joined)
        assert over_the_wire(owner.description) == owner.description
        assert runner.request_inputs == owner.request_inputs
        assert runner.request_outputs == owner.request_outputs
        assert runner.max_batch_size == owner.max_batch_size
        feed = {"input": Tensor.from_numpy(np.ones((3, 4), np.float32))}
        request = runner.submit(feed, validate=True)
        assert request.wait(60)
        np.testing.assert_array_equal(
            request.outputs["output"].numpy(), np.full((3, 4), 3)
        )
        assert runner.iterations_of(request.outputs) == [request.outputs]
        bad = {"input": Tensor.from_numpy(np.ones((3, 5), np.float32))}
        with pytest.raises(InvalidInput):
            runner.submit(bad, validate=True)
        assert runner.serving
        runner.close()
        assert not runner.serving
        with pytest.raises(RunnerClosed):
            runner.submit(feed)
        assert owner.execute({"input": np.ones((1, 4), np.float32)}, timeout=60)
    with pytest.raises(InvalidInput, match="not loaded"):
        JoinedRunner(runner.description, {joined.id: joined})


def test_queues_are_shared_out_and_closing_fails_what_is_left(
    tmp_path: Path,
    shared_device: Device,
    joined: JoinedDevice,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Closing waits for the device, which is busy to the end of the test.
    monkeypatch.setattr(linked_device, "STOP_TIMEOUT", 0.5)
    config = ModelRunnerConfig(
        replica_to_device={0: shared_device},
        max_queue_size=5,
        priority_levels=2,
        priority_queue_sizes={2: 3},
    )
    with ModelRunner(models.slow(tmp_path / "m.popef"), config) as owner:
        runner = join(owner, joined, clients=2)
        with occupied(owner):
            high = [runner.submit(count(1), priority=1) for _ in range(3)]
            low = [runner.submit(count(1)) for _ in range(2)]  # level 2
            for priority in (1, 2):
                with pytest.raises(QueueFull):
                    runner.submit(count(1), priority=priority)
            assert runner.in_flight == 5
            high[0].cancel()
            assert isinstance(high[0].error, Cancelled)
            assert not runner.drain(0)
            runner.close()
            left = [*high[1:], *low]
            assert [type(r.error) for r in left] == [RunnerClosed] * 4
    assert runner.drain(0)


def test_a_model_that_is_found_at_fault_fails_at_once(
    tmp_path: Path, shared_device: Device, joined: JoinedDevice
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: shared_device})
    with ModelRunner(models.slow(tmp_path / "m.popef"), config) as owner:
        runner = join(owner, joined)
        with occupied(owner):
            request = runner.submit(count(1))
            runner.fail(ExecutionFailed("it takes too long"))
            assert isinstance(request.error, ExecutionFailed)
            with pytest.raises(ExecutionFailed, match="takes too long"):
                runner.submit(count(1))
        runner.close()


@pytest.mark.parametrize("passed", [0.0, -1.0, math.nan])
def test_every_deadline_that_has_passed_is_one(
    tmp_path: Path, shared_device: Device, joined: JoinedDevice, passed: float
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: shared_device})
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as owner:
        runner = join(owner, joined)
        feed = {"input": Tensor.from_numpy(np.ones((1, 4), np.float32))}
        request = runner.submit(feed, deadline=passed)
        assert request.wait(60)
        assert isinstance(request.error, DeadlineExceeded)
        runner.close()


def test_whole_seconds_are_a_float_for_compiled_code(
    tmp_path: Path, shared_device: Device
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: shared_device}, run_timeout=30)
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as owner:
        assert type(owner.description.run_timeout) is float


def test_without_its_device_there_is_none(
    tmp_path: Path, shared_device: Device
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: shared_device})
    with (
        ModelRunner(models.affine(tmp_path / "m.popef"), config) as owner,
        pytest.raises(DeviceLost, match="has no replica"),
    ):
        JoinedRunner(owner.description, {})


def test_an_idle_replica_is_chosen_before_one_that_others_use(
    tmp_path: Path, shared_device: Device, own_device: Device, joined: JoinedDevice
) -> None:
    """A process counts only its own requests, and sees what the devices run."""
    slow = models.slow(tmp_path / "m.popef")
    both = ModelRunnerConfig(
        replication_factor=2, replica_to_device={0: shared_device, 1: own_device}
    )
    alone = ModelRunnerConfig(replica_to_device={0: shared_device})
    with (
        ModelRunner(slow, both) as owner,
        ModelRunner(slow, alone) as other,
        JoinedDevice(own_device.id, own_device.invite()) as second,
    ):
        runner = JoinedRunner(
            over_the_wire(owner.description),
            {device.id: device for device in (joined, second)},
        )
        with occupied(other):
            for one in (owner, runner):
                assert one.submit(count(1)).wait(60)
        runner.close()
