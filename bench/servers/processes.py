"""Numbers of /proc for a process and its children: CPU, memory, descriptors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Usage:
    """Sums over processes. CPU in seconds, memory in bytes (PSS: shared pages once)."""

    processes: int
    threads: int
    descriptors: int
    cpu: float
    rss: int
    pss: int


def children(pid: int) -> list[int]:
    """Return the ids of the direct children of `pid`; none if it is gone."""
    found: list[int] = []
    for task in _tasks(pid):
        text = _read(task / "children")
        found += [int(word) for word in text.split()]
    return found


def tree(pid: int) -> list[int]:
    """Return `pid` and all living processes below it."""
    if not alive(pid):
        return []
    return [pid, *(each for child in children(pid) for each in tree(child))]


def alive(pid: int) -> bool:
    """Return whether the process runs; a zombie does not."""
    return _state(pid) not in ("", "Z", "X")


def asleep(pid: int) -> bool:
    """Return whether the main thread waits for something; one that strace stops does
    not.
    """
    return _state(pid) == "S"


def command_line(pid: int) -> list[str]:
    """Return the arguments of the process; empty if it is gone."""
    text = _read(Path(f"/proc/{pid}/cmdline"))
    return text.rstrip("\0").split("\0") if text else []


def cpu_seconds(pids: list[int]) -> float:
    """Return the processor time so far of all threads of the living processes."""
    nanoseconds = 0
    for pid in pids:
        for task in _tasks(pid):
            fields = _read(task / "schedstat").split()
            nanoseconds += int(fields[0]) if fields else 0
    return nanoseconds / 1e9


def page_faults(pid: int) -> int:
    """Return the minor page faults of a process so far: memory touched the
    first time.
    """
    return int(_read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()[7])


def usage(pids: list[int], *, pss: bool = True) -> Usage:
    """Return the present use of the processes. `pss=False` skips a walk through their
    maps.
    """
    living = [pid for pid in pids if alive(pid)]
    return Usage(
        processes=len(living),
        threads=sum(len(_tasks(pid)) for pid in living),
        descriptors=sum(descriptors(pid) for pid in living),
        cpu=cpu_seconds(living),
        rss=sum(_kib(pid, "status", "VmRSS:") for pid in living),
        pss=sum(_kib(pid, "smaps_rollup", "Pss:") for pid in living) if pss else 0,
    )


def named_memory(pids: list[int]) -> set[str]:
    """Return the names in /dev/shm that the processes hold and could leave behind."""
    lines = [line for pid in pids for line in _read(Path(f"/proc/{pid}/maps")).split()]
    return {path for path in lines if path.startswith("/dev/shm/")}


def descriptors(pid: int) -> int:
    """Return the number of open file descriptors of one process."""
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0


def mapped_files(pids: list[int], suffix: str) -> list[str]:
    """Return a line for each mapping of a file in the processes, deleted files
    included.
    """
    found: list[str] = []
    for pid in pids:
        for line in _read(Path(f"/proc/{pid}/maps")).splitlines():
            _, slash, path = line.partition("/")
            if path.removesuffix(" (deleted)").endswith(suffix):
                found.append(slash + path)
    return found


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []


def _state(pid: int) -> str:
    stat = _read(Path(f"/proc/{pid}/stat"))
    return stat.rpartition(")")[2].split()[0] if stat else ""


def _kib(pid: int, file: str, key: str) -> int:
    for line in _read(Path(f"/proc/{pid}/{file}")).splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
