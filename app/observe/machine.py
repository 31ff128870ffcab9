"""Use of processors and devices, and the machine's memory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Generic, TypeVar

K = TypeVar("K")

# The counters of idle time in the first line of /proc/stat.
_IDLE = (3, 4)  # idle, waiting for a disk
_STAT, _MEMINFO = "/proc/stat", "/proc/meminfo"


class Processors:
    """Use of the processors between two readings at least `seconds` apart.

    A call too soon returns the last result again, so several readers do not disturb
    each other. The first result covers the time since construction.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._looked = time.monotonic()
        self._busy, self._total = _ticks()
        self._utilization = 0.0

    def utilization(self) -> float:
        """Return the busy share of all processors' time, 0.0 to 1.0."""
        now = time.monotonic()
        busy, total = _ticks()
        if total > self._total and now - self._looked >= self._seconds:
            share = (busy - self._busy) / (total - self._total)
            self._utilization = min(1.0, max(0.0, share))
            self._looked, self._busy, self._total = now, busy, total
        return self._utilization

    def __repr__(self) -> str:
        return f"<Processors {self._utilization:.0%} busy>"


class BusyShares(Generic[K]):
    """Share of the time that things were busy between two readings at least `seconds`
    apart, for anything that counts its busy time.
    """

    def __init__(self, seconds: float = 1.0) -> None:
        self._seconds = seconds
        self._looked = time.monotonic()
        self._busy: dict[K, float] = {}
        self._shares: dict[K, float] = {}

    def of(self, busy_ns: Mapping[K, float]) -> Mapping[K, float]:
        """Return the busy share of each thing, given how long each has been busy.

        Things that are missing are forgotten. A new one has 0.0.
        """
        now = time.monotonic()
        passed = now - self._looked
        if passed >= self._seconds:
            self._shares = {
                key: max(0.0, busy - self._busy.get(key, busy)) / (passed * 1e9)
                for key, busy in busy_ns.items()
            }
            self._looked, self._busy = now, dict(busy_ns)
        return {key: self._shares.get(key, 0.0) for key in busy_ns}

    def __repr__(self) -> str:
        return f"<BusyShares of {len(self._busy)}>"


def _ticks() -> tuple[int, int]:
    """Return busy time and all time of all processors since the machine started."""
    with open(_STAT, encoding="ascii") as file:
        ticks = [int(word) for word in file.readline().split()[1:9]]
    total = sum(ticks)
    return total - sum(ticks[i] for i in _IDLE), total


def memory() -> tuple[int, int]:
    """Return the machine's memory in bytes: the total, and the part in use."""
    found = {}
    with open(_MEMINFO, encoding="ascii") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name in ("MemTotal", "MemAvailable"):
                found[name] = int(value.split()[0]) * 1024
    total = found["MemTotal"]
    return total, total - found["MemAvailable"]
