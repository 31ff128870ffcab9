"""Turns of an event loop that take long are named."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from app.plugins import LOOP_WATCHES, plugins
from popgate_telemetry.loop_watch import LIMIT, VARIABLE, watch


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def sleep() -> None:
    time.sleep(5 * LIMIT)


async def run(*calls: object) -> None:
    loop = asyncio.get_running_loop()
    watching = watch(loop)
    for call in calls:
        await asyncio.sleep(0.05)
        assert callable(call)
        call()
    await asyncio.sleep(0.05)
    watching.stop()


def test_what_takes_long_is_named_and_what_waits_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "slow"
    monkeypatch.setenv(VARIABLE, str(path))
    asyncio.run(run(sleep))
    before = path.read_text() if path.exists() else ""
    assert "sleep" not in before
    asyncio.run(run(lambda: compute(10 * LIMIT)))
    (line,) = [line for line in path.read_text().splitlines() if "compute" in line]
    assert "test_loop_watch.py" in line
    assert " ms: " in line


def test_the_server_finds_it() -> None:
    assert watch in plugins(LOOP_WATCHES).values()
