"""`Spinning`: polling for the next request instead of sleeping, while that pays."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable

from engine.transport.link import ALONE, Link

#: Requests that follow each other sooner than this come from several clients. Sleeping
#: lets them gather to a batch.
SPIN_FROM_NS = 60_000
#: The device stops spinning after this many spins without a submission.
SPIN_CREDIT = 4
#: The additional cost of a wake-up compared with a poll, in nanoseconds.
WAKE_NS = 40_000


class Spinning:
    """Decides whether a device process polls before it sleeps.

    A spin takes at most `limit_ns` nanoseconds; with 0 there is none. `credit` is
    positive if the next spin is likely to pay.
    """

    __slots__ = ("credit", "limit_ns")

    def __init__(self, limit_ns: int) -> None:
        self.limit_ns = limit_ns
        self.credit = 0

    def spin(self, links: Iterable[Link]) -> bool:
        """Poll for submissions for a moment. Return whether any came.

        Called only while there is credit. After a few spins without a submission,
        requests are too rare for spinning, and the device sleeps immediately.
        """
        began = time.monotonic_ns()
        end = began + self.limit_ns
        while (now := time.monotonic_ns()) < end:
            for link in links:
                if link.submissions.has_news:
                    self._learn(now - began, links)
                    return True
            # Let other processes have this core.
            os.sched_yield()
        self.credit -= 1
        return False

    def learn_from_sleep(self, slept_ns: int, links: Iterable[Link]) -> None:
        """Learn from the time that the device slept until the last news came."""
        self._learn(slept_ns - WAKE_NS, links)

    def _learn(self, gap_ns: int, links: Iterable[Link]) -> None:
        """Decide whether to spin next time, from the time until the last news came."""
        # Requests of a client that sends one at a time never gather to a batch.
        gathers = gap_ns < SPIN_FROM_NS and not any(link.words[ALONE] for link in links)
        if not gathers and gap_ns < self.limit_ns:
            self.credit = SPIN_CREDIT
        else:
            self.credit -= 1

    def __repr__(self) -> str:
        return f"<Spinning for {self.limit_ns} ns, credit {self.credit}>"
