"""Send twice the load that a model can serve, and check deadlines and Retry-After.

    python -m bench.overload                   # about a minute
    python -m bench.overload --seconds 3 --tries 5

Three parts for each of two models (one request at a time, and batched), over HTTP:

1. capacity: requests per second of clients that each wait for their answers;
2. overload: twice as many requests, at random times, each with a deadline of a few
   batches. It shows how many were accepted and in time, accepted and late, or refused,
   and the longest wait of each;
3. Retry-After: the queue is filled, and a request that cannot be served in time is sent
   again until it is accepted. That time is compared with the Retry-After of the first
   refusal.

Exit code 1 if less than 99 of 100 accepted requests were in time, a refusal had no
Retry-After, a client waited longer than the deadline, or more than one Retry-After in
ten was wrong by more than a factor of two.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.cases.models import looping
from bench.cases.payloads import Payload, binary_request
from bench.drivers.client import Answer, Client
from bench.servers.server import HOST, Server, compile_models, gateway

#: About 50 ms a batch: much longer than the waits for a processor on a busy machine.
WIDTH, ROUNDS = 512, 1000
PROBE_EVERY = 0.005  # seconds
CLIENTS = 16
#: The deadline of a request, as a multiple of the time of a full batch.
DEADLINE_BATCHES = 10
IN_TIME = 0.99
RIGHT = 0.9
FACTOR = 2.0
CONFIGS = {"alone": "batching = false", "batched": "max_batch_size = 8"}


class Connections:
    """Pool of as many connections as are needed at the same time; kept open."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[Client] = []

    @asynccontextmanager
    async def one(self) -> Any:
        client = self._free.pop() if self._free else Client(HOST, self._port)
        try:
            yield client
        finally:
            self._free.append(client)

    async def close(self) -> None:
        for client in self._free:
            await client.close()


@dataclass(slots=True)
class Overload:
    """Outcomes of the overload; times in seconds."""

    deadline: float
    taken: list[float] = field(default_factory=list)
    late: list[float] = field(default_factory=list)
    refused: list[float] = field(default_factory=list)
    other: list[str] = field(default_factory=list)
    unannounced: int = 0

    def count(self, answer: Answer, seconds: float) -> None:
        if answer.status == 200:
            (self.taken if seconds <= self.deadline else self.late).append(seconds)
        elif answer.status == 504:
            self.late.append(seconds)
        elif answer.status == 429:
            self.refused.append(seconds)
            self.unannounced += retry_after(answer) is None
        else:
            self.other.append(f"{answer.status} {answer.body[:200]!r}")

    @property
    def in_time(self) -> float:
        """Return the share of accepted requests that were in time."""
        taken = len(self.taken) + len(self.late)
        return len(self.taken) / taken if taken else 0.0

    def complaints(self, slack: float) -> Iterator[str]:
        """Yield the wrong predictions; `slack` seconds are for the network and this
        process.
        """
        if self.other:
            yield f"{len(self.other)} other answers, the first: {self.other[0]}"
        if not self.taken or not self.refused:
            yield f"{len(self.taken)} were taken and {len(self.refused)} refused"
        if self.unannounced:
            yield f"{self.unannounced} refusals had no Retry-After"
        if self.in_time < IN_TIME:
            yield f"only {self.in_time:.1%} of those taken were in time"
        longest = max([*self.taken, *self.late, *self.refused], default=0.0)
        if longest > self.deadline + slack:
            yield f"a request waited {longest:.3f} s, the deadline was {self.deadline}"

    def __str__(self) -> str:
        return (
            f"{len(self.taken)} in time ({self.in_time:.1%} of those taken), "
            f"{len(self.late)} late, {len(self.refused)} refused; p99 of those taken "
            f"{percentile(self.taken, 99):.3f} s of {self.deadline:.3f}, refused "
            f"within {percentile(self.refused, 99):.3f} s (p99)"
        )


def retry_after(answer: Answer) -> float | None:
    """Return Retry-After in seconds; None if headers are missing or contradict each
    other.
    """
    try:
        seconds = int(answer.headers["retry-after"])
        exact = int(answer.headers["retry-after-ms"]) / 1000
    except (KeyError, ValueError):
        return None
    return exact if seconds - 1 < exact <= seconds or exact < seconds == 1 else None


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else 0.0


def payload(timeout: float = 0.0) -> Payload:
    made = binary_request({"x": np.ones((1, WIDTH), np.float32)})
    if not timeout:
        return made
    return Payload({**made.headers, "X-Request-Timeout": f"{timeout:.6f}"}, made.body)


async def measure_capacity(server: Server, path: str, seconds: float) -> float:
    """Return requests per second of clients that each wait for their answers."""
    count = 0
    end = time.monotonic() + seconds

    async def ask() -> None:
        nonlocal count
        async with Client(HOST, server.port) as client:
            while time.monotonic() < end:
                answer = await client.post(path, payload())
                assert answer.status == 200, answer
                count += 1

    await asyncio.gather(*(ask() for _ in range(CLIENTS)))
    return count / seconds


async def overload(
    server: Server, path: str, rate: float, deadline: float, seconds: float
) -> Overload:
    """Send requests at random times, `rate` per second on average."""
    found = Overload(deadline)
    connections = Connections(server.port)
    request = payload(deadline)
    chance = random.Random(1)

    async def ask() -> None:
        async with connections.one() as client:
            began = time.monotonic()
            answer = await client.post(path, request)
            found.count(answer, time.monotonic() - began)

    end = due = time.monotonic()
    end += seconds
    async with asyncio.TaskGroup() as group:
        while due < end:
            due += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            group.create_task(ask())
    await connections.close()
    return found


async def check_retry_after(
    server: Server, path: str, waiting: int, allowed: float
) -> tuple[float, float] | None:
    """Return (announced, real) seconds until the gateway accepts a request with a
    deadline of `allowed` seconds; None if it accepted the request at once.
    """
    connections = Connections(server.port)
    announced = real = 0.0
    async with asyncio.TaskGroup() as group, connections.one() as probe:

        async def wait() -> None:
            async with connections.one() as client:
                await client.post(path, payload())

        waiters = [group.create_task(wait()) for _ in range(waiting)]
        before, now = -1, 0
        while before < now < waiting or not now:  # until the queue is full, or shrinks
            before, now = now, await in_flight(probe)
            if all(waiter.done() for waiter in waiters):
                return None
        began = time.monotonic()
        while True:
            asked = time.monotonic()
            answer = await probe.post(path, payload(allowed))
            if answer.status != 429:
                real = asked - began
                break
            announced = announced or retry_after(answer) or 0.0
            await asyncio.sleep(PROBE_EVERY)
    await connections.close()
    return (announced, real) if announced else None


async def in_flight(client: Client) -> int:
    (device,) = json.loads((await client.get("/v1/devices")).body)["devices"]
    return int(device["in_flight"])


async def run_model(server: Server, name: str, seconds: float, tries: int) -> list[str]:
    """Run all parts for one model; return the wrong predictions."""
    path = f"/v1/models/{name}/infer"
    rows = 8 if name == "batched" else 1
    await measure_capacity(server, path, min(1.0, seconds))
    capacity = await measure_capacity(server, path, min(3.0, seconds))
    batch = rows / capacity
    deadline = DEADLINE_BATCHES * batch
    print(f"{name}: {capacity:.0f} a second, deadline {deadline:.3f} s")
    found = await overload(server, path, 2 * capacity, deadline, seconds)
    done = len(found.taken) / seconds / capacity
    print(f"  at twice that: {found}; {done:.0%} of the capacity")
    complaints = list(found.complaints(slack=0.25))
    ratios = []
    for number in range(tries):
        waiting = int((10 + 5 * (number % 5)) * rows)
        measured = await check_retry_after(server, path, waiting, 3 * batch)
        if measured is not None:
            ratios.append(measured[0] / max(measured[1], 0.001))
    right = [ratio for ratio in ratios if 1 / FACTOR <= ratio <= FACTOR]
    if ratios:
        print(
            f"  Retry-After against the truth, {len(ratios)} times: median "
            f"{median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
        )
    if tries and (not ratios or len(right) < RIGHT * len(ratios)):
        complaints.append(f"Retry-After was right {len(right)} times of {len(ratios)}")
    return [f"{name}: {complaint}" for complaint in complaints]


def prepare(
    folder: Path, rounds: int = ROUNDS, names: Sequence[str] = tuple(CONFIGS)
) -> Path:
    """Return a repository of the models; each computes `rounds` matrix products."""
    models = folder / "models"
    source = looping(WIDTH, rounds).SerializeToString()
    for name in names:
        (folder / f"{name}.onnx").write_bytes(source)
        done = compile_models([folder / f"{name}.onnx"], models)
        assert done.returncode == 0, done.stdout + done.stderr
        (models / name).mkdir()
        (models / name / "config.toml").write_text(CONFIGS[name] + "\n")
    return models


async def run(server: Server, seconds: float, tries: int) -> list[str]:
    """Run both models, one after the other; return the wrong predictions."""
    found = []
    for name in CONFIGS:
        found += await run_model(server, name, seconds, tries)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0, help="of overload")
    parser.add_argument("--tries", type=int, default=20, help="of Retry-After")
    options = parser.parse_args()
    os.environ.setdefault("POPGATE_POOL", f"overload-{os.getpid()}")
    with tempfile.TemporaryDirectory() as folder:
        models = prepare(Path(folder))
        with gateway(models, devices="cpu:1") as server:
            server.wait_ready()
            complaints = asyncio.run(run(server, options.seconds, options.tries))
    for complaint in complaints:
        print(f"NOT AS PREDICTED: {complaint}")
    return 1 if complaints else 0


if __name__ == "__main__":
    sys.exit(main())
