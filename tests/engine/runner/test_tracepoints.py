"""Where the time of requests went."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

import numpy as np
import pytest

from engine import (
    Device,
    ExecutionFailed,
    InvalidConfig,
    InvalidInput,
    ModelRunner,
    ModelRunnerConfig,
    PhaseValues,
    Tracepoints,
)
from tests.engine import models

NOTHING = PhaseValues(0, 0, 0, 0)


def on(device: Device, **options: object) -> ModelRunnerConfig:
    return ModelRunnerConfig(replica_to_device={0: device}, **options)  # type: ignore[arg-type]


class Recorder(Protocol):
    def __call__(self, *values: int, size: int = 0) -> Tracepoints: ...


@pytest.fixture(scope="module")
def of(
    tmp_path_factory: pytest.TempPathFactory, shared_device: Device
) -> Iterator[Recorder]:
    """Tracepoints that have recorded a request of these times, one after the other."""
    path = models.affine(tmp_path_factory.mktemp("of") / "m.popef")
    with ModelRunner(path, on(shared_device)) as runner:
        request = runner.execute({"input": np.ones((1, 4), np.float32)}).request
        assert request is not None
        request.began_ns = 1

        def record(*values: int, size: int = 0) -> Tracepoints:
            tracepoints = Tracepoints(size, threading.Lock())
            for v in values:
                request.submitted_ns = 1 + v * 1_000
                request.queue_ns = v * 10_000
                request.compute_ns = v * 100_000
                tracepoints.record(request)
            return tracepoints

        yield record


def test_statistics_of_each_phase(of: Recorder) -> None:
    tracepoints = of(4, 1, 3, 2)
    assert tracepoints.trace() == PhaseValues(222, 2, 20, 200)
    assert tracepoints.trace(0) == PhaseValues(444, 4, 40, 400)
    assert tracepoints.trace(2) == tracepoints.trace(-2) == PhaseValues(333, 3, 30, 300)
    assert tracepoints.mean() == PhaseValues(277.5, 2.5, 25, 250)
    assert tracepoints.counts() == PhaseValues(4, 4, 4, 4)


def test_values_can_be_copied(of: Recorder) -> None:
    values = of(10, 20, 30).mean()
    assert copy.deepcopy(values) == values
    assert pickle.loads(pickle.dumps(values)) == values


@pytest.mark.parametrize(
    ("quantile", "expected"), [(0, 1), (0.25, 1), (0.26, 2), (0.5, 2), (0.9, 4), (1, 4)]
)
def test_a_percentile_is_one_that_was_measured(
    of: Recorder, quantile: float, expected: int
) -> None:
    got = of(4, 1, 3, 2).percentile(quantile)
    assert got == of(expected).trace()


def test_the_oldest_go_but_are_counted(of: Recorder) -> None:
    tracepoints = of(*range(1, 11), size=3)
    assert len(tracepoints) == 3
    assert tracepoints.trace(0) == of(8).trace()
    assert tracepoints.counts().request == 10


@pytest.mark.parametrize(("size", "kept"), [(0, 2500), (1024, 1024), (2000, 2000)])
def test_buffers_of_any_size(of: Recorder, size: int, kept: int) -> None:
    tracepoints = of(*range(2500), size=size)
    assert (tracepoints.count, len(tracepoints)) == (2500, kept)
    assert tracepoints.trace() == of(2499).trace()
    assert tracepoints.trace(0) == tracepoints.trace(-kept) == of(2500 - kept).trace()


def test_nothing_recorded_is_zeros() -> None:
    empty = Tracepoints(3, threading.Lock())
    assert empty.trace() == empty.mean() == empty.percentile() == empty.counts()
    assert empty.trace() == NOTHING


@pytest.mark.parametrize("quantile", [-0.1, 1.1, float("nan")])
def test_a_quantile_that_is_none(of: Recorder, quantile: float) -> None:
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        of(1).percentile(quantile)


@pytest.mark.parametrize("position", [4, -5])
def test_a_request_that_is_not_kept(of: Recorder, position: int) -> None:
    with pytest.raises(InvalidInput, match="4 requests are recorded"):
        of(1, 2, 3, 4).trace(position)


def test_a_runner_records_what_succeeded(tmp_path: Path, shared_device: Device) -> None:
    path = models.gather(tmp_path / "m.popef")
    config = on(
        shared_device, record_tracepoints=True, request_tracepoints_buffer_size=5
    )
    with ModelRunner(path, config) as runner:
        good = {"index": np.zeros(1, np.int64)}
        tracepoints = runner.tracepoints()  # also before there are any
        for _ in range(7):
            runner.execute(good)
        with pytest.raises(ExecutionFailed):
            runner.execute({"index": np.full(1, 10**6, np.int64)})
        assert (tracepoints.count, len(tracepoints)) == (7, 5)
        for position in range(5):
            values = tracepoints.trace(position)
            assert values.request == pytest.approx(
                values.read_preparation + values.read_queue + values.computation
            )
            assert min(values.by_name().values()) > 0
        with pytest.raises(InvalidInput, match="replica_id must be"):
            runner.tracepoints(1)


def test_a_phase_is_as_long_as_it_took(tmp_path: Path, shared_device: Device) -> None:
    config = on(shared_device, record_tracepoints=True)
    with ModelRunner(models.slow(tmp_path / "m.popef"), config) as runner:
        counts = [np.array(n, np.int64) for n in (10_000, 1)]
        results = [runner.execute_async({"count": n}) for n in counts]
        for result in results:
            result.wait()
        long, short = runner.tracepoints().trace(0), runner.tracepoints().trace(1)
        assert long.computation > short.computation
        # The second waited in the queue while the first was computed.
        assert short.read_queue > 0.5 * long.computation
        assert short.request > short.read_queue


def test_a_request_without_room_waits_before_its_queue(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.slow(tmp_path / "m.popef")
    config = on(shared_device, record_tracepoints=True)
    with ModelRunner(path, config) as runner:
        first = runner.execute_async({"count": np.array(10_000, np.int64)})
        rest = [
            runner.execute_async({"count": np.array(1, np.int64)}) for _ in range(400)
        ]
        for result in (first, *rest):
            result.wait()
        tracepoints = runner.tracepoints()
        longest = tracepoints.trace(0).computation
        assert tracepoints.trace(1).read_preparation < longest / 2
        waits = [tracepoints.trace(n).read_preparation for n in range(401)]
        assert max(waits) > longest / 2


def test_nothing_is_recorded_unless_asked(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.affine(tmp_path / "m.popef")
    with ModelRunner(path, on(shared_device)) as runner:
        result = runner.execute({"input": np.ones((1, 4), np.float32)})
        assert result.request is not None
        assert result.request.began_ns == 0
        assert runner.tracepoints().counts() == NOTHING
    with pytest.raises(InvalidConfig, match="request_tracepoints_buffer_size"):
        on(shared_device, request_tracepoints_buffer_size=-1)


def test_threads_record_and_read_at_once(tmp_path: Path, shared_device: Device) -> None:
    path = models.affine(tmp_path / "m.popef")
    config = on(
        shared_device, record_tracepoints=True, request_tracepoints_buffer_size=0
    )
    with ModelRunner(path, config) as runner:

        def work() -> None:
            for _ in range(200):
                runner.execute({"input": np.ones((1, 4), np.float32)})
                runner.tracepoints().percentile(0.99)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert runner.tracepoints().count == len(runner.tracepoints()) == 800
