"""Whose doing it was that a process crashed."""

from __future__ import annotations

import os
import signal

import pytest

from engine import Device
from engine.devices import crashes
from engine.devices.crashes import Crashes
from tests.support import until


def test_what_was_at_work_alone_is_blamed() -> None:
    found = Crashes()
    assert found.judge("SIGSEGV", "").culprit == ""
    death = found.judge("SIGSEGV", "runs")
    assert (death.culprit, death.times) == ("runs", 1)
    assert str(death) == "its process died of SIGSEGV, while model 'runs' was at work"
    with found.loading("loads"):
        assert found.judge("SIGBUS", "").culprit == "loads"
        # A warm-up of what is loaded.
        assert found.judge("SIGBUS", "loads").times == 2
        assert found.judge("SIGSEGV", "runs").culprit == ""
        with found.loading("other"):
            assert found.judge("SIGSEGV", "").culprit == ""
    assert found.judge("SIGSEGV", "").culprit == ""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "exit code 1"])
def test_what_comes_from_outside_is_nobodys_doing(how: str) -> None:
    assert str(Crashes().judge(how, "runs")) == f"its process died of {how}"


def test_only_what_was_lately_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Crashes()
    often = [found.judge("SIGSEGV", "runs") for _ in range(crashes.MOST)]
    assert [death.is_once_too_often for death in often] == [False, False, True]
    assert not found.judge("SIGSEGV", "other").is_once_too_often
    monkeypatch.setattr(crashes, "WINDOW", 0.0)
    assert found.judge("SIGSEGV", "runs").times == 1


def test_how_a_process_ended_is_told(own_device: Device) -> None:
    for number in (signal.SIGSEGV, signal.SIGKILL):
        assert own_device.pid is not None
        os.kill(own_device.pid, number)
        until(lambda: not own_device.check())
        assert own_device.lost_by == f"its process died of {number.name}"
        own_device.recover()
