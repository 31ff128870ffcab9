"""The machine of a result, written beside every kept number."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from bench.servers.server import ROOT

MEASURED = ("onnxruntime", "uvicorn", "uvloop", "httptools", "orjson", "numpy")


@dataclass(frozen=True, slots=True)
class Machine:
    """Processor, memory and versions; nothing that names a host or a person."""

    date: str
    commit: str
    processor: str
    cores: int
    memory_gib: int
    system: str
    python: str
    packages: dict[str, str]
    compiled: bool

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {v}" for name, v in self.packages.items())
        return (
            f"{self.cores} cores of {self.processor}, {self.memory_gib} GiB,"
            f" {self.system}, Python {self.python}; {versions};"
            f" hot path {'compiled' if self.compiled else 'as plain Python'};"
            f" commit {self.commit}, {self.date}"
        )

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def describe() -> Machine:
    """Return the machine this runs on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        date=date.today().isoformat(),
        commit=_commit(),
        processor=_processor(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(memory / 2**30),
        system=f"Linux {platform.release()}",
        python=platform.python_version(),
        packages={name: importlib.metadata.version(name) for name in MEASURED},
        compiled=is_compiled(),
    )


class StolenTime:
    """Processor time that the hypervisor gave to other guests, since this was made."""

    def __init__(self) -> None:
        self._began = _jiffies()

    @property
    def share(self) -> float:
        """Return the part of the processor time that this guest wanted to use."""
        user, nice, system, _, _, hard, soft, stolen = (
            now - then for now, then in zip(_jiffies(), self._began, strict=True)
        )
        used = user + nice + system + hard + soft
        return stolen / max(used + stolen, 1)


def _jiffies() -> list[int]:
    line, _, _ = Path("/proc/stat").read_text().partition("\n")
    return [int(word) for word in line.split()[1:9]]


def is_compiled() -> bool:
    """Return whether the hot path that this Python runs is compiled
    (docs/how-to/tune.md)."""
    spec = importlib.util.find_spec("engine.runner.replica_channel")
    return spec is not None and not str(spec.origin).endswith(".py")


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _commit() -> str:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"
