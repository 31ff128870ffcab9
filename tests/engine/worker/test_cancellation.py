"""A run that nobody waits for ends: cancelled, late, its model or its client gone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import (
    DeadlineExceeded,
    Device,
    ModelRunner,
    ModelRunnerConfig,
    Request,
    Tensor,
)
from engine.transport import control
from engine.transport.channel import REQUEST, Channel, ChannelLayout
from engine.transport.device_messages import ChannelOpened, Linked, LinkUp, OpenChannel
from engine.transport.link import Link
from engine.transport.shared_memory import PAGE
from tests.engine import models
from tests.support import until

#: Hours of work: a test that waits for it never ends.
FOR_EVER = 1_000_000_000


@pytest.fixture
def runner(tmp_path: Path, shared_device: Device) -> Iterator[ModelRunner]:
    config = ModelRunnerConfig(replica_to_device={0: shared_device})
    with ModelRunner(models.slow(tmp_path / "m.popef"), config) as made:
        yield made


def submit(runner: ModelRunner, count: int, **options: float) -> Request:
    data = {"count": Tensor.from_numpy(np.array(count, np.int64))}
    return runner.submit(data, deadline=options.get("deadline"))


def running(runner: ModelRunner) -> bool:
    return bool(runner.devices[0].ping().running_ns > 0)


def test_a_cancelled_run_frees_the_device(runner: ModelRunner) -> None:
    request = submit(runner, FOR_EVER)
    until(lambda: running(runner))
    request.cancel()
    # The next one runs, so the device is free; the first is no longer in flight.
    assert submit(runner, 1).wait(30)
    assert runner.in_flight == 0


def test_cancelled_while_it_is_being_batched(runner: ModelRunner) -> None:
    for _ in range(20):
        submit(runner, FOR_EVER).cancel()
    assert submit(runner, 1).wait(30)


def test_a_late_run_frees_the_device(runner: ModelRunner) -> None:
    request = submit(runner, FOR_EVER, deadline=time.monotonic() + 0.05)
    assert request.wait(30)
    assert isinstance(request.error, DeadlineExceeded)
    assert submit(runner, 1).wait(30)


def test_an_unloaded_model_frees_the_device(
    tmp_path: Path, shared_device: Device, runner: ModelRunner
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: shared_device})
    other = ModelRunner(models.slow(tmp_path / "other.popef"), config)
    request = submit(other, FOR_EVER)
    until(lambda: running(other))
    other.close()
    assert request.done
    assert submit(runner, 1).wait(30)


def test_a_run_goes_on_for_those_who_wait(
    tmp_path: Path, shared_device: Device
) -> None:
    config = ModelRunnerConfig(replica_to_device={0: shared_device}, batching=True)
    with ModelRunner(models.slow_rows(tmp_path / "m.popef"), config) as runner:

        def steps(number: int) -> dict[str, Tensor]:
            return {"count": Tensor.from_numpy(np.full((1, 1), number, np.int64))}

        # Both are long enough to be seen running on a machine that is busy, and the
        # four wait behind the first, so that they are one batch.
        first = runner.submit(steps(50_000))
        until(lambda: running(runner))
        requests = [runner.submit(steps(150_000)) for _ in range(4)]
        assert first.wait(30)
        until(lambda: running(runner))
        for request in requests[1:]:
            request.cancel()
        assert requests[0].wait(60)
        assert requests[0].error is None
        assert requests[0].outputs["output"].numpy().tolist() == [[150_000]]
        assert requests[0].batch_rows == 4  # the cancelled ones were with it
        until(lambda: not runner.devices[0].poll() and runner.in_flight == 0)


def test_requests_of_a_client_that_died_end(
    shared_device: Device, runner: ModelRunner
) -> None:
    # What another client process of this device would do, by hand.
    link, news = Link.create(), os.eventfd(0)
    address = shared_device.process.address
    (replica,) = [c.replica for c in runner._replicas.channels]
    layout = ChannelLayout(4, (PAGE,), (PAGE << 8,))
    channel = Channel.create("other", layout)
    with control.connect(address, 30) as sock:
        answer, eventfds = control.ask(sock, LinkUp(), Linked, [link.memory.fd, news])
        message = OpenChannel(answer.link, replica, layout.to_message())
        opened, _ = control.call(address, message, ChannelOpened, [channel.memory.fd])
        number = opened.channel
        anchor, data = channel.inputs[0], np.int64(FOR_EVER).tobytes()
        offset = anchor.place(len(data))
        anchor.payload[offset : offset + len(data)] = data
        anchor.describe(0, 1, offset, len(data), ())
        anchor.write_complete()
        at = channel.request_at(channel.requests.try_write_lock())
        REQUEST.pack_into(channel.view, at, 1, 1, 0, 0, time.monotonic_ns())
        channel.requests.write_complete()
        assert link.submissions.put(number)
        os.eventfd_write(eventfds[0], 1)
        until(lambda: running(runner))
    assert submit(runner, 1).wait(30)
    channel.close()
    link.close()
    for fd in (*eventfds, news):
        os.close(fd)
