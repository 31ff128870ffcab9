"""The cores that may be used: cgroups of both versions, as hosts and containers show
them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from engine.devices.cores import CpuBudget, cgroup_quota, cpu_budget, usable_cores

V1 = {"cpu.cfs_quota_us": "250000", "cpu.cfs_period_us": "100000"}


class Machine:
    """A synthetic ``/proc/self`` and the cgroup file systems that it names."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.proc = root / "proc"
        self.proc.mkdir()

    def write(self, folder: str, **files: str) -> None:
        path = self.root / folder
        path.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            (path / name).write_text(content + "\n")

    def mounts(self, *lines: str) -> None:
        self.write("proc", mountinfo="\n".join(lines).replace("ROOT", str(self.root)))

    def quota(self) -> float | None:
        return cgroup_quota(self.proc)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


V2_MOUNT = "30 23 0:27 / ROOT/cg rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


@pytest.mark.parametrize(
    ("content", "quota"),
    [("150000 100000", 1.5), ("max 100000", None), ("nonsense", None), ("1 0", None)],
)
def test_version_2(machine: Machine, content: str, quota: float | None) -> None:
    machine.mounts("20 1 0:5 / /dev rw - tmpfs tmpfs rw", V2_MOUNT)
    machine.write("proc", cgroup="0::/a/b")
    machine.write("cg/a/b", **{"cpu.max": content})
    assert machine.quota() == quota


def test_the_smallest_of_the_groups_around_counts(machine: Machine) -> None:
    machine.mounts(V2_MOUNT)
    machine.write("proc", cgroup="0::/a/b")
    machine.write("cg/a/b", **{"cpu.max": "400000 100000"})
    machine.write("cg/a", **{"cpu.max": "50000 100000"})
    machine.write("cg", **{"cpu.max": "max 100000"})
    assert machine.quota() == 0.5


@pytest.mark.parametrize("controllers", ["rw,cpu", "rw,cpu,cpuacct", "rw,cpuacct,cpu"])
def test_version_1(machine: Machine, controllers: str) -> None:
    machine.mounts(
        "33 31 0:31 / ROOT/memory rw - cgroup cgroup rw,memory",
        f"32 31 0:29 / ROOT/cpu rw,relatime - cgroup cgroup {controllers}",
    )
    machine.write("proc", cgroup="4:memory:/m\n1:cpuacct,cpu:/job\n0::/")
    machine.write("cpu/job", **V1)
    assert machine.quota() == 2.5
    machine.write("cpu/job", **{"cpu.cfs_quota_us": "-1"})
    assert machine.quota() is None


def test_a_container_that_sees_the_path_of_the_host(machine: Machine) -> None:
    machine.mounts("32 31 0:29 /docker/0a ROOT/cpu rw - cgroup cgroup rw,cpu")
    machine.write("proc", cgroup="1:cpu:/docker/0a")
    machine.write("cpu", **V1)
    assert machine.quota() == 2.5
    machine.write("proc", cgroup="1:cpu:/elsewhere")
    assert machine.quota() == 2.5


def test_a_machine_without_cgroups(machine: Machine) -> None:
    assert machine.quota() is None


@pytest.mark.parametrize(
    ("affinity", "quota", "cores", "text"),
    [
        (1, None, 1, "1 core"),
        (8, None, 8, "8 cores"),
        (8, 1.5, 1.5, "1.5 of 8 cores by the cgroup's quota"),
        (2, 3.0, 2, "2 of 2 cores by the cgroup's quota"),
    ],
)
def test_budgets(affinity: int, quota: float | None, cores: float, text: str) -> None:
    budget = CpuBudget(affinity, quota)
    assert budget.cores == cores
    assert str(budget) == text


def test_this_machine() -> None:
    assert cpu_budget().affinity == len(os.sched_getaffinity(0))
    assert 1 <= usable_cores() <= cpu_budget().affinity
