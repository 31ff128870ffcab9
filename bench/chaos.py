"""Kill and stop processes under load, and check what the clients see.

    python -m bench.chaos                    # every act
    python -m bench.chaos device gateway     # only these

Each act starts a real gateway, raises AssertionError if a promise of
`docs/explanation/architecture.md` is broken, and returns its findings in one line.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.cases.workload import Job
from bench.drivers.traffic import Traffic, clients
from bench.servers.processes import alive, descriptors, named_memory
from bench.servers.server import Server, ServerFailed, free_port, gateway
from bench.soak import prepare

MODELS = ("small", "middle", "slow")
CLIENTS = 32
#: How often the device is killed while requests are in flight.
KILLS = 2
#: Requests in flight when a device dies must have failed within this (seconds).
FAIL_WITHIN = 1.0
#: A request sent this long (seconds) before SIGTERM has surely been accepted.
SURELY_ACCEPTED = 0.05


def wait_gone(pids: Sequence[int]) -> float:
    """Wait until no process of `pids` lives; returns the seconds that took."""
    started = time.monotonic()
    while any(alive(pid) for pid in pids):
        if time.monotonic() - started > 10:
            raise AssertionError(f"still alive: {[p for p in pids if alive(p)]}")
        time.sleep(0.005)
    return time.monotonic() - started


def only(traffic: Traffic, *statuses: int) -> None:
    """Check that only these statuses came, and no wrong, cut or missing answer."""
    assert traffic.complaints() == [], traffic.complaints()[:5]
    strange = set(traffic.statuses()) - set(statuses)
    assert not strange, f"statuses {dict(traffic.statuses())}, expected {statuses}"


def device_killed(folder: Path, jobs: Sequence[Job], count: int = CLIENTS) -> str:
    """Check `kill -9` of the device process, twice, under load."""
    with gateway(folder, devices="cpu:1") as server:
        server.wait_ready()
        found = asyncio.run(_kill_device(server, jobs, count))
        assert not named_memory(server.pids())
        (device,) = server.device_pids()
        assert server.stop() == 0
    assert not alive(device)
    return found


async def _kill_device(server: Server, jobs: Sequence[Job], count: int) -> str:
    seen: list[str] = []
    models = {job.model for job in jobs}
    async with clients(server, jobs, count) as traffic:
        await traffic.answers(20 * count)
        open_before = descriptors(server.pid)
        # A kill proves something if it meets requests in flight.
        for _ in range(3 * KILLS):
            if len(seen) == KILLS:
                break
            (device,) = server.device_pids()
            killed = time.monotonic()
            os.kill(device, signal.SIGKILL)
            back = await traffic.until(
                lambda seen, since=killed: any(  # type: ignore[misc]
                    e.status == 200 and e.sent > since for e in seen.events
                ),
                30.0,
            )
            # Kill again only when all models serve: a loading model refuses requests at
            # once, so nothing might be in flight.
            await traffic.until(
                lambda seen, since=killed: (  # type: ignore[misc]
                    models <= seen.answered_since(since)
                ),
                30.0,
            )
            await traffic.answers(10 * count)
            hit = traffic.in_flight(killed)
            slowest = max((e.ended - killed for e in hit if e.status == 503), default=0)
            failed = sum(e.status == 503 for e in hit)
            if not failed:
                continue
            assert slowest < FAIL_WITHIN, f"a request failed after {slowest:.2f} s"
            seen.append(
                f"{failed} of {len(hit)} in flight failed in {slowest * 1e3:.0f} ms,"
                f" back in {back:.2f} s"
            )
        assert len(seen) == KILLS, "nothing was in flight: the act proves nothing"
        await traffic.until(lambda _: descriptors(server.pid) <= open_before, 5.0)
    only(traffic, 200, 503)
    return "; ".join(seen)


def gateway_killed(folder: Path, jobs: Sequence[Job], count: int = CLIENTS) -> str:
    """Check `kill -9` of the gateway under load, and a new start with the same
    options.
    """
    port = free_port()
    with gateway(folder, devices="cpu:1", port=port) as server:
        server.wait_ready()
        devices = server.device_pids()
        assert len(devices) == 1

        async def kill() -> None:
            async with clients(server, jobs, count) as traffic:
                await traffic.answers(10 * count)
                assert not named_memory(server.pids())
                server.kill()
            assert not [c for c in traffic.complaints() if "cut" not in c]

        asyncio.run(kill())
        gone = wait_gone(devices)
    with gateway(folder, devices="cpu:1", port=port, name="again") as server:
        ready = server.wait_ready()
        assert server.stop() == 0
    return f"device process gone in {gone * 1e3:.0f} ms, next start in {ready:.2f} s"


def terminated(
    folder: Path, jobs: Sequence[Job], count: int = CLIENTS, *, everyone: bool = False
) -> str:
    """Check SIGTERM under load: accepted requests are answered, exit 0, nothing left.

    `everyone`: the device process receives the signal too, because service managers
    signal a whole group (systemd's default).
    """
    with gateway(folder, devices="cpu:1") as server:
        server.wait_ready()
        pids = server.pids()

        async def stop() -> tuple[Traffic, float, float]:
            async with clients(server, jobs, count) as traffic:
                await traffic.answers(10 * count)
                assert not named_memory(pids)
                signalled = time.monotonic()
                for pid in pids if everyone else pids[:1]:
                    os.kill(pid, signal.SIGTERM)
                code = await asyncio.to_thread(server.process.wait, 60)
                took = time.monotonic() - signalled
            assert code == 0, f"exit code {code}"
            return traffic, signalled, took

        traffic, signalled, took = asyncio.run(stop())
        wait_gone(pids)
    only(traffic, 200, 503, 0)
    # The gateway must answer requests sent before the signal, so a refusal counts as
    # lost. It may not have read the last ones, and closes their connections without a
    # byte.
    lost = [
        event
        for event in traffic.in_flight(signalled)
        if event.status == 503
        or (event.status == 0 and event.sent < signalled - SURELY_ACCEPTED)
    ]
    assert not lost, f"{len(lost)} accepted requests had no answer: {lost[:3]}"
    early = [e for e in traffic.events if e.ended <= signalled and e.status != 200]
    assert not early, early[:3]
    hit = traffic.in_flight(signalled)
    answered = sum(event.status == 200 for event in hit)
    return f"{answered} of {len(hit)} in flight answered, exit 0 after {took:.2f} s"


def group_terminated(folder: Path, jobs: Sequence[Job], count: int = CLIENTS) -> str:
    """Check SIGTERM to gateway and device process, as to the gateway alone."""
    return terminated(folder, jobs, count, everyone=True)


def two_gateways(folder: Path, jobs: Sequence[Job], count: int = 1) -> str:
    """Check two gateways on one device: the second obeys its --device-wait."""
    wait = "--device-wait"
    seen = []
    with gateway(folder, devices="cpu:1", name="first") as first:
        first.wait_ready()
        for setting, least in (("no-wait", 0.0), ("1", 1.0)):
            options = (wait, setting, "--device-wait-sleep", "0.1")
            with gateway(folder, *options, devices="cpu:1", name="second") as second:
                started = time.monotonic()
                ended = second.process.wait(30)
                took = time.monotonic() - started
                assert ended not in (0, -9), f"{setting}: exit code {ended}"
                assert took >= least, f"{setting}: gave up after {took:.2f} s"
                assert "cpu:0" in second.log(), second.log()
                seen.append(f"{setting}: exit {ended} after {took:.1f} s")
        assert first.status("/v2/health/ready") == 200
        seen += [_takes_over(folder, first, kill=False)]
    with gateway(folder, devices="cpu:1", name="first") as first:
        first.wait_ready()
        seen += [_takes_over(folder, first, kill=True)]
    return "; ".join(seen)


def _takes_over(folder: Path, first: Server, *, kill: bool) -> str:
    """Check that a waiting gateway attaches when the first is stopped or killed."""
    options = ("--device-wait", "forever", "--device-wait-sleep", "0.1")
    with gateway(folder, *options, devices="cpu:1", name="waiting") as second:
        try:
            second.wait_ready(timeout=1.5)
        except ServerFailed:
            assert second.process.poll() is None, second.log()
        else:
            raise AssertionError("two gateways are ready on one device")
        if kill:
            first.kill()
        else:
            assert first.stop() == 0
        ended = time.monotonic()
        second.wait_ready()
        took = time.monotonic() - ended
        assert second.stop() == 0
    end = "killed" if kill else "stopped"
    return f"forever: ready {took:.2f} s after the first was {end}"


def rows_apart(
    folder: Path, jobs: Sequence[Job], count: int = 64, each: int = 40
) -> str:
    """Check a model whose rows depend on each other: 64 clients get their own
    answers.
    """
    own = [job for job in jobs if job.model == "mixing"]
    with gateway(folder, devices="cpu:1") as server:
        server.wait_ready()

        async def ask() -> Traffic:
            async with clients(server, own, count) as traffic:
                await traffic.answers(each * count)
            return traffic

        traffic = asyncio.run(ask())
        assert server.stop() == 0
    only(traffic, 200)
    return f"{traffic.statuses()[200]} right answers"


Act = Callable[..., str]
ACTS: Mapping[str, Act] = {
    "device": device_killed,
    "gateway": gateway_killed,
    "sigterm": terminated,
    "group": group_terminated,
    "two": two_gateways,
    "rows": rows_apart,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("acts", nargs="*", help=f"of {', '.join(ACTS)}; default: all")
    options = parser.parse_args()
    unknown = set(options.acts) - set(ACTS)
    if unknown:
        parser.error(f"unknown acts {sorted(unknown)}")
    failed = 0
    with tempfile.TemporaryDirectory() as name:
        jobs = prepare(Path(name), (*MODELS, "mixing"), 40)
        for act in options.acts or ACTS:
            try:
                print(f"{act}: ok: {ACTS[act](Path(name, 'models'), jobs)}", flush=True)
            except (AssertionError, ServerFailed, TimeoutError) as error:
                failed += 1
                where = traceback.extract_tb(error.__traceback__)[-1]
                what = f"{type(error).__name__} {error}".strip()
                print(f"{act}: FAIL: {what} ({where.name}: {where.line})", flush=True)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
