"""Replace models under load, again and again, and check what the clients see.

    python -m bench.swap                       # a minute
    python -m bench.swap --seconds 3600 --clients 64

Clients call two models and check every answer. Meanwhile the models are replaced, in
turn: by a new file, by an additional version, by a load with other options, by files in
the request, and by an invalid file, which no request may notice. It shows the numbers
of requests and swaps, the durations of requests during swaps and without, and the
resources of the processes at the beginning and at the end.

Exit code 1 if a request failed or had a wrong answer, a swap failed, or a replaced
model stayed on its device or its file in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import http.client
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from bench.cases.workload import Job
from bench.drivers.traffic import Event, Traffic, clients
from bench.servers.processes import mapped_files
from bench.servers.server import HOST, Server, gateway
from bench.soak import prepare

MODELS = ("small", "middle")
SETTLE = 20  # answers between two swaps
TIMEOUT = 2.0  # seconds until a replaced model must be gone


@dataclass(slots=True)
class Swaps:
    """Replacements: begin and end of each (monotonic), by kind."""

    spans: list[tuple[str, float, float]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def touches(self, event: Event) -> bool:
        """Return whether something was replaced while the request was under way."""
        return any(
            begun < event.ended and event.sent < done for _, begun, done in self.spans
        )


class Repository:
    """The folder that is served, and the ways to replace a model of it."""

    def __init__(self, root: Path, server: Server) -> None:
        self._root = root
        self._server = server
        self._good = {name: (root / f"{name}.popef").read_bytes() for name in MODELS}
        for name in MODELS:
            (root / f"{name}.popef").unlink()
            self._place(name, 1)

    def _place(self, name: str, version: int, content: bytes | None = None) -> None:
        """Put a file there as operators do: write it elsewhere, then rename it."""
        folder = self._root / name / str(version)
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / ".new"
        new.write_bytes(self._good[name] if content is None else content)
        new.rename(folder / "m.popef")

    def load(self, name: str, **parameters: Any) -> int:
        """Return the status of a load."""
        connection = http.client.HTTPConnection(HOST, self._server.port, timeout=60)
        try:
            body = json.dumps({"parameters": parameters})
            path = f"/v2/repository/models/{name}/load"
            connection.request("POST", path, body)
            response = connection.getresponse()
            response.read()
            return response.status
        finally:
            connection.close()

    def new_file(self, name: str) -> bool:
        self._place(name, 1)
        return self.load(name) == 200

    def new_version(self, name: str) -> bool:
        """Add version 2, then remove it again."""
        self._place(name, 2)
        came = self.load(name)
        shutil.rmtree(self._root / name / "2")
        return (came, self.load(name)) == (200, 200)

    def options(self, name: str) -> bool:
        config = json.dumps({"max_batch_size": 16, "instance_group": [{"count": 2}]})
        return self.load(name, config=config) == 200

    def upload(self, name: str) -> bool:
        content = base64.b64encode(self._good[name]).decode()
        return self.load(name, config="{}", **{"file:1/up.popef": content}) == 200

    def broken(self, name: str) -> bool:
        """Load an invalid file, which the server must refuse, then a valid one."""
        self._place(name, 1, b"not a container")
        refused = self.load(name)
        self._place(name, 1)
        return (refused, self.load(name)) == (400, 200)

    @property
    def ways(self) -> dict[str, Callable[[str], bool]]:
        return {
            "file": self.new_file,
            "version": self.new_version,
            "options": self.options,
            "upload": self.upload,
            "broken": self.broken,
        }


def models_on_devices(server: Server) -> int:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=60)
    try:
        connection.request("GET", "/v1/devices")
        document = json.loads(connection.getresponse().read())
    finally:
        connection.close()
    return sum(device["models"] for device in document["devices"])


def mapped_models(server: Server, expected: int) -> list[str]:
    """Return the model files that the gateway and its devices have mapped, after a
    short wait if they are more than expected.
    """
    end = time.monotonic() + TIMEOUT
    while True:
        found = mapped_files(server.pids(), ".popef")
        if len(found) <= expected or not expected or time.monotonic() > end:
            return found
        time.sleep(0.05)


async def swap(
    repository: Repository, server: Server, jobs: Sequence[Job], count: int, end: float
) -> tuple[Traffic, Swaps]:
    """Replace models in every way, in turn, until `end`, at least once."""
    swaps = Swaps()
    async with clients(server, jobs, count) as traffic:
        await traffic.answers(SETTLE * count)
        rounds = 0
        while rounds == 0 or time.monotonic() < end:
            name = MODELS[rounds % len(MODELS)]
            for kind, way in repository.ways.items():
                begun = time.monotonic()
                good = await asyncio.to_thread(way, name)
                swaps.spans.append((kind, begun, time.monotonic()))
                if not good:
                    swaps.complaints.append(f"{kind} of {name} was not as it should be")
                await traffic.answers(SETTLE)
            rounds += 1
        for name in MODELS:
            await asyncio.to_thread(repository.load, name)
        await traffic.answers(SETTLE)
    return traffic, swaps


def milliseconds(events: Sequence[Event]) -> str:
    if not events:
        return "no requests"
    times = [(event.ended - event.sent) * 1e3 for event in events]
    p50, p99 = np.percentile(times, (50, 99))
    return (
        f"{len(times):8} requests, median {p50:7.2f} ms, p99 {p99:7.2f} ms, "
        f"longest {max(times):7.2f} ms"
    )


def report(traffic: Traffic, swaps: Swaps) -> list[str]:
    """Print the findings; return the faults."""
    statuses = traffic.statuses()
    wrong = swaps.complaints + traffic.complaints()
    failed = statuses.total() - statuses[200]
    if failed:
        wrong.append(f"{failed} requests failed: {dict(statuses)}")
    kinds = list(dict.fromkeys(kind for kind, _, _ in swaps.spans))
    print(f"{len(swaps.spans)} swaps, {statuses.total()} requests, {failed} failed")
    for kind in kinds:
        took = [done - begun for k, begun, done in swaps.spans if k == kind]
        print(f"  {kind:<8} {len(took):6} times, {np.median(took) * 1e3:7.1f} ms")
    busy = [event for event in traffic.events if swaps.touches(event)]
    quiet = [event for event in traffic.events if not swaps.touches(event)]
    print(f"  quiet    {milliseconds(quiet)}")
    print(f"  swapping {milliseconds(busy)}")
    return wrong


def run(seconds: float, count: int, jobs_each: int) -> list[str]:
    """Return the faults; empty if there are none."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = prepare(folder, MODELS, jobs_each)
        root = folder / "models"
        options = ("--cache-dir", str(folder / "cache"))
        with gateway(root, *options) as server:
            server.wait_ready()
            repository = Repository(root, server)
            for model in MODELS:
                assert repository.load(model) == 200
            held, before = models_on_devices(server), server.usage()
            files = mapped_models(server, 0)
            end = time.monotonic() + seconds
            traffic, swaps = asyncio.run(swap(repository, server, jobs, count, end))
            after = server.usage()
            wrong = report(traffic, swaps)
            now = models_on_devices(server)
            print(
                f"  memory {before.pss / 2**20:.0f} MiB, then {after.pss / 2**20:.0f};"
                f" descriptors {before.descriptors}, then {after.descriptors}"
            )
            still = mapped_models(server, len(files))
            if len(still) > len(files):
                wrong.append(f"files of {len(still)} models are mapped: {still}")
            if now != held:
                wrong.append(f"{now} models on the devices, {held} at the beginning")
            if server.stop() != 0:
                wrong.append("the server did not end with 0")
        left = list((folder / "cache").rglob("*.popef"))
        if left:
            wrong.append(f"files left in the cache: {left[:3]}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--jobs", type=int, default=20, help="requests of each model")
    options = parser.parse_args()
    wrong: list[str] = []
    with suppress(KeyboardInterrupt):
        wrong = run(options.seconds, options.clients, options.jobs)
    for line in wrong[:10]:
        print(f"WRONG: {line}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
