"""Counts of one swap: a request to a model that another model must leave memory for.

Two models are there, and memory for one. Requests to them alternate, so each request
evicts a model and loads the other one.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

from bench import calls
from bench.cases.scenarios import SCENARIOS, Mode
from bench.counts.cases import START, compiled_models, variables
from bench.counts.memory import Usage, described, usual
from bench.counts.system_calls import traced
from bench.drivers.load import whole
from bench.servers.interposed import build, environment
from bench.servers.server import Server, gateway

NAMES = ("a", "b")
#: Swaps that are counted.
SWAPS = 16
#: Functions that a device calls once for each model that it loads or unloads.
_DONE = {
    "loads": "engine/worker/connections.py Connections.add_replica",
    "evictions": "engine/worker/connections.py Connections.unload",
}
#: Functions that a device calls to fall asleep. Several messages make a swap, and a
#: device on a busy machine finds some of them without sleeping.
_ASLEEP = (
    "engine/worker/scheduler.py Scheduler._drain",
    "engine/worker/scheduler.py Scheduler._sleep",
    "engine/worker/scheduler.py Scheduler._wait",
    "engine/transport/link.py Submissions.take",
    "engine/transport/ring_buffer.py RingCounters.has_news",
    "engine/transport/ring_buffer.py full_fence",
)


@contextmanager
def _served(environment: dict[str, str]) -> Iterator[Server]:
    options = ("--lazy", "--model-memory", "1")
    with tempfile.TemporaryDirectory() as folder:
        for name in NAMES:
            place = Path(folder, name, "1")
            place.mkdir(parents=True)
            (place / "model.popef").write_bytes(compiled_models()["small"])
            Path(folder, name, "config.toml").write_text("memory = 1\n")
        with gateway(
            Path(folder), *options, devices="cpu:1", environment=environment
        ) as server:
            server.wait_ready(START)
            yield server


def _requests() -> list[bytes]:
    """Return requests to both models in turn."""
    varied = islice(SCENARIOS["S-json"].requests(Mode.VARIED), SWAPS)
    return [
        whole(f"/v2/models/{name}/infer", request.payload)
        for name, request in zip(cycle(NAMES), varied, strict=False)
    ]


def swap_calls() -> dict[str, dict[str, object]]:
    """Count the calls of our functions in the main threads, loads and evictions."""
    with tempfile.TemporaryDirectory() as name:
        counting = Path(name, "counts")
        with _served(calls.counting(counting)) as server:
            found = calls.count_requests(server, _requests(), counting)
    counts = Counter(found.device.counts)
    done = {name: counts[function] for name, function in _DONE.items()}
    for function in _ASLEEP:
        del counts[function]
    return {
        "calls": {"gateway": found.gateway.total, "device": counts.total()},
        "models": {"device": done},
    }


def swap_memory(*, compiled: bool) -> dict[str, Usage]:
    """Count allocations, copies and wake-ups of both processes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = environment(build(folder), folder)
        with _served(variables(compiled=compiled) | own) as server:
            return described(usual(server, _requests(), folder))


def swap_system_calls(*, compiled: bool) -> dict[str, dict[str, int]]:
    """Count the system calls of both main threads, by name."""
    with _served(variables(compiled=compiled)) as server:
        return traced(server, _requests())
