"""The checked-in table, and which differences from it are changes of the product."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

TABLE = Path(__file__).parents[1] / "counts.toml"

#: System calls whose number depends on which process or thread comes first, with how
#: many more or fewer are no change. The first group waits: a process that finds news
#: before it sleeps does not wait. A device waits (pselect6) before it reads its eventfd
#: only after a run that took long.
WAITING = {
    "epoll_wait": 1,
    "epoll_pwait": 1,
    "epoll_pwait2": 1,
    "ppoll": 1,
    "poll": 1,
    "pselect6": 1,
}
#: Those whose number depends on how long a large request or a swap takes, so no number
#: of them is a change there. Threads hand over the interpreter's lock (futex), once
#: more for each 5 ms that a thread waits for it. asyncio asks for the process's id
#: (getpid) when it looks for its running loop, as for each timer, and a slow request
#: sees more timers. The table has 9 handovers for a swap, and one of six runs had 23.
TIMED = frozenset({"futex", "getpid", "epoll_pwait", "epoll_wait"})
#: The kernel decides in how many pieces large bodies arrive. After a long turn reading
#: stops after each piece (`ReadBudget`), which tells the kernel twice (io_uring).
PIECES = {
    "recvfrom": 6,
    "read": 6,
    "sendto": 2,
    "sendmsg": 2,
    "writev": 2,
    "write": 2,
    "io_uring_enter": 8,
}
#: Calls of our functions. A device finds the next request before it sleeps, or after.
#: Seven at the end of the answer to a swap were counted in some runs and not in others.
CALLS = {"small": 2, "large": 4, "swap": 20}
#: Wake-ups. A swap has several messages, and a busy process finds two at once.
WAKEUPS = {
    "waits": {"small": 1, "large": 4, "swap": 6},
    "signals": {"small": 0, "large": 1, "swap": 4},
}
#: Times that a swap lets a process sleep, at most.
SWAP_SLEEPS = 8
#: Memory, as shares of the stated number and as numbers. Pieces of a body are objects.
MEMORY = {
    "blocks": (0.1, 8),
    "large_blocks": (0.1, 1),
    "copies": (0.05, 0.15),
    "copied_kib": (0.1, 0),
}


def differences(stated: object, found: object, where: str = "") -> Iterator[str]:
    """Yield each count that differs from the stated one, with both values."""
    if isinstance(stated, dict) and isinstance(found, dict):
        for name in sorted(stated.keys() | found.keys()):
            absent = 0 if where else None
            both = stated.get(name, absent), found.get(name, absent)
            if None not in both:
                yield from differences(*both, f"{where} {name}".strip())
    elif stated != found and not _is_chance(where, stated, found):
        yield f"{where}: {found}, stated {stated}"


def updated(stated: object, found: object, where: str = "") -> object:
    """Return what was found, with the stated counts that differ from it by chance."""
    if not isinstance(stated, dict) or not isinstance(found, dict):
        return stated if _is_chance(where, stated, found) else found
    counts = {}
    for name in [*found, *sorted(stated.keys() - found.keys())]:
        count = updated(stated.get(name, 0), found.get(name, 0), f"{where} {name}")
        if count or found.get(name) == count:  # no system calls that are not made
            counts[name] = count
    return counts


def _is_chance(where: str, stated: object, found: object) -> bool:
    """Return whether the order of events may explain the difference."""
    if not isinstance(stated, int | float) or not isinstance(found, int | float):
        return False
    case, kind, *_, name = where.split()
    return abs(stated - found) <= _allowed(case.partition("-")[0], kind, name, stated)


def _allowed(size: str, kind: str, name: str, stated: float) -> float:
    if kind == "calls":
        return CALLS.get(size, 0)
    if kind.endswith("wakeups"):
        return WAKEUPS[name][size]
    if kind.endswith("memory"):
        share, number = MEMORY[name]
        # The pieces of a small request's body are one piece.
        exact = size == "small" and name != "blocks"
        return 0 if exact else max(share * stated, number)
    if kind not in ("plain", "compiled"):
        return 0
    if size == "small":
        return WAITING.get(name, 0)
    if name in TIMED:
        return math.inf
    waits = WAITING.get(name, 0) * (SWAP_SLEEPS if size == "swap" else 1)
    return waits + PIECES.get(name, 0)


def to_toml(table: Mapping[str, Mapping[str, object]]) -> str:
    """Write the table: one line for each process."""
    lines = ["# Written by `python -m bench.counts --write`; for one request each.", ""]
    for case, row in table.items():
        lines.append(f"[{case}]")
        for kind, counts in row.items():
            assert isinstance(counts, dict)
            for process, value in counts.items():
                lines.append(f"{kind}.{process} = {_value(value)}")
        lines.append("")
    return "\n".join(lines)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{name} = {n}' for name, n in value.items())} }}"
    return json.dumps(value)
