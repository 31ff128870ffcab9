"""Service-time estimates and predicted completions, on synthetic batches."""

from __future__ import annotations

import pytest

from tests.plain import plain

service_time = plain("engine.runner.service_time")
ServiceTime = service_time.ServiceTime

MS = 1_000_000


class Clock:
    """A replica that has run batches, on a clock of its own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.now = 10_000 * MS
        self.service_time = ServiceTime(most)
        self.service_time.safety = 1.0
        monkeypatch.setattr(service_time.time, "monotonic_ns", lambda: self.now)

    def batch(
        self, rows: int, took: int, *, waited: int = 0, others: int = 0, waiting: int
    ) -> None:
        """One of `took` ms, after the device did something else for `others` ms."""
        self.now += (took + others) * MS
        self.service_time.observe(rows, (waited + others) * MS, took * MS, waiting)

    def left(self, rows: int) -> float:
        left: int = self.service_time.completion_ns(rows, self.now) - self.now
        return left / MS


def test_nothing_is_refused_on_a_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 8)
    assert clock.service_time.longest_ns == 0
    assert clock.left(1000) == 0


def test_batches_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 8)
    clock.service_time.since = clock.now
    for _ in range(10):
        clock.batch(8, 20, waited=100, waiting=80)
    assert clock.left(8) == pytest.approx(20, rel=0.01)
    assert clock.left(80) == pytest.approx(200, rel=0.01)
    # Half way through a batch half of it is left, and never less than nothing.
    clock.now += 10 * MS
    assert clock.left(80) == pytest.approx(190, rel=0.01)
    clock.now += 500 * MS
    assert clock.left(80) == pytest.approx(180, rel=0.01)
    assert clock.left(8) == pytest.approx(0, abs=0.1)


def test_small_batches_are_known_for_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, 64)
    clock.service_time.since = clock.now
    clock.batch(1, 5, waiting=1)
    # A larger batch takes at least as long as the one that is known.
    assert clock.left(64) == pytest.approx(5, rel=0.01)
    for _ in range(10):
        clock.batch(64, 50, waited=50, waiting=640)
    assert clock.left(1) == pytest.approx(5, rel=0.01)
    assert clock.left(64 * 3 + 1) == pytest.approx(155, rel=0.01)


def test_what_others_do_on_the_device_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1)
    clock.service_time.since = clock.now
    for _ in range(30):
        clock.batch(1, 10, waited=100, others=30, waiting=10)
    assert clock.left(10) == pytest.approx(400, rel=0.01)


def test_an_idle_replica_is_not_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1)
    clock.service_time.since = clock.now
    for _ in range(10):
        clock.now += 5000 * MS  # nothing to do
        clock.service_time.since = clock.now
        clock.batch(1, 10, waiting=1)
    assert clock.left(10) == pytest.approx(100, rel=0.01)


def test_requests_that_do_not_fill_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 8)
    clock.service_time.since = clock.now
    for _ in range(30):  # five rows each: only one fits
        clock.batch(5, 10, waited=100, waiting=500)
    assert clock.left(50) == pytest.approx(100, rel=0.01)


def test_what_varies_is_promised_later(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1)
    clock.service_time.since = clock.now
    for n in range(40):
        clock.batch(1, 10 if n % 2 else 30, waited=50, waiting=10)
    assert clock.left(1) > 35
    assert clock.left(100) == pytest.approx(2000, rel=0.3)


def test_the_next_end_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 8)
    clock.service_time.since = clock.now
    clock.batch(8, 40, waiting=8)
    clock.now += 30 * MS
    assert (
        clock.service_time.batch_end_ns(clock.now) - clock.now
    ) / MS == pytest.approx(10)


def test_missed_predictions_raise_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 1)
    clock.service_time.since = clock.now
    clock.batch(1, 10, waiting=1)
    assert clock.left(10) == pytest.approx(100, rel=0.01)
    for _ in range(5):
        clock.service_time.learn(met=False)
    assert clock.left(10) == pytest.approx(100 * service_time.MISSED**5, rel=0.01)
    for _ in range(1000):
        clock.service_time.learn(met=False)
    remembered = clock.left(12) - clock.left(10)
    assert remembered == pytest.approx(20 * service_time.MOST_SAFETY, rel=0.01)
    # Many misses take as long to forget.
    for _ in range(5000):
        clock.service_time.learn(met=True)
    assert clock.left(12) - clock.left(10) == remembered
    for _ in range(20_000):
        clock.service_time.learn(met=True)
    assert clock.service_time.safety == service_time.LEAST_SAFETY
    # Three in a thousand broken keep it where it is.
    clock.service_time.safety = 1.5
    for n in range(2000):
        clock.service_time.learn(met=n % 333 != 332)
    assert clock.service_time.safety == pytest.approx(1.5, rel=0.03)


def test_what_keeps_the_device_at_work_is_not_refused_for_safety(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, 8)
    clock.service_time.since = clock.now
    for _ in range(10):
        clock.batch(8, 20, waited=100, waiting=80)
    clock.service_time.safety = service_time.MOST_SAFETY
    assert clock.left(16) == pytest.approx(40 * service_time.NEXT_SAFETY, rel=0.01)
    beyond = clock.left(40) - clock.left(16)
    assert beyond == pytest.approx(60 * service_time.MOST_SAFETY, rel=0.01)


@pytest.mark.parametrize("safety", [1.25, 3.0, 100.0])
@pytest.mark.parametrize("rows", [9, 24, 80])
@pytest.mark.parametrize("left", [1, 25, 45, 150])
def test_it_is_taken_when_it_was_said(
    monkeypatch: pytest.MonkeyPatch, safety: float, rows: int, left: int
) -> None:
    clock = Clock(monkeypatch, 8)
    clock.service_time.since = clock.now
    for took in (19, 21) * 8:
        clock.batch(8, took, waited=100, waiting=80)
    clock.service_time.safety = safety
    if clock.left(rows) <= left:
        return
    wait = clock.service_time.admission_ns(rows, left * MS, clock.now) - clock.now
    assert wait > 0
    # No batch ends meanwhile: work done is time that passes.
    work, spread = clock.service_time._work(rows, clock.now)
    monkeypatch.setattr(
        clock.service_time.__class__, "_work", lambda *_: (work - wait, spread)
    )
    assert clock.left(rows) == pytest.approx(max(left, spread / MS), rel=0.01)


def test_a_batch_that_was_ended_tells_when_it_is_slower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch, 8)
    assert not clock.service_time.is_slower(8, 100 * MS)  # nothing is known
    clock.service_time.since = clock.now
    clock.batch(8, 20, waited=100, waiting=80)
    assert not clock.service_time.is_slower(8, 19 * MS)
    assert clock.service_time.is_slower(8, 21 * MS)
