"""Shares of the cores, and whether to spin."""

from __future__ import annotations

import pytest

from engine.devices.cores import CpuBudget
from engine.devices.thread_plan import SPIN_US, ThreadPlan


@pytest.mark.parametrize(
    ("cores", "quota", "devices", "reserved", "threads"),
    [
        (1, None, 1, 1, 1),
        (2, None, 1, 1, 1),
        (8, None, 1, 1, 7),
        (8, None, 2, 1, 3),
        (8, None, 16, 1, 1),
        (8, None, 1, 0, 8),
        (8, 3.5, 1, 1, 2),
        (8, 0.5, 1, 1, 1),
        (64, 4.0, 3, 0, 1),
    ],
)
def test_shares(
    cores: int, quota: float | None, devices: int, reserved: int, threads: int
) -> None:
    plan = ThreadPlan(CpuBudget(cores, quota), devices, reserved)
    assert plan.threads() == threads
    assert plan.threads(devices) >= plan.threads()


@pytest.mark.parametrize(
    ("cores", "quota", "devices", "spins"),
    [
        (1, None, 1, False),
        (8, 1.5, 1, False),
        (2, None, 1, True),
        (2, None, 2, False),
        (8, 2.5, 2, False),
        (8, None, 4, True),
    ],
)
def test_spinning(
    monkeypatch: pytest.MonkeyPatch,
    cores: int,
    quota: float | None,
    devices: int,
    spins: bool,
) -> None:
    monkeypatch.delenv("POPGATE_SPIN_US", raising=False)
    plan = ThreadPlan(CpuBudget(cores, quota), devices, 1)
    assert plan.spin_us == (SPIN_US if spins else 0)


@pytest.mark.parametrize(
    ("text", "cores", "spin"),
    [("0", 8, 0), ("50", 2, 50), ("99999", 8, 10_000), ("50", 1, 0), ("x", 8, SPIN_US)],
)
def test_the_environment(
    monkeypatch: pytest.MonkeyPatch, text: str, cores: int, spin: int
) -> None:
    monkeypatch.setenv("POPGATE_SPIN_US", text)
    assert ThreadPlan(CpuBudget(cores), 2, 1).spin_us == spin


def test_the_words() -> None:
    plan = ThreadPlan(CpuBudget(8, 2.5), 2, 1)
    assert str(plan) == (
        "2.5 of 8 cores by the cgroup's quota: 1 for HTTP, 1 thread for each of 2 "
        "devices"
    )
    assert str(ThreadPlan(CpuBudget(4), 1)) == "4 cores: 4 threads for the device"


def test_a_limit_is_shared_whatever_the_machine_has() -> None:
    plan = ThreadPlan(CpuBudget(64), 2, 1, limit=6)
    assert (plan.threads(), plan.threads(2)) == (3, 6)
    assert ThreadPlan(CpuBudget(2), 4, 1, limit=1).threads() == 1
