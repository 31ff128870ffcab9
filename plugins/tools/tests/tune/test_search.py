"""How `popgate tune` searches, on servers that are formulas.

Covers: plugins/tools/src/popgate_tools/tune/search.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from popgate_tools.tune.search import (
    MOST_IN_FLIGHT,
    LoadPoint,
    OutOfTime,
    Reached,
    Setting,
    climb,
    search,
)

START = Setting(devices=1, instances=1, max_batch_size=64, max_queue_delay=0.0)


def queue(in_flight: int, most: float = 8000) -> LoadPoint:
    """Answers `most` requests a second at most, and one alone in a millisecond."""
    return LoadPoint(
        in_flight, min(most, in_flight / 0.001), max(0.001, in_flight / most)
    )


@pytest.mark.parametrize(
    ("bound", "first", "in_flight"),
    [(1.0, 1, 8), (0.0005, 1, 1), (0.0015, 64, 8), (0.0015, 1, 8), (0.0005, 64, 1)],
)
def test_as_many_in_flight_as_help(bound: float, first: int, in_flight: int) -> None:
    reached = climb(START, queue, bound, first)
    assert reached.best.in_flight == in_flight
    assert reached.fits == (bound >= 0.001)
    assert reached.rate == (8000 if reached.fits else 0)


def test_it_ends_where_more_always_helps() -> None:
    reached = climb(START, lambda n: LoadPoint(n, n, 0.001), bound=1.0)
    assert reached.best.in_flight == MOST_IN_FLIGHT


def test_one_slow_measurement_is_repeated() -> None:
    seen: set[int] = set()

    def disturbed(in_flight: int) -> LoadPoint:
        new = in_flight not in seen
        seen.add(in_flight)
        return replace(queue(in_flight), latency=9.0) if new else queue(in_flight)

    assert climb(START, disturbed, bound=1.0).best.in_flight == 8


def served(setting: Setting, first: int) -> Reached:
    """Best with two devices, four instances, batches of 16 and 5 ms of delay."""
    most = 8000.0
    most *= 2 if setting.devices == 2 else 1
    most *= 1.5 if setting.instances == 4 else 1
    most *= 1.2 if setting.max_batch_size == 16 else 1
    most *= 1.1 if setting.max_queue_delay == 0.005 else 1
    return climb(setting, lambda n: queue(n, most), 0.1, first)


def test_the_best_of_all_is_found() -> None:
    found = search(START, served, batches=True, devices=[1, 2], bound=0.1)
    assert found.first.setting == START
    assert found.best.setting == Setting(2, 4, 16, 0.005)


def gathered(delay: float, bound: float) -> float:
    """Requests a second of a machine where a batch takes 0.2 ms and each client sends
    one request every 0.4 ms: a delay gathers more of 32 clients, and costs its time.
    """
    rows = min(32.0, 4 + 32 * delay / 0.0004)
    return rows / (0.0002 + delay) if delay < bound else 0.0


def test_delays_below_a_millisecond_are_told_apart() -> None:
    tried = []

    def trial(setting: Setting, first: int) -> Reached:
        tried.append(setting.max_queue_delay)
        rate = gathered(setting.max_queue_delay, 0.005)
        return Reached(setting, LoadPoint(8, rate, 0.001))

    found = search(START, trial, batches=True, devices=[1], bound=0.005)
    assert set(tried) == {0.0, 0.0001, 0.0003, 0.0005, 0.001}
    best = max(tried, key=lambda delay: gathered(delay, 0.005))
    assert found.best.setting.max_queue_delay == best == 0.0003


def test_rows_that_do_not_run_together_have_no_batches() -> None:
    tried = []

    def trial(setting: Setting, first: int) -> Reached:
        tried.append(setting)
        return served(setting, first)

    search(START, trial, batches=False, devices=[1], bound=0.1)
    assert {(s.max_batch_size, s.max_queue_delay) for s in tried} == {(64, 0.0)}
    assert len(tried) == len(set(tried)) == 3


def test_nothing_is_better() -> None:
    def trial(setting: Setting, first: int) -> Reached:
        return climb(setting, queue, 0.1, first)

    found = search(START, trial, batches=True, devices=[1, 2], bound=0.1)
    assert found.best is found.first


def test_what_cannot_be_served_ends_its_group() -> None:
    def trial(setting: Setting, first: int) -> Reached | None:
        return None if setting.max_batch_size > 64 else served(setting, first)

    found = search(START, trial, batches=True, devices=[1], bound=0.1)
    assert found.best.setting.max_batch_size == 16


def test_out_of_time() -> None:
    left = 2

    def trial(setting: Setting, first: int) -> Reached:
        nonlocal left
        if not left:
            raise OutOfTime
        left -= 1
        return served(setting, first)

    found = search(START, trial, batches=True, devices=[2], bound=0.1)
    assert found.best.setting.devices == 2
    with pytest.raises(OutOfTime):
        search(START, trial, batches=True, devices=[2], bound=0.1)
