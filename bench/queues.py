"""Rings between two processes beside `multiprocessing.Queue` and `Pipe`, in one run.

    python -m bench.queues
    python -m bench.queues --seconds 0.2 --rounds 1 --sizes 64,65536
    python -m bench.queues --out bench/results/NAME.json

A message goes to another process and comes back. The rings are the engine's: the
channel, the link and the wake-ups that a request takes, with an echo in the place of
the model. `Queue` and `Pipe` do the same work as Python's documentation has them. The
bound is what the rings copy (in, across, out), in one process that wakes nobody. All
processes tell malloc to keep large blocks, as gateway and devices do.

Two numbers for each way and size: the median round trip with one message in flight, and
messages a second with several. Ways take turns within a round; medians of the rounds.
Every message that comes back is compared in length and its first bytes, the last one
of a measurement in full. Exit code 1 where one was wrong.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.machine import describe
from bench.queues_ways import (
    WAYS,
    Copies,
    LookingRings,
    Opened,
    Pipe,
    Queue,
    Rings,
    Way,
)
from engine import keep_large_blocks

SIZES = (64, 64 * 1024, 3 * 224 * 224 * 4, 16 * 1024 * 1024)
PAYLOADS = 4
"""Different messages that take turns."""
WARM_UP = 20
_LEGEND = (
    "Ratios: round trip with one message in flight, then messages a second with 8 "
    "(2 of 16 MiB); above 1 the rings are faster."
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One way at one size: the medians of all rounds."""

    way: str
    size: int
    round_trip_us: float
    in_flight: int
    messages_per_second: float


def in_flight_of(size: int) -> int:
    """Fewer large ones, as little memory would hold many."""
    return 8 if size <= 1 << 20 else 2


def payloads(size: int) -> list[bytes]:
    return [bytes([number]) + os.urandom(size - 1) for number in range(PAYLOADS)]


class Exchange:
    """Sends messages and checks what comes back, in order."""

    def __init__(self, way: Way, size: int) -> None:
        self._way = way
        self._payloads = payloads(size)
        self._sent: deque[bytes] = deque()
        self._count = 0

    def send(self) -> None:
        message = self._payloads[self._count % PAYLOADS]
        self._count += 1
        self._sent.append(message)
        self._way.send(message)

    def receive(self, *, fully: bool = False) -> int:
        messages = self._way.receive()
        for message in messages:
            sent = self._sent.popleft()
            if len(message) != len(sent) or message[:8] != sent[:8]:
                raise AssertionError("another message came back")
            if fully and message != sent:
                raise AssertionError("the message came back with other bytes")
        return len(messages)


def round_trips(way: Way, size: int, seconds: float) -> float:
    """The median round trip in microseconds, one message in flight."""
    exchange = Exchange(way, size)
    for _ in range(WARM_UP):
        exchange.send()
        exchange.receive()
    times = []
    clock = time.perf_counter
    end = clock() + seconds
    while (began := clock()) < end:
        exchange.send()
        exchange.receive()
        times.append(clock() - began)
    exchange.send()
    exchange.receive(fully=True)
    return 1e6 * statistics.median(times)


def throughput(way: Way, size: int, in_flight: int, seconds: float) -> float:
    """Messages a second with `in_flight` of them on their way."""
    exchange = Exchange(way, size)
    waiting = 0
    for _ in range(WARM_UP):
        exchange.send()
        exchange.receive()
    clock = time.perf_counter
    began = clock()
    done = 0
    while (now := clock()) < began + seconds:
        while waiting < in_flight:
            exchange.send()
            waiting += 1
        came = exchange.receive()
        waiting -= came
        done += came
    while waiting:
        waiting -= exchange.receive(fully=True)
    return done / (now - began)


def measure(
    sizes: Sequence[int],
    rounds: int,
    seconds: float,
    ways: Sequence[Callable[[int, int], Way]] = WAYS,
) -> list[Cell]:
    cells = []
    for size in sizes:
        in_flight = in_flight_of(size)
        trips: dict[str, list[float]] = {}
        rates: dict[str, list[float]] = {}
        for _ in range(rounds):
            for make in ways:
                with Opened(make, size, 1) as way:
                    trips.setdefault(way.name, []).append(
                        round_trips(way, size, seconds)
                    )
                window = 1 if make is Copies else in_flight
                with Opened(make, size, window) as way:
                    rates.setdefault(way.name, []).append(
                        throughput(way, size, window, seconds)
                    )
        cells += [
            Cell(
                name,
                size,
                statistics.median(trips[name]),
                in_flight,
                statistics.median(rates[name]),
            )
            for name in trips
        ]
    return cells


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    if size < 1 << 20:
        whole = size & (size - 1) == 0
        return f"{size >> 10} KiB" if whole else f"{size / 1000:.0f} KB"
    return f"{size >> 20} MiB"


def table(cells: Sequence[Cell], value: Callable[[Cell], float], unit: str) -> str:
    """A Markdown table: ways by sizes, with ratios of the plain rings."""
    sizes = list(dict.fromkeys(cell.size for cell in cells))
    ways = list(dict.fromkeys(cell.way for cell in cells))
    by_key = {(cell.way, cell.size): value(cell) for cell in cells}
    lines = [
        f"| {unit} | {' | '.join(map(size_text, sizes))} |",
        f"| --- | {' | '.join('---:' for _ in sizes)} |",
    ]
    for way in ways:
        values = [f"{by_key[way, size]:,.1f}" for size in sizes]
        lines.append(f"| {way} | {' | '.join(values)} |")
    return "\n".join(lines)


def ratios(cells: Sequence[Cell]) -> str:
    """How many times better the rings are than each other way."""
    sizes = list(dict.fromkeys(cell.size for cell in cells))
    by_key = {(cell.way, cell.size): cell for cell in cells}
    lines = [
        f"| rings against | {' | '.join(map(size_text, sizes))} |",
        f"| --- | {' | '.join('---:' for _ in sizes)} |",
    ]
    for other in (Pipe, Queue, Copies, LookingRings):
        shown = []
        for size in sizes:
            mine, theirs = by_key[Rings.name, size], by_key[other.name, size]
            trip = theirs.round_trip_us / mine.round_trip_us
            rate = mine.messages_per_second / theirs.messages_per_second
            shown.append(f"x{trip:.2f}, x{rate:.2f}")
        lines.append(f"| {other.name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def report(cells: Sequence[Cell]) -> str:
    def trip(cell: Cell) -> float:
        return cell.round_trip_us

    def rate(cell: Cell) -> float:
        return cell.messages_per_second

    return "\n\n".join(
        (
            table(cells, trip, "round trip, us"),
            table(cells, rate, "messages/s"),
            ratios(cells),
            _LEGEND,
        )
    )


def main(arguments: Sequence[str] | None = None) -> int:
    summary = (__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(description=summary)
    parser.add_argument("--seconds", type=float, default=0.5, help="a measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="in bytes")
    parser.add_argument("--out", type=Path, help="keep the results as JSON")
    options = parser.parse_args(arguments)
    sizes = [int(text) for text in options.sizes.split(",")]
    machine = describe()
    load = os.getloadavg()[0]
    print(f"{machine}; load {load:.1f} at the start\n")
    gc.freeze()
    keep_large_blocks()
    try:
        cells = measure(sizes, options.rounds, options.seconds)
    except AssertionError as error:
        print(f"wrong: {error}", file=sys.stderr)
        return 1
    print(report(cells))
    if options.out is not None:
        document = {
            "machine": machine.as_dict(),
            "load_at_start": load,
            "seconds": options.seconds,
            "rounds": options.rounds,
            "cells": [asdict(cell) for cell in cells],
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
