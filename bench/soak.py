"""64 clients, mixed models and encodings: every answer checked, nothing may grow.

    python -m bench.soak                       # 60 s
    python -m bench.soak --seconds 5 --clients 16

Each answer is compared with ONNX Runtime's for the very inputs of its request. After a
warm-up, memory and file descriptors of the gateway and of its device processes are read
again and again while the clients stay connected. Exit code 1 if an answer was wrong or
not a 200, or memory or descriptors grew.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from bench.cases.workload import Job, endless, make_jobs
from bench.drivers.client import Client
from bench.servers.processes import Usage
from bench.servers.server import HOST, Server, compile_models, gateway

MODELS = ("small", "middle", "mixing", "words", "large")
#: Growth of memory after warm-up that counts as noise of the allocator.
MEMORY_NOISE = 8 * 2**20
MEMORY_SHARE = 0.03


@dataclass(slots=True)
class Soak:
    """Counts so far; filled by the clients and by the watcher."""

    over: bool = False
    answered: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    usage: list[tuple[float, Usage]] = field(default_factory=list)

    def complaints(self) -> list[str]:
        """Return all faults; empty if all was well."""
        found = self.wrong[:20]
        if not self.answered:
            found.append("no request was answered")
        if self.usage:
            found += growth([usage for _, usage in self.usage])
        return found


def growth(usages: Sequence[Usage]) -> list[str]:
    """Return the resources that grew between the first and the second half, beyond
    noise.
    """
    half = len(usages) // 2
    if not half:
        return []
    before, after = usages[:half], usages[half:]
    found = []
    # Short use of descriptors is no growth. They grew if the fewest of the second half
    # are more than the most of the first.
    if (old := max(u.descriptors for u in before)) < min(u.descriptors for u in after):
        found.append(f"open descriptors grew from {old}: {usages[-1].descriptors}")
    if (old := max(u.threads for u in before)) < min(u.threads for u in after):
        found.append(f"threads grew from {old}: {usages[-1].threads}")
    # Medians ignore the short use of memory by large bodies in flight.
    old, new = (int(median(u.rss for u in some)) for some in (before, after))
    if new - old > max(MEMORY_NOISE, MEMORY_SHARE * old):
        found.append(f"memory grew from {old >> 20} to {new >> 20} MiB")
    return found


async def run_client(
    server: Server, jobs: Sequence[Job], seed: int, soak: Soak
) -> None:
    """Run one client: a request after the other until the soak is over."""
    async with Client(HOST, server.port) as client:
        for job in endless(jobs, seed):
            if soak.over:
                return
            try:
                answer = await client.post(job.path, job.payload)
                complaint = job.complaint(answer)
            except (OSError, TimeoutError) as error:
                complaint = f"{type(error).__name__}: {error}"
            if len(soak.wrong) >= 1000:
                return  # enough wrong answers
            if complaint:
                what = f"{job.model} {job.encoding} to {job.accept or 'the same'}"
                soak.wrong.append(f"{what}: {complaint}")
            else:
                soak.answered[job.model, job.encoding] += 1


async def watch(server: Server, soak: Soak, seconds: float, warm_up: float) -> None:
    """Read memory and descriptors ten times between warm-up and end; then end."""
    started = time.monotonic()
    await asyncio.sleep(warm_up)
    for _ in range(10):
        usage = await asyncio.to_thread(server.usage)
        soak.usage.append((time.monotonic() - started, usage))
        await asyncio.sleep((seconds - warm_up) / 10)
    soak.over = True


async def soak_server(
    server: Server, jobs: Sequence[Job], clients: int, seconds: float, warm_up: float
) -> Soak:
    """Keep `clients` busy on a server that is ready, for `seconds`."""
    soak = Soak()
    async with asyncio.TaskGroup() as group:
        group.create_task(watch(server, soak, seconds, warm_up))
        for seed in range(clients):
            group.create_task(run_client(server, jobs, seed, soak))
    return soak


def prepare(folder: Path, models: Sequence[str], count: int) -> list[Job]:
    """Compile the models into `folder`/models; return jobs with their answers."""
    jobs = make_jobs(folder / "onnx", models, count)
    sources = [folder / "onnx" / f"{name}.onnx" for name in models]
    compiled = compile_models(sources, folder / "models")
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr
    return jobs


def show(soak: Soak, seconds: float) -> None:
    total = soak.answered.total()
    print(f"{total} right answers, {total / seconds:.0f} a second")
    for (model, encoding), count in sorted(soak.answered.items()):
        print(f"  {model:<8} {encoding:<10} {count:8}")
    for when, usage in soak.usage:
        print(
            f"  {when:6.1f} s: {usage.rss / 2**20:7.1f} MiB resident,"
            f" {usage.pss / 2**20:7.1f} MiB proportional,"
            f" {usage.descriptors} descriptors, {usage.threads} threads,"
            f" {usage.processes} processes"
        )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--warm-up", type=float, help="default: a fifth of it")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--jobs", type=int, default=60, help="requests of each model")
    parser.add_argument("--devices", help="passed on to popgate serve")
    options = parser.parse_args()
    warm_up = options.seconds / 5 if options.warm_up is None else options.warm_up
    left_before = set(os.listdir("/dev/shm"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = prepare(folder, MODELS, options.jobs)
        with gateway(folder / "models", devices=options.devices) as server:
            server.wait_ready()
            soak = asyncio.run(
                soak_server(server, jobs, options.clients, options.seconds, warm_up)
            )
            code = server.stop()
    show(soak, options.seconds)
    complaints = soak.complaints()
    if code:
        complaints.append(f"the gateway ended with {code}")
    if left := set(os.listdir("/dev/shm")) - left_before:
        complaints.append(f"left in /dev/shm: {sorted(left)}")
    for complaint in complaints:
        print(f"FAIL: {complaint}")
    if len(soak.wrong) > 20:
        print(f"FAIL: … {len(soak.wrong)} wrong in all")
    return int(bool(complaints))


if __name__ == "__main__":
    sys.exit(main())
