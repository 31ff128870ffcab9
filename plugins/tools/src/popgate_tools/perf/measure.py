"""Steps of a measurement: warm-up, windows until they agree, the server's
statistics.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import repeat
from typing import Any, Literal, NamedTuple, TypeAlias

import uvloop

from popgate_client import Client, ClientError, ConnectionFailed
from popgate_tools.latency import quantile
from popgate_tools.perf.load import RunRecord, closed_loop, open_loop

Arrivals: TypeAlias = Literal["constant", "poisson"]
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
#: Number of windows that must agree.
AGREEING = 3
MOST_WINDOWS = 10
PHASES = ("queue", "compute_input", "compute_infer", "compute_output")


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """A load: a number of connections that are always busy, or a number of requests
    per second over a limited number of connections.
    """

    connections: int
    rate: float = 0.0
    arrivals: Arrivals = "constant"

    def __str__(self) -> str:
        if not self.rate:
            return f"{self.connections} in flight"
        return f"{self.rate:g}/s {self.arrivals}"


class Target(NamedTuple):
    """The measured server: its client, and the TLS context of further connections."""

    client: Client
    tls: ssl.SSLContext | None = None


@dataclass(frozen=True, slots=True)
class Measurement:
    """Result of a step, in milliseconds; `server` are the server's own for each
    request.

    `stable`: the last windows agreed. `cpu`: share of a core that the generator used.
    `first_failure`: why the first failed request failed.
    """

    load: LoadLevel
    requests: int
    seconds: float
    rate: float
    sent_rate: float
    quantiles: Mapping[str, float]
    mean: float
    longest: float
    failed: int
    late: int
    stable: bool
    windows: int
    cpu: float
    server: Mapping[str, float]
    first_failure: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def gaps(rate: float, arrivals: Arrivals, seed: int) -> Iterator[float]:
    """Yield seconds between requests."""
    if arrivals == "constant":
        return repeat(1 / rate)
    source = random.Random(seed)
    return iter(lambda: source.expovariate(rate), None)


async def run_window(
    target: Target,
    requests: Sequence[bytes],
    load: LoadLevel,
    seconds: float,
    seed: int = 0,
) -> RunRecord:
    """Return one window under a load."""
    address, tls, count = target.client.address, target.tls, load.connections
    if not load.rate:
        return await closed_loop(address, requests, count, seconds, tls)
    times = gaps(load.rate, load.arrivals, seed)
    return await open_loop(address, requests, times, count, seconds, tls)


def run_step(
    target: Target,
    name: str,
    requests: Sequence[bytes],
    load: LoadLevel,
    seconds: float,
    warm_up: float,
    within: float,
    most_windows: int = MOST_WINDOWS,
    on_window: Callable[[int, float], None] = lambda number, rate: None,
) -> Measurement:
    """Measure windows of so many seconds under a load, until three agree.

    `on_window` is called after each window with its number and its requests per second.
    Raises OSError and `ConnectionFailed` without a server, KeyboardInterrupt for
    Control-C.
    """
    client = target.client

    async def windows() -> Measurement:
        if warm_up:
            await run_window(target, requests, load, warm_up)
        runs: list[RunRecord] = []
        said = [_statistics(client, name)]
        while len(runs) < most_windows and not is_stable(runs, within):
            runs.append(await run_window(target, requests, load, seconds, len(runs)))
            said.append(_statistics(client, name))
            on_window(len(runs), runs[-1].rate)
        stable = is_stable(runs, within)
        server = phases(said[-min(AGREEING, len(runs)) - 1], said[-1])
        return measured(load, runs, stable, server)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(windows())


def _statistics(client: Client, name: str) -> Any:
    try:
        return client.statistics(name)
    except ConnectionFailed:
        raise
    except ClientError:  # a server without them
        return None


def is_stable(runs: Sequence[RunRecord], within: float) -> bool:
    """Return whether the rates and medians of the last windows lie close together."""
    last = runs[-AGREEING:]
    if len(last) < AGREEING or not all(run.count for run in last):
        return False
    for values in (
        [run.rate for run in last],
        [quantile(sorted(run.latencies), 0.5) for run in last],
    ):
        middle = sorted(values)[len(values) // 2]
        if max(abs(value - middle) for value in values) > within * middle:
            return False
    return True


def measured(
    load: LoadLevel,
    runs: Sequence[RunRecord],
    stable: bool,
    server: Mapping[str, float],
) -> Measurement:
    """Return the last windows as one."""
    last = runs[-AGREEING:]
    seconds = sum(run.seconds for run in last)
    ordered = sorted(value for run in last for value in run.latencies)
    return Measurement(
        load,
        len(ordered),
        seconds,
        len(ordered) / seconds,
        sum(run.sent for run in last) / seconds,
        {f"p{100 * q:g}": 1e3 * quantile(ordered, q) for q in QUANTILES},
        1e3 * sum(ordered) / len(ordered) if ordered else 0.0,
        1e3 * ordered[-1] if ordered else 0.0,
        sum(run.not_ok + run.broken for run in last),
        sum(run.late for run in last),
        stable,
        len(runs),
        sum(run.cpu for run in last) / len(last),
        server,
        next((run.first_failure for run in last if run.first_failure), ""),
    )


def phases(before: Any, after: Any) -> dict[str, float]:
    """Return the milliseconds per request of each phase, and the `count` of answered
    requests, from the difference of two statistics of a model. Return {} if the server
    has none.
    """

    def total(document: Any, name: str, key: str) -> int:
        return sum(
            int(model["inference_stats"][name][key])
            for model in document["model_stats"]
        )

    try:
        count = total(after, "success", "count") - total(before, "success", "count")
        if not count:
            return {}
        found = {
            name: (total(after, name, "ns") - total(before, name, "ns")) / count / 1e6
            for name in ("success", *PHASES)
        }
    except (KeyError, TypeError, ValueError):
        return {}
    return {"request": found.pop("success"), **found, "count": count}
