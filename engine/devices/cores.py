"""Processor share that this process may really use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

_PROC = Path("/proc/self")


@dataclass(frozen=True, slots=True)
class CpuBudget:
    """Usable cores: the cores of the affinity mask, and the CPU quota in cores. The
    quota is the smallest of the cgroup and its parents and may be a fraction. None
    means no quota.
    """

    affinity: int
    quota: float | None = None

    @property
    def cores(self) -> float:
        """Return the number of usable cores, fractions included."""
        return self.affinity if self.quota is None else min(self.affinity, self.quota)

    def __str__(self) -> str:
        text = f"{self.affinity} core" + "s" * (self.affinity != 1)
        if self.quota is None:
            return text
        return f"{self.cores:.3g} of {text} by the cgroup's quota"


def cpu_budget(proc: Path = _PROC) -> CpuBudget:
    """Return the budget of this process. Its folder in ``/proc`` is `proc`."""
    return CpuBudget(len(os.sched_getaffinity(0)), cgroup_quota(proc))


def usable_cores() -> int:
    """Return `CpuBudget.cores`, rounded up."""
    return max(1, math.ceil(cpu_budget().cores))


def cgroup_quota(proc: Path = _PROC) -> float | None:
    """Return the smallest CPU quota of the cgroup and its parents, in cores. Supports
    cgroups of version 1 and 2. None means no limit.
    """
    quotas = []
    for folder in _cgroups(proc):
        for read in (_quota_v2, _quota_v1):
            quota = read(folder)
            if quota is not None:
                quotas.append(quota)
    return min(quotas, default=None)


def _quota_v2(folder: Path) -> float | None:
    try:
        limit, period = (folder / "cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _quota_v1(folder: Path) -> float | None:
    try:
        limit = int((folder / "cpu.cfs_quota_us").read_text())
        period = int((folder / "cpu.cfs_period_us").read_text())
        return limit / period if limit > 0 else None
    except (OSError, ValueError, ZeroDivisionError):
        return None


def _cgroups(proc: Path) -> Iterator[Path]:
    """Yield the cgroup folders that may limit the processor, each followed by its
    parents.
    """
    groups = _own_groups(proc)
    for root, mount_point, controllers in _mounts(proc):
        kind = "" if controllers is None else "cpu"
        if controllers is not None and "cpu" not in controllers:
            continue
        if kind not in groups:
            continue
        # In a container, the group may lie above the mounted folder.
        group = PurePosixPath(groups[kind])
        if group.is_relative_to(root):
            group = group.relative_to(root)
        else:
            group = PurePosixPath()
        folder = Path(mount_point) / group
        while True:
            yield folder
            if folder == Path(mount_point) or folder == folder.parent:
                break
            folder = folder.parent


def _own_groups(proc: Path) -> dict[str, str]:
    """Return the paths of our cgroups: ``cpu`` of version 1, and the empty name
    of 2.
    """
    groups = {}
    for line in _lines(proc / "cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in controllers.split(","):
            if controller in ("", "cpu"):
                groups[controller] = path
    return groups


def _mounts(proc: Path) -> Iterator[tuple[str, str, list[str] | None]]:
    """Yield (root, mount point, controllers or None for version 2) of cgroup file
    systems.
    """
    for line in _lines(proc / "mountinfo"):
        fields, _, tail = line.partition(" - ")
        kind, *options = tail.split()
        parts = fields.split()
        if kind == "cgroup2":
            yield parts[3], parts[4], None
        elif kind == "cgroup" and options:
            yield parts[3], parts[4], options[-1].split(",")


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []
