"""`EventLog`: the events of a simulated world, and its faults."""

from __future__ import annotations

from collections import Counter
from typing import Any

from bench.fuzzers.clock import Clock


class EventLog:
    """The events of a simulator, with the time of its clock, and the faults found.

    `title` says what kind of world it is. `counts` has the number of events by their
    first word, and `lived` by the entry of a table that they took, if there is one.
    """

    def __init__(self) -> None:
        self.clock = Clock()
        self.title = ""
        self.log: list[str] = []
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()
        self.lived: Counter[Any] = Counter()

    def say(self, what: str) -> None:
        self.counts[what.split()[0]] += 1
        self.log.append(f"{self.clock.now / 1e9:.6f} {what}")

    def expect(self, holds: bool, what: str) -> None:
        """Add a fault if something does not hold."""
        if not holds:
            self.say(f"FAULT {what}")
            self.faults.append(what)
