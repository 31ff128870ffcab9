"""The search: vary one setting after the other, each as long as it helps.

It knows no server; a `Trial` measures a setting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

#: Factor by which another setting must be better; a smaller gain is noise.
BETTER = 1.03
#: Fruitless steps after which a group of trials ends.
FRUITLESS = 2
MOST_IN_FLIGHT = 512


@dataclass(frozen=True, slots=True)
class Setting:
    """Setting of a trial.

    `devices` is the server's. A graph gets its share of the cores as threads, so more
    devices mean fewer threads each. `max_queue_delay`: seconds.
    """

    devices: int
    instances: int
    max_batch_size: int
    max_queue_delay: float


@dataclass(frozen=True, slots=True)
class LoadPoint:
    """A load and its result: `latency` in seconds, of the chosen quantile."""

    in_flight: int
    rate: float
    latency: float


@dataclass(frozen=True, slots=True)
class Reached:
    """The most requests per second that a setting answered within the bound, and the
    number in flight. `fits` is False if even a single request at a time took longer.
    """

    setting: Setting
    best: LoadPoint
    fits: bool = True

    @property
    def rate(self) -> float:
        return self.best.rate if self.fits else 0.0


@dataclass(frozen=True, slots=True)
class Found:
    """Result of the first setting, and the best of all; the same if none was better."""

    first: Reached
    best: Reached


class OutOfTime(Exception):
    """Raised by a trial when the time is over."""


#: Measures a setting, starting with so many requests in flight; returns None if the
#: model cannot be served with it.
Trial: TypeAlias = Callable[[Setting, int], Reached | None]


def climb(
    setting: Setting, measure: Callable[[int], LoadPoint], bound: float, first: int = 1
) -> Reached:
    """Double the requests in flight from `first` while that helps and the latency stays
    within `bound`; halve them if the first number was too large.
    """

    def seen(in_flight: int) -> LoadPoint:
        # Other work on the machine can spoil one measurement.
        point = measure(in_flight)
        if point.latency > bound:
            point = min(point, measure(in_flight), key=lambda one: one.latency)
        return point

    point = seen(first)
    down = point.latency > bound
    while point.latency > bound and point.in_flight > 1:
        point = seen(point.in_flight // 2)
    if point.latency > bound:
        return Reached(setting, point, fits=False)
    best, fruitless = point, 0
    while not down and fruitless < FRUITLESS and point.in_flight < MOST_IN_FLIGHT:
        point = seen(point.in_flight * 2)
        if point.latency > bound:
            break
        fruitless = 0 if point.rate > best.rate * BETTER else fruitless + 1
        best = max(best, point, key=lambda one: one.rate)
    return Reached(setting, best)


def neighbours(
    setting: Setting, *, batches: bool, devices: Sequence[int], bound: float
) -> Iterator[Iterable[Callable[[Setting], Setting]]]:
    """Yield the next trials: groups of changes to the best setting so far, in order.

    `devices` are the numbers of devices to try. `batches` is true if rows of requests
    run together. `bound` is in seconds.
    """
    for count in devices:
        # A program with one thread leaves its core idle between two requests.
        yield [_devices(count, per) for per in (1, 2, 4)]
    if not batches:
        return
    size = setting.max_batch_size
    yield [_batch(size * 2**n) for n in (1, 2, 3)]
    yield [_batch(size // 2**n) for n in (1, 2, 3, 4, 5, 6) if size // 2**n]
    yield [_delay(bound * share) for share in (0.02, 0.05, 0.1, 0.25)]
    if setting.max_queue_delay:
        yield [_delay(0.0)]


def _devices(count: int, per: int) -> Callable[[Setting], Setting]:
    return lambda old: replace(old, devices=count, instances=count * per)


def _batch(size: int) -> Callable[[Setting], Setting]:
    return lambda old: replace(old, max_batch_size=size)


def _delay(seconds: float) -> Callable[[Setting], Setting]:
    # Round to two digits, as a person would.
    return lambda old: replace(old, max_queue_delay=float(f"{seconds:.1g}"))


def search(
    start: Setting, trial: Trial, *, batches: bool, devices: Sequence[int], bound: float
) -> Found:
    """Return the best setting found.

    Within a group the search continues until `FRUITLESS` values in turn have been no
    better. Raises `OutOfTime` if time ends before the first setting was tried.
    """
    first = best = trial(start, 1)
    if first is None or best is None:
        raise ValueError("the model cannot be served with its current settings")
    tried = {start}
    for group in neighbours(start, batches=batches, devices=devices, bound=bound):
        base, fruitless = best.setting, 0
        for change in group:
            setting = change(base)
            if setting in tried:
                continue
            tried.add(setting)
            try:
                reached = trial(setting, max(1, best.best.in_flight // 4))
            except OutOfTime:
                return Found(first, best)
            if reached is None:
                break
            if reached.rate > best.rate * BETTER:
                best, fruitless = reached, 0
            else:
                fruitless += 1
            if fruitless == FRUITLESS:
                break
    return Found(first, best)
