"""`EventLog`: the events of a simulated world, and its faults."""

from __future__ import annotations

from collections import Counter

from bench.fuzzers.clock import Clock


class EventLog:
    """The events of a simulator, with the time of its clock, and the faults found.

    `counts` has the number of events by their first word.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.log: list[str] = []
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()

    def say(self, what: str) -> None:
        self.counts[what.split()[0]] += 1
        self.log.append(f"{self.clock.now / 1e9:.6f} {what}")

    def expect(self, holds: bool, what: str) -> None:
        """Add a fault if something does not hold."""
        if not holds:
            self.say(f"FAULT {what}")
            self.faults.append(what)
