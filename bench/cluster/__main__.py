"""Measure the effect of a lost node on a service on Ray, and the cost of its proxy.

    python -m bench.cluster                # a node killed, and one that hangs
    python -m bench.cluster --defaults     # with Ray's own settings for lost nodes
    python -m bench.cluster --price        # the proxy beside a PopGate without one

Needs popgate[ray]. Two nodes of one replica each, both on this machine. Half of the
clients retry failed requests, as `Client(idempotent=True)` does; the others do not. It
shows the outcomes of each kind and the longest time without any answer. It also shows
the seconds from the loss until Ray counts the replica as gone, and until there are two
again.

Exit code 1 if a client that retries failed, or a process was left.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import numpy as np

from bench.cases.models import write_models
from bench.cases.scenarios import SCENARIOS, Mode
from bench.cluster.ray_cluster import RayCluster, devices_of, ray_cluster
from bench.drivers.load import drive, has_wrk, prepared
from bench.servers.machine import describe
from bench.servers.processes import alive, cpu_seconds, usage
from bench.servers.server import compile_models, gateway
from popgate import Client

CLIENTS = 4
#: Seconds of load before the loss, and the timeout of every wait.
BEFORE, PATIENCE = 3.0, 120.0
REPLICAS = {"num_replicas": 2, "ray_actor_options": {"num_cpus": 1}}


class Clients:
    """Threads that send requests until `end`; half of them retry."""

    def __init__(self, url: str) -> None:
        self.answered: list[float] = []
        self.failed: dict[bool, list[str]] = {True: [], False: []}
        self._url = url
        self._ends = threading.Event()
        again = (True, False) * (CLIENTS // 2)
        self._threads = [threading.Thread(target=self._ask, args=(a,)) for a in again]
        for thread in self._threads:
            thread.start()

    def _ask(self, again: bool) -> None:
        value = np.ones((1, 16), np.float32)
        retries = 10 if again else 0
        with Client(self._url, retries=retries, idempotent=again) as client:
            while not self._ends.is_set():
                try:
                    client.infer("small", value)
                except Exception as e:
                    self.failed[again].append(f"{e}")
                else:
                    self.answered.append(time.monotonic())

    def end(self) -> None:
        self._ends.set()
        for thread in self._threads:
            thread.join()

    def longest_wait(self, since: float) -> float:
        """Return the longest time in seconds without any answer."""
        times = sorted(t for t in self.answered if t > since - 1)
        return max(b - a for a, b in pairwise(times))


def wait(condition: Callable[[], object]) -> float:
    """Wait for the condition; return the time at which it became true."""
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            sys.exit("it took too long")
        time.sleep(0.02)
    return time.monotonic()


def lose(root: Path, how: str, settings: dict[str, Any] | None) -> int:
    """Lose one node of two; return the number of faults."""
    with ExitStack() as stack:
        cluster = stack.enter_context(ray_cluster(settings))
        cluster.run({"model_repository": str(root)}, **REPLICAS)
        node = cluster.nodes[-1]
        found = cluster.replicas()
        lost = {t for t, r in found.items() if r["node_id"] == node.node_id}
        pids = {r["pid"] for t, r in found.items() if t in lost}
        pids |= {device for pid in pids for device in devices_of(pid)}
        clients = Clients(cluster.url)
        stack.callback(clients.end)
        time.sleep(BEFORE)
        at = time.monotonic()
        if how == "killed":
            cluster.kill(node)
        else:
            stack.enter_context(cluster.hung(node))
        missed = wait(lambda: not lost & set(cluster.replicas())) - at
        whole = wait(lambda: len(set(cluster.replicas()) - lost) == len(found)) - at
        time.sleep(1)
        clients.end()
        (new,) = set(cluster.replicas()) - set(found)
        pid = cluster.replicas()[new]["pid"]
        pss = [usage(p).pss >> 20 for p in ([pid], list(devices_of(pid)))]
        cpu = cpu_seconds([pid])
    left = [pid for pid in pids if alive(pid)]
    print(
        f"{how:>8}: missed after {missed:.1f} s, two replicas after {whole:.1f} s; "
        f"of {len(clients.answered)} requests {len(clients.failed[True])} failed that "
        f"were sent again, {len(clients.failed[False])} that were not; longest time "
        f"without an answer {clients.longest_wait(at):.1f} s; new replica {cpu:.1f} s "
        f"of processor, {pss[0]} MB and {pss[1]} MB for its device; {len(left)} "
        f"processes left; load {os.getloadavg()[0]:.1f}",
        flush=True,
    )
    return len(clients.failed[True]) + len(left)


def price(root: Path, rounds: int) -> None:
    """Print requests per second through Ray's proxy and without it, in turns."""
    scenario = SCENARIOS["S-json"]
    payloads = [request.payload for request in scenario.requests(Mode.VARIED)]
    with (
        ray_cluster() as cluster,
        gateway(root, devices="cpu:1") as beside,
        prepared(scenario.path, payloads) as requests,
    ):
        cluster.run({"model_repository": str(root)}, **REPLICAS)
        beside.wait_ready()
        for connections in (1, 16):
            rates: dict[str, list[float]] = {cluster.url: [], beside.url: []}
            for url in [*rates] * rounds:
                load = drive(url, requests, connections, 3.0, wrk=has_wrk())
                if load.not_ok or load.broken:
                    sys.exit(f"{load.not_ok + load.broken} requests were not ok")
                rates[url].append(load.rate)
            proxy, plain = (median(each) for each in rates.values())
            print(
                f"{connections:>3} connections: {proxy:.0f} requests a second through "
                f"the proxy, {plain:.0f} beside it, {plain / proxy:.0f} times as many; "
                f"load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        samples(cluster)


def samples(cluster: RayCluster) -> None:
    text = httpx.get(f"{cluster.url}/metrics", trust_env=False).text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    of_model = sum('model="small"' in line for line in lines)
    print(f"samples: {of_model} of a model, {len(lines) - of_model} besides")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--price", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(describe(), f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        paths = write_models(Path(folder, "onnx"), "small")
        root = Path(folder, "models")
        compile_models(list(paths.values()), root)
        if options.price:
            price(root, options.rounds)
            return 0
        settings: dict[str, Any] | None = {} if options.defaults else None
        faults = [lose(root, how, settings) for how in ("killed", "hangs")]
    return int(any(faults))


if __name__ == "__main__":
    sys.exit(main())
