"""Trials of settings on a server, and their report."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence

from engine import usable_cores
from popgate_client import Client, InvalidRequest
from popgate_tools.perf.measure import LoadLevel, Target, run_step
from popgate_tools.perf.requests import prepared_requests
from popgate_tools.tune.search import (
    Found,
    LoadPoint,
    OutOfTime,
    Reached,
    Setting,
    climb,
    search,
)
from popgate_tools.tune.server import Tuned

#: Warm-up of each load, as a share of its measured time.
WARM_UP = 0.2
#: Number of final comparisons between the best setting and the first.
ROUNDS = 2
#: Cores that the gateway's own process keeps.
_RESERVED = 1
#: Keys of config.toml. Only the first applies to models whose rows do not run together.
KEYS = ("instances", "max_batch_size", "max_queue_delay")
HEAD = (
    f"{'devices':>7}{'threads':>8}{'instances':>10}{'batch':>7}{'delay':>10}"
    f"{'in flight':>11}{'requests/s':>12}{'p99':>11}"
)


class StatusLine:
    """One line of a terminal that is overwritten."""

    def show(self, text: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        self.show("")


class Trials:
    """Measures the throughput of a model with a setting, within `bound` seconds.
    `count` is the number of settings tried. `seconds` is the time of one load, `budget`
    the time of the search after the model is loaded. `tell` receives the lines of the
    table.
    """

    def __init__(
        self,
        server: Tuned,
        name: str,
        bound: float,
        seconds: float,
        budget: float,
        tell: Callable[[str], None],
    ) -> None:
        self.count = 0
        self._tell = tell
        self._server, self._name = server, name
        self._bound, self._seconds = bound, seconds
        self._budget, self._deadline = budget, float("inf")
        self._status = StatusLine()
        self._requests: Sequence[bytes] = []
        self._batches = False

    def prepare(
        self, inputs: Sequence[str] | None, shapes: Sequence[str] | None, rows: int
    ) -> Setting:
        """Return the setting that the model has."""
        self._status.show(f"{self._name}: starting …")
        client = self._server.client(1)
        self._requests = prepared_requests(client, self._name, inputs, shapes, rows)
        config = client.config(self._name)
        (group, *_) = config.get("instance_group") or [{"count": 1}]
        batching = config.get("dynamic_batching")
        self._batches = batching is not None and config["max_batch_size"] > 0
        delay = (batching or {}).get("max_queue_delay_microseconds", 0) / 1e6
        self._deadline = time.monotonic() + self._budget
        self._tell(HEAD)
        most = int(config["max_batch_size"]) if self._batches else 0
        return Setting(1, int(group["count"]), most, delay)

    def search(self, start: Setting, devices: Sequence[int]) -> Found:
        """Return the best result that the search finds in time, with these numbers of
        devices.
        """
        return search(
            start, self.reach, batches=self._batches, devices=devices, bound=self._bound
        )

    def values(self, setting: Setting) -> dict[str, int | float]:
        """Return the keys of the setting for config.toml."""
        keys = KEYS if self._batches else KEYS[:1]
        return {key: getattr(setting, key) for key in keys}

    def changes(self, found: Found) -> dict[str, int | float]:
        """Return the keys to change in config.toml."""
        before = self.values(found.first.setting)
        after = self.values(found.best.setting)
        return {key: value for key, value in after.items() if value != before[key]}

    def reach(self, setting: Setting, in_flight: int) -> Reached | None:
        """Return a `search.Trial`. Prints its result."""
        self.count += 1
        client = self._loaded(setting)
        if client is None:
            return None
        found = climb(
            setting, lambda count: self._point(client, count), self._bound, in_flight
        )
        self._status.clear()
        self._tell(row(found))
        return found

    def gain(self, found: Found) -> float:
        """Return the throughput of the best setting relative to the first. Both are
        measured again, in turns.
        """
        rates: dict[Setting, float] = {}
        self._deadline = float("inf")  # few loads follow
        pair = (found.best, found.first)
        for number in range(ROUNDS):
            # Alternate the order, because another number of devices needs another
            # server.
            for each in pair[:: -1 if number % 2 else 1]:
                client = self._loaded(each.setting)
                assert client is not None  # the server ran with it before
                point = self._point(client, each.best.in_flight)
                rates[each.setting] = max(point.rate, rates.get(each.setting, 0.0))
        self._status.clear()
        return rates[found.best.setting] / max(rates[found.first.setting], 1e-9)

    def close(self) -> None:
        self._status.clear()

    def _loaded(self, setting: Setting) -> Client | None:
        self._left()
        client = self._server.client(setting.devices)
        try:
            client.load(self._name, config=self.values(setting))
        except InvalidRequest as e:
            self._status.clear()
            self._tell(f"{_shown(setting)}  {e}")
            return None
        return client

    def _left(self) -> float:
        """Return the seconds left. The first setting is tried without a limit."""
        left = self._deadline - time.monotonic()
        if left <= 0 and self.count > 1:
            raise OutOfTime
        return max(left, 0.0)

    def _point(self, client: Client, in_flight: int) -> LoadPoint:
        left = self._left()
        much = f"{left:.0f} s left" if left < 1e9 else "once more"
        self._status.show(f"{self._name}: {in_flight} in flight, {much}")
        # One window is enough: the next load must show an improvement anyway.
        step = run_step(
            Target(client, self._server.tls), self._name, self._requests,
            LoadLevel(in_flight), self._seconds,
            self._seconds * WARM_UP, 0.0, most_windows=1,
        )  # fmt: skip
        if step.failed or not step.requests:  # for example 429: the load is too high
            return LoadPoint(in_flight, 0.0, float("inf"))
        return LoadPoint(in_flight, step.rate, step.quantiles["p99"] / 1e3)


def row(reached: Reached) -> str:
    """Return a setting and its results, as a line below `HEAD`."""
    best = reached.best
    much = "" if reached.fits else "  too slow"
    return (
        f"{_shown(reached.setting)}{best.in_flight:>11}{best.rate:>12.1f}"
        f"{best.latency * 1e3:>8.2f} ms{much}"
    )


def _shown(setting: Setting) -> str:
    threads = max(1, (usable_cores() - _RESERVED) // setting.devices)
    batch = setting.max_batch_size or "-"
    delay = f"{setting.max_queue_delay * 1e3:.2f} ms"
    return (
        f"{setting.devices:>7}{threads:>8}{setting.instances:>10}{batch:>7}{delay:>10}"
    )
