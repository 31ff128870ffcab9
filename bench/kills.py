"""Kill workers and device processes at random under load, then the supervisor.

    python -m bench.kills                       # 2 workers, 30 s
    python -m bench.kills --workers 4 --seconds 120

Clients call models in ONNX and one in Python, and check every answer. Meanwhile `kill
-9` ends a random worker or device process, each time after all have recovered. It shows
the kills, the outcomes of the clients, and the server's counters.

Exit code 1 if an answer was wrong, a kill does not explain an error, or the counters
differ from the clients' counts. The same holds if a process, descriptors or named
memory were left behind.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bench.cases.payloads import json_request
from bench.cases.workload import Job
from bench.chaos import wait_gone
from bench.drivers.traffic import Event, Traffic, clients
from bench.servers.machine import describe
from bench.servers.processes import descriptors, named_memory
from bench.servers.server import HOST, Server, ServerFailed, gateway
from bench.soak import prepare

MODELS = ("small", "middle")
PYTHON = """
class Same:
    inputs = {"x": "FP32[-1,16]"}
    outputs = {"y": "FP32[-1,16]"}
    batching = True

    def __call__(self, x):
        return {"y": x}
"""
CLIENTS = 32
#: Answers of each model between two kills, and their timeout in seconds.
BETWEEN, BACK_WITHIN = 50, 30.0
#: Seconds that gauges and descriptors take to settle.
SETTLE = 10.0


def write_python(folder: Path, seed: int) -> list[Job]:
    """Write a model in Python that returns its input; return its requests."""
    home = folder / "same" / "1"
    home.mkdir(parents=True)
    (home / "model.py").write_text(PYTHON)
    source = np.random.default_rng(seed)
    arrays = [source.random((1 + n % 5, 16), np.float32) for n in range(40)]
    return [Job("same", "json", "", json_request({"x": x}), {"y": x}) for x in arrays]


def ask(server: Server, path: str) -> bytes:
    connection = http.client.HTTPConnection(HOST, server.port, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().read()
    finally:
        connection.close()


def counted(server: Server) -> Counter[str]:
    """Return the answered requests of each model, as the server counts them."""
    stats = json.loads(ask(server, "/v2/models/stats"))["model_stats"]
    return Counter(
        {one["name"]: one["inference_stats"]["success"]["count"] for one in stats}
    )


def disagreements(server: Server, events: Sequence[Event]) -> list[str]:
    """Return the differences between the counts of server and clients.

    No client has the answers that a killed worker counted and did not send.
    """
    found = []
    told = counted(server)
    for model in {event.model for event in events}:
        mine = [event for event in events if event.model == model]
        right = sum(event.status == 200 for event in mine)
        lost = sum(event.status == 0 for event in mine)
        if not right <= told[model] <= right + lost:
            found.append(
                f"{model}: {told[model]} counted, {right} answers and {lost} lost"
            )
    return found


def wait_workers(server: Server, path: str, count: int) -> None:
    """Return when all workers take connections.

    The kernel chooses a worker for each connection, and all ids of one worker begin
    alike. Refused requests do not count as answers of the model at `path`.
    """
    own = _answers(server, "GET", "/v2/health/live")
    found: set[str] = set()
    end = time.monotonic() + BACK_WITHIN
    while len(found) < count:
        if time.monotonic() > end:
            raise AssertionError(f"{len(found)} of {count} workers answer")
        found |= {_answers(server, "POST", path)} - {own}


def _answers(server: Server, method: str, path: str) -> str:
    """Return the process that answers on a new connection."""
    connection = http.client.HTTPConnection(HOST, server.port, timeout=BACK_WITHIN)
    try:
        connection.request(method, path)
        return str(connection.getresponse().headers["x-request-id"]).partition("-")[0]
    except OSError:  # reset: its worker was killed just now
        return _answers(server, method, path)
    finally:
        connection.close()


async def kill_at_random(
    server: Server, jobs: Sequence[Job], seconds: float, seed: int, workers: int
) -> tuple[Traffic, Counter[str]]:
    chance = random.Random(seed)
    killed: Counter[str] = Counter()
    models = {job.model for job in jobs}

    def back(since: float) -> bool:
        answers = Counter(
            e.model for e in traffic.events if e.sent > since and e.status == 200
        )
        return all(answers[model] >= BETWEEN for model in models)

    async with clients(server, jobs, CLIENTS) as traffic:
        await traffic.until(lambda _: back(0.0), BACK_WITHIN)
        processes = len(server.pids())
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            kind = chance.choice(["worker", "device"])
            pids = server.worker_pids() if kind == "worker" else server.device_pids()
            os.kill(chance.choice(pids), signal.SIGKILL)
            killed[kind] += 1
            since = time.monotonic()
            await asyncio.to_thread(wait_workers, server, jobs[0].path, workers)
            await traffic.until(lambda _, since=since: back(since), BACK_WITHIN)  # type: ignore[misc]
            await traffic.until(lambda _: len(server.pids()) == processes, BACK_WITHIN)
            assert not named_memory(server.pids())
    return traffic, killed


def check(server: Server, traffic: Traffic) -> list[str]:
    """Return the faults of the traffic."""
    # A killed worker closes its connections, perhaps in the middle of an answer.
    found = [c for c in traffic.complaints() if not c.startswith("cut")]
    strange = set(traffic.statuses()) - {200, 503, 0}
    if strange:
        found.append(f"statuses {dict(traffic.statuses())}")
    return found + disagreements(server, traffic.events)


def run(folder: Path, jobs: Sequence[Job], options: argparse.Namespace) -> list[str]:
    workers = str(options.workers)
    flags = "--workers", workers, "--allow-python"
    with gateway(folder, *flags, devices="cpu:2") as server:
        server.wait_ready()
        # Lasting descriptors are opened in the first seconds.
        warm, _ = asyncio.run(
            kill_at_random(server, jobs, 0.0, options.seed, options.workers)
        )
        before = descriptors(server.pid)
        traffic, killed = asyncio.run(
            kill_at_random(server, jobs, options.seconds, options.seed, options.workers)
        )
        traffic.events[:0] = warm.events
        found = check(server, traffic)
        end = time.monotonic() + SETTLE
        while descriptors(server.pid) > before and time.monotonic() < end:
            time.sleep(0.05)
        if descriptors(server.pid) > before:
            found.append(f"descriptors grew from {before}: {descriptors(server.pid)}")
        pids = server.pids()
        server.kill()
        gone = wait_gone(pids[1:])
        print(
            f"{workers} workers: killed {dict(killed)}; clients saw "
            f"{dict(traffic.statuses())} and waited "
            f"{max(event.ended - event.sent for event in traffic.events):.1f} s at "
            f"most; all {len(pids) - 1} processes gone "
            f"{gone * 1e3:.0f} ms after the supervisor"
        )
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(describe())
    with tempfile.TemporaryDirectory() as name:
        jobs = prepare(Path(name), MODELS, 40)
        folder = Path(name, "models")
        try:
            found = run(folder, [*jobs, *write_python(folder, options.seed)], options)
        except (AssertionError, ServerFailed) as error:
            found = [f"{type(error).__name__}: {error}"]
    for complaint in found[:20]:
        print(f"FAIL: {complaint}")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
