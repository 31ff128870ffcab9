"""The numbers of the processes of a server: memory and processor time from `/proc`, and
what each reports about itself.
"""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from typing import NamedTuple

_PAGE = resource.getpagesize()
_TICKS = os.sysconf("SC_CLK_TCK")
# Fields of /proc/PID/stat behind the program's name: user and system time, in ticks.
_USER, _SYSTEM = 11, 12


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """Use of a process: `resident` bytes of memory, shared memory included, and seconds
    of processor time since its start.
    """

    resident: int
    cpu_seconds: float


class OwnNumbers(NamedTuple):
    """Numbers that a process reports about itself: connections, and dropped log lines
    and spans.
    """

    connections: int = 0
    lines_dropped: int = 0
    spans_dropped: int = 0


def use_of(pid: int) -> ProcessUse | None:
    """Return the resources of a process; None if it has ended."""
    try:
        with open(f"/proc/{pid}/statm", encoding="ascii") as file:
            resident = int(file.read().split()[1]) * _PAGE
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    ticks = int(fields[_USER]) + int(fields[_SYSTEM])
    return ProcessUse(resident, ticks / _TICKS)
