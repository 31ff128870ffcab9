"""Allocations, copies and wake-ups of one request in both processes, of all threads.

A library between the processes and libc counts them (`bench.servers.interposed`). The
counts are read before and after each request, and the median of the requests is
returned. So a timer, or a device that falls asleep a little later, changes nothing. On
a busy machine most large requests see timers, and arrive in more pieces, so the least
of their counts is returned.

- `blocks`: blocks of memory, of any size. Python takes each object from malloc here.
  It keeps some freed objects itself (floats, tuples), so there are more objects.
- `large_blocks`: the blocks of at least 64 KiB.
- `copies`: bytes that memcpy and memmove copied, in copies of at least 4 KiB, in units
  of the tensors' bytes: 3.0 means that a large tensor was copied three times. Copies of
  the kernel (a socket's) and of realloc do not count, nor do conversions, as of numbers
  to text. A JSON text is longer than its tensors.
- `copied_kib`: instead of `copies`, the KiB of a small request and of a swap.
- `waits`: waits of the gateway for descriptors that ended because one was ready.
- `signals`: signals that a thread took from an eventfd, as from the other process.
"""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from statistics import median_low

from bench import calls
from bench.cases.scenarios import Scenario
from bench.counts.cases import CASES, is_large, requests, send_asleep, served, variables
from bench.servers.interposed import Interposed, build, environment, read
from bench.servers.server import HOST, Server

#: Requests to each model before those that are counted.
WARM = 300

#: By process, counts by name.
Usage = dict[str, dict[str, float]]


def memory_and_wakeups(
    cases: Sequence[Scenario], *, compiled: bool
) -> dict[str, dict[str, Usage]]:
    """Count for each case. Return by case and kind (memory, wakeups)."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = environment(build(folder), folder)
        with served(cases, variables(compiled=compiled) | own) as server:
            _warm(server, {case.model for case in cases})
            return {case.name: _of_case(server, case, folder) for case in cases}


def _warm(server: Server, models: Collection[str]) -> None:
    """Let the numbers of requests pass 256: Python keeps the integers up to there."""
    for case in (CASES["small-binary"], CASES["large-binary"]):
        if case.model in models:
            with socket.create_connection((HOST, server.port)) as connection:
                calls.send(connection, islice(cycle(requests(case)), WARM))


def _of_case(server: Server, case: Scenario, folder: Path) -> dict[str, Usage]:
    if not is_large(case):
        return described(usual(server, requests(case), folder))
    found = usual(server, requests(case), folder, min)
    payload = sum(array.nbytes for array in case.inputs().values())
    return described(found, "copies", payload)


def described(
    found: Mapping[str, Interposed], copied: str = "copied_kib", unit: int = 1024
) -> dict[str, Usage]:
    """Return the counts of each process by kind.

    `copied` names the copied bytes, in units of `unit` bytes.
    """
    return {
        "memory": {
            process: {
                "blocks": counts.blocks,
                "large_blocks": counts.large_blocks,
                copied: round(counts.copied / unit, 1),
            }
            for process, counts in found.items()
        },
        "wakeups": {
            # A device waits only for its eventfd. After a long run it waits before it
            # reads, so that it can give back memory. Else it waits by reading.
            "gateway": {
                "waits": found["gateway"].waits,
                "signals": found["gateway"].signals,
            },
            "device": {"signals": found["device"].signals},
        },
    }


def usual(
    server: Server,
    sent: Sequence[bytes],
    folder: Path,
    pick: Callable[[Iterable[int]], int] = median_low,
) -> dict[str, Interposed]:
    """Send requests twice, one at a time. Return of each count that of the second time
    that `pick` chooses.
    """
    (device,) = server.device_pids()
    pids = {"gateway": server.pid, "device": device}
    deltas: dict[str, list[Interposed]] = {name: [] for name in pids}
    with socket.create_connection((HOST, server.port)) as connection:
        calls.send(connection, sent)
        before = {name: read(folder, pid) for name, pid in pids.items()}
        for request in sent:
            send_asleep(connection, [request], pids.values())
            for name, pid in pids.items():
                now = read(folder, pid)
                deltas[name].append(now.since(before[name]))
                before[name] = now
    return {
        name: Interposed(*(pick(words) for words in zip(*each, strict=True)))
        for name, each in deltas.items()
    }
