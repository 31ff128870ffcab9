"""Who is refused and who goes first, on a real device.

Covers: engine/devices/request.py, engine/runner/replica_lines.py,
engine/runner/stats.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from engine import (
    DeadlineExceeded,
    DeadlineUnreachable,
    Device,
    InvalidConfig,
    ModelRunner,
    ModelRunnerConfig,
    QueueFull,
    Request,
    RunnerClosed,
    Tensor,
    weighted,
)
from engine.transport.link import MOST_OUTSTANDING
from tests.engine import models
from tests.support import occupied, until

SOME = 1_000  # matrix products: some tens of milliseconds


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.slow(tmp_path_factory.mktemp("models") / "m.popef")


Opener = Callable[..., ModelRunner]


@pytest.fixture
def open_runner(path: Path, shared_device: Device) -> Iterator[Opener]:
    opened: list[ModelRunner] = []

    def make(**options: object) -> ModelRunner:
        config = ModelRunnerConfig(replica_to_device={0: shared_device}, **options)  # type: ignore[arg-type]
        opened.append(ModelRunner(path, config))
        return opened[-1]

    yield make
    for runner in opened:
        runner.close()


def count(value: int) -> dict[str, Tensor]:
    return {"count": Tensor.from_numpy(np.array(value, np.int64))}


def fill(runner: ModelRunner, number: int) -> list[Request]:
    return [runner.submit(count(SOME)) for _ in range(number)]


def learn(runner: ModelRunner) -> float:
    """Let the service time be learned; seconds that one request takes at least."""
    took = []
    for _ in range(4):
        began = time.monotonic()
        assert runner.submit(count(SOME)).wait(30)
        took.append(time.monotonic() - began)
    return min(took)


def test_what_cannot_finish_in_time_is_refused_at_once(open_runner: Opener) -> None:
    runner = open_runner()
    one = learn(runner)
    queue = fill(runner, 30)
    with pytest.raises(
        DeadlineUnreachable, match="needs more than the remaining"
    ) as refused:
        runner.submit(count(SOME), deadline=time.monotonic() + one)
    assert refused.value.retry_after > 0
    taken = runner.submit(count(SOME), deadline=time.monotonic() + 300)
    assert taken.wait(60)
    assert taken.error is None
    assert all(request.done for request in queue)


def test_who_has_no_deadline_waits(open_runner: Opener) -> None:
    runner = open_runner()
    learn(runner)
    queue = fill(runner, 5)
    assert all(request.wait(60) and request.error is None for request in queue)


def test_an_idle_replica_always_tries(open_runner: Opener) -> None:
    runner = open_runner()
    learn(runner)
    request = runner.submit(count(SOME), deadline=time.monotonic() + 0.001)
    assert request.wait(30)
    assert isinstance(request.error, DeadlineExceeded)


def test_those_who_were_given_up_take_no_time(open_runner: Opener) -> None:
    runner = open_runner()
    one = learn(runner)
    queue = fill(runner, 900)
    wanted = time.monotonic() + 300 * one
    with pytest.raises(DeadlineUnreachable):
        runner.submit(count(SOME), deadline=wanted)
    for request in queue[1:]:
        request.cancel()
    assert runner.submit(count(1), deadline=wanted).wait(30)


def test_a_full_queue_says_when_it_has_room(open_runner: Opener) -> None:
    runner = open_runner(max_queue_size=2)
    fill(runner, 2)
    with pytest.raises(QueueFull) as first:
        runner.submit(count(SOME))
    assert first.value.retry_after == 1.0  # nothing is known yet
    runner.drain(30)
    learn(runner)
    fill(runner, 2)
    with pytest.raises(QueueFull) as refused:
        runner.submit(count(SOME))
    assert 0 < refused.value.retry_after < 1.0


def test_higher_levels_go_first(open_runner: Opener) -> None:
    runner = open_runner(priority_levels=3)
    ended: list[int] = []

    def submit(priority: int, number: int) -> Request:
        return runner.submit(
            count(SOME), priority=priority, on_done=lambda request: ended.append(number)
        )

    # 0 and 4 are not levels of this model: such requests are of level 2.
    order = [(3, 30), (3, 31), (0, 20), (4, 21), (1, 10), (1, 11)]
    with occupied(runner):
        requests = [submit(priority, number) for priority, number in order]
    for request in requests:
        assert request.wait(60)
        assert request.error is None
    assert ended == [10, 11, 20, 21, 30, 31]


def test_lines_are_served_by_their_weights(open_runner: Opener) -> None:
    """3 to 1, by the time of the device."""
    runner = open_runner(priority_levels=2)
    heavy, light = weighted(2, 3), weighted(2, 1)
    ended: list[tuple[int, int]] = []

    def submit(priority: int) -> Request:
        def on_done(request: Request) -> None:
            ended.append((priority, request.compute_ns))

        return runner.submit(count(30), priority=priority, on_done=on_done)

    # The first one of a weight waits with all others, and has the line opened.
    assert submit(heavy).wait(60)
    assert submit(light).wait(60)
    until(lambda: runner.stats.lines == 4)
    ended.clear()
    with occupied(runner):
        requests = [submit(p) for p in [heavy, light] * 80 + [1] * 8]
    for request in requests:
        assert request.wait(60)
        assert request.error is None
    # Level 1 goes before. While both lines have requests, the heavy one gets three
    # quarters of the time: runs that a busy machine makes longer count for more.
    order = [priority for priority, _ in ended]
    both = min(_last(order, heavy), _last(order, light)) + 1
    times = [
        sum(took for priority, took in ended[:both] if priority == one)
        for one in (heavy, light)
    ]
    # The order follows the times of ended runs, so a line is ahead by at most one run.
    longest = [max(took for p, took in ended if p == one) for one in (heavy, light)]
    ahead = abs(times[0] / 3 - times[1])
    assert ahead <= 0.1 * times[1] + longest[0] / 3 + longest[1], times
    assert order.count(1) == 8
    runner.close()
    with pytest.raises(RunnerClosed):
        submit(heavy)


def _last(order: list[int], priority: int) -> int:
    """Return where the last request of a priority stands."""
    return max(at for at, one in enumerate(order) if one == priority)


def test_a_light_line_waits_for_its_neighbours(open_runner: Opener) -> None:
    runner = open_runner()
    one = learn(runner)
    assert runner.submit(count(1), priority=weighted(0, 9)).wait(60)
    until(lambda: runner.stats.lines == 2)
    for _ in range(900):
        runner.submit(count(SOME), priority=weighted(0, 9))
    soon = time.monotonic() + 300 * one
    first = runner.submit(count(SOME), deadline=soon)
    for _ in range(60):
        runner.submit(count(SOME))
    with pytest.raises(DeadlineUnreachable):
        runner.submit(count(SOME), deadline=soon)
    first.cancel()


def test_only_what_goes_first_counts_for_a_deadline(open_runner: Opener) -> None:
    runner = open_runner(priority_levels=2)
    one = learn(runner)
    for _ in range(900):
        runner.submit(count(SOME), priority=2)
    soon = time.monotonic() + 300 * one
    with pytest.raises(DeadlineUnreachable):
        runner.submit(count(SOME), priority=2, deadline=soon)
    first = runner.submit(count(SOME), priority=1, deadline=soon)
    assert first.wait(60)
    assert first.error is None


def test_each_level_has_a_queue_of_its_own(open_runner: Opener) -> None:
    runner = open_runner(
        priority_levels=2, max_queue_size=5, priority_queue_sizes={2: 1}
    )
    runner.submit(count(SOME), priority=2)
    with pytest.raises(QueueFull, match="1 waiting"):
        runner.submit(count(SOME), priority=2)
    for _ in range(5):
        runner.submit(count(SOME), priority=1)
    with pytest.raises(QueueFull, match="5 waiting"):
        runner.submit(count(SOME), priority=1)
    assert runner.in_flight == 6
    assert runner.drain(60)


@pytest.mark.parametrize(
    ("preferred", "sizes"),
    [([4], [4, 4, 2]), ([3, 6, 100], [6, 3, 1]), ([], [8, 2]), ([1], [1] * 10)],
)
def test_preferred_batch_sizes(
    tmp_path: Path,
    shared_device: Device,
    open_runner: Opener,
    preferred: list[int],
    sizes: list[int],
) -> None:
    config = ModelRunnerConfig(
        replica_to_device={0: shared_device},
        max_batch_size=100 if 100 in preferred else 8,
        preferred_batch_sizes=tuple(preferred),
    )
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
        row = {"input": Tensor.from_numpy(np.ones((1, 4), np.float32))}
        with occupied(open_runner()):
            requests = [runner.submit(row) for _ in range(10)]
        assert all(request.wait(30) for request in requests)
    assert [r.batch_rows for r in requests] == [n for n in sizes for _ in range(n)]


def rows(number: int) -> dict[str, Tensor]:
    return {"input": Tensor.from_numpy(np.ones((number, 4), np.float32))}


@pytest.mark.parametrize(
    ("requests", "ran_with"),
    [
        ([1, 3], [4, 4]),  # no preferred size: all that waits
        ([1, 1, 3], [2, 2, 3]),
        ([1, 3, 2, 1], [6, 6, 6, 1]),
        ([3, 4], [3, 4]),  # beyond the largest of them
        ([7, 1], [7, 1]),
    ],
)
def test_requests_that_make_up_no_preferred_size(
    tmp_path: Path,
    shared_device: Device,
    open_runner: Opener,
    requests: list[int],
    ran_with: list[int],
) -> None:
    config = ModelRunnerConfig(
        replica_to_device={0: shared_device},
        max_batch_size=8,
        preferred_batch_sizes=(2, 6),
    )
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
        with occupied(open_runner()):
            submitted = [runner.submit(rows(number)) for number in requests]
        assert all(request.wait(30) for request in submitted)
    assert [request.batch_rows for request in submitted] == ran_with


@pytest.mark.parametrize("requests", [[1, 1, 1, 1], [1, 3], [3, 3], [4]])
def test_a_preferred_size_ends_the_delay(
    tmp_path: Path, shared_device: Device, requests: list[int]
) -> None:
    config = ModelRunnerConfig(
        replica_to_device={0: shared_device},
        max_batch_size=8,
        preferred_batch_sizes=(4, 6),
        max_queue_delay=60,
    )
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
        submitted = [runner.submit(rows(number)) for number in requests]
        assert all(request.wait(30) for request in submitted)
        assert {request.batch_rows for request in submitted} == {sum(requests)}


def test_what_the_delay_has_held_back_long_enough_runs_together(
    tmp_path: Path, shared_device: Device, open_runner: Opener
) -> None:
    config = ModelRunnerConfig(
        replica_to_device={0: shared_device},
        max_batch_size=8,
        preferred_batch_sizes=(6,),
        max_queue_delay=0.2,
    )
    with ModelRunner(models.affine(tmp_path / "m.popef"), config) as runner:
        with occupied(open_runner()):
            submitted = [runner.submit(rows(number)) for number in (1, 3)]
        assert all(request.wait(30) for request in submitted)
        assert {request.batch_rows for request in submitted} == {4}


def test_who_waits_and_who_runs_are_told_apart(open_runner: Opener) -> None:
    runner = open_runner()
    requests = [runner.submit(count(1 << 40)) for _ in range(4)]
    until(lambda: runner.stats.awaiting == 3)
    assert runner.in_flight == 4
    requests[0].cancel()
    until(lambda: runner.stats.awaiting == 2)
    for request in requests:
        request.cancel()
    assert runner.drain(30)
    until(lambda: runner.stats.awaiting == 0)


@pytest.mark.parametrize(
    "options",
    [
        {"preferred_batch_sizes": (0,)},
        {"preferred_batch_sizes": (9,), "max_batch_size": 8},
        {"priority_levels": 33},
        {"default_priority": 1},
        {"priority_levels": 2, "default_priority": 3},
        {"priority_levels": 2, "priority_queue_sizes": {3: 1}},
        {"priority_levels": 2, "priority_queue_sizes": {1: 0}},
    ],
)
def test_options_that_cannot_be(options: dict[str, object]) -> None:
    with pytest.raises(InvalidConfig):
        ModelRunnerConfig(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("levels", "given", "level"),
    [(0, 0, 0), (1, 0, 1), (2, 0, 2), (3, 0, 2), (5, 0, 3), (5, 1, 1)],
)
def test_the_default_level(levels: int, given: int, level: int) -> None:
    config = ModelRunnerConfig(priority_levels=levels, default_priority=given)
    assert config.default_level == level


def test_all_models_of_a_device_together_are_bounded(
    open_runner: Opener, shared_device: Device
) -> None:
    others = MOST_OUTSTANDING - 5  # as if more models had all but five
    shared_device.outstanding += others
    try:
        first, second = open_runner(), open_runner(channel_memory=1 << 16)
        requests = [*fill(first, 3), *fill(second, 2)]
        for runner in (first, second):
            with pytest.raises(QueueFull, match="too many requests in flight"):
                runner.submit(count(1))
        requests[2].cancel()
        assert all(request.wait(30) for request in requests)
        assert first.drain(30)
        first.execute({"count": np.array(1, np.int64)}, timeout=30)
        assert shared_device.outstanding == others
    finally:
        shared_device.outstanding -= others
