"""Plan of threads and spinning for devices. It is made once and can be printed."""

from __future__ import annotations

import os
from dataclasses import dataclass

from engine.devices.cores import CpuBudget
from engine.errors import counted

#: How long a device polls for the next request before it sleeps, in microseconds. A
#: single client in a loop sends its next request after 100 to 200 µs. Waking an idle
#: core takes 30 to 40 µs (bench/LOG.md). `POPGATE_SPIN_US` in the environment overrides
#: the value.
SPIN_US = 300
_LONGEST_SPIN_US = 10_000


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """Shares of the cores of this process.

    `reserved` cores are for other work (a gateway's event loop), and `devices` share
    the others. More threads than cores make all of them slower, so shares are rounded
    down, to at least one thread. With a `limit`, devices share that many threads
    instead, because other programs use the machine's cores too.
    """

    budget: CpuBudget
    devices: int
    reserved: int = 0
    limit: int = 0

    def threads(self, units: int = 1) -> int:
        """Return the threads of a device that takes `units` of the devices."""
        free = self.limit or max(1, int(self.budget.cores - self.reserved))
        return max(1, free * units // max(self.devices, units))

    @property
    def spin_us(self) -> int:
        """Return how long a device polls for work before it sleeps, in microseconds.
        With 0 it sleeps at once.
        """
        if self.budget.cores < 2:  # devices and clients share it
            return 0
        text = os.environ.get("POPGATE_SPIN_US", "")
        if text.isdecimal():
            return min(int(text[:9]), _LONGEST_SPIN_US)
        # The client needs a core too, even if none is reserved for it.
        needed = self.devices + max(1, self.reserved)
        return SPIN_US if self.budget.cores >= needed else 0

    def __str__(self) -> str:
        whom = "the device" if self.devices == 1 else f"each of {self.devices} devices"
        http = f"{self.reserved} for HTTP, " if self.reserved else ""
        return f"{self.budget}: {http}{counted(self.threads(), 'thread')} for {whom}"
