"""Compare rings between two processes with `multiprocessing.Queue` and `Pipe`.

    python -m bench.queues
    python -m bench.queues --seconds 0.2 --rounds 1 --sizes 64,65536
    python -m bench.queues --out bench/results/NAME.json

A message goes to another process and comes back. The rings are the engine's: channel,
link and wake-ups of a request, with an echo in place of the model. `Queue` and `Pipe`
do the same work, used as in Python's documentation. The bound is the time of the rings'
copies (in, across, out), in one process without wake-ups. All processes tell malloc to
keep large blocks, as gateway and devices do.

Two numbers for each way and size: the median round trip with one message in flight, and
messages a second with several. Ways take turns within a round; medians of the rounds.
Rounds that would begin after `--limit` seconds are left out, except the first of each
size. The length and first bytes of every returned message are checked, and all bytes of
the last one. Exit code 1 if a message was wrong.
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
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from bench.drivers.queue_ways import (
    WAYS,
    Copies,
    LookingRings,
    Opened,
    Pipe,
    Queue,
    Rings,
    Way,
)
from bench.servers.machine import describe
from engine import keep_large_blocks
from popgate_tools.local import progress

SIZES = (64, 64 * 1024, 3 * 224 * 224 * 4, 16 * 1024 * 1024)
PAYLOADS = 4
"""Different messages that take turns."""
WARM_UP = 8
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
    """Return how many messages are in flight: few large ones, to limit memory."""
    return 8 if size <= 1 << 20 else 2


def payloads(size: int) -> list[bytes]:
    return [bytes([number]) + os.urandom(size - 1) for number in range(PAYLOADS)]


class Exchange:
    """Sends messages and checks the returned ones, in order."""

    def __init__(self, way: Way, payloads: Sequence[bytes]) -> None:
        self._way = way
        self._payloads = payloads
        self._sent: deque[bytes] = deque()
        self._count = 0

    def send(self) -> None:
        message = self._payloads[self._count % len(self._payloads)]
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

    def warm_up(self, messages: int) -> None:
        """Exchange messages without measuring, one in flight."""
        for _ in range(messages):
            self.send()
            self.receive()


def round_trips(way: Way, payloads: Sequence[bytes], seconds: float) -> float:
    """Return the median round trip in microseconds, one message in flight."""
    exchange = Exchange(way, payloads)
    exchange.warm_up(2)
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


def throughput(
    way: Way, payloads: Sequence[bytes], in_flight: int, seconds: float
) -> float:
    """Return messages per second with `in_flight` of them in flight."""
    exchange = Exchange(way, payloads)
    waiting = 0
    exchange.warm_up(2)
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
    limit: float = 3600.0,
    on_done: Callable[[int], None] = lambda done: None,
) -> list[Cell]:
    """Measure all ways at all sizes. `on_done` receives the number of rounds so far."""
    cells: list[Cell] = []
    began = time.monotonic()
    for number, size in enumerate(sizes):
        # Each size has its share of the time, and unused time of the sizes before it.
        end = began + limit * (number + 1) / len(sizes)
        columns = Columns(size, seconds, ways)
        with columns:
            while columns.rounds < rounds:
                columns.measure_round()
                on_done(number * rounds + columns.rounds)
                if time.monotonic() > end:
                    break
        print(f"{size_text(size)}: {columns.rounds} of {rounds} rounds", flush=True)
        cells += columns.cells()
    return cells


class Columns:
    """All ways at one size.

    A context manager: the processes of the ways run during the block, and idle between
    their turns.
    """

    def __init__(
        self, size: int, seconds: float, ways: Sequence[Callable[[int, int], Way]]
    ) -> None:
        self.rounds = 0
        self._size = size
        self._seconds = seconds
        self._payloads = payloads(size)
        self._in_flight = in_flight_of(size)
        self._stack = ExitStack()
        self._makers = ways
        self._ways: list[tuple[Way, Way, int]] = []
        self._trips: dict[str, list[float]] = {}
        self._rates: dict[str, list[float]] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for make in self._makers:
                window = 1 if make is Copies else self._in_flight
                one, several = (
                    stack.enter_context(Opened(make, self._size, each))
                    for each in (1, window)
                )
                self._ways.append((one, several, window))
            # After this every process has started and has touched every page of its
            # rings.
            for one, several, window in self._ways:
                for way in (one, several):
                    Exchange(way, self._payloads).warm_up(window + WARM_UP)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def measure_round(self) -> None:
        """Measure each way once."""
        self.rounds += 1
        messages, seconds = self._payloads, self._seconds
        for one, several, window in self._ways:
            trip = round_trips(one, messages, seconds)
            self._trips.setdefault(one.name, []).append(trip)
            rate = throughput(several, messages, window, seconds)
            self._rates.setdefault(one.name, []).append(rate)

    def cells(self) -> list[Cell]:
        return [
            Cell(
                name,
                self._size,
                statistics.median(self._trips[name]),
                self._in_flight,
                statistics.median(self._rates[name]),
            )
            for name in self._trips
        ]


def size_text(size: int) -> str:
    if size < 1024:
        return f"{size} B"
    if size < 1 << 20:
        whole = size & (size - 1) == 0
        return f"{size >> 10} KiB" if whole else f"{size / 1000:.0f} KB"
    return f"{size >> 20} MiB"


def table(cells: Sequence[Cell], value: Callable[[Cell], float], unit: str) -> str:
    """Return a Markdown table: ways by sizes, with ratios of the plain rings."""
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
    """Return how many times better the rings are than each other way."""
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
    parser.add_argument("--seconds", type=float, default=0.3, help="a measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="in bytes")
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds after which no round begins"
    )
    parser.add_argument("--out", type=Path, help="keep the results as JSON")
    options = parser.parse_args(arguments)
    sizes = [int(text) for text in options.sizes.split(",")]
    machine = describe()
    load = os.getloadavg()[0]
    print(f"{machine}; load {load:.1f} at the start\n")
    gc.freeze()
    keep_large_blocks()
    rounds = options.rounds
    try:
        with progress("measuring", len(sizes) * rounds) as done:
            cells = measure(
                sizes, rounds, options.seconds, limit=options.limit, on_done=done
            )
    except AssertionError as error:
        print(f"wrong: {error}", file=sys.stderr)
        return 1
    print(f"\n{report(cells)}")
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
