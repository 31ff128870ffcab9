"""Turns of an event loop that take long are named."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest

from popgate_telemetry.loop_watch import LIMIT, LoopWatch
from tests.app.served import ServedGateway


def compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def sleep() -> None:
    time.sleep(5 * LIMIT)


async def run(path: Path, *calls: object) -> None:
    loop = asyncio.get_running_loop()
    watching = LoopWatch(loop, path)
    for call in calls:
        await asyncio.sleep(0.05)
        assert callable(call)
        call()
    await asyncio.sleep(0.05)
    watching.stop()


def test_what_takes_long_is_named_and_what_waits_is_not(tmp_path: Path) -> None:
    path = tmp_path / "slow"
    asyncio.run(run(path, sleep))
    before = path.read_text() if path.exists() else ""
    assert "sleep" not in before
    asyncio.run(run(path, lambda: compute(10 * LIMIT)))
    (line,) = [line for line in path.read_text().splitlines() if "compute" in line]
    assert "test_loop_watch.py" in line
    assert " ms: " in line


@pytest.mark.parametrize("is_asked_for", [True, False])
def test_the_server_watches_its_loop_if_asked_to(
    tmp_path: Path, is_asked_for: bool
) -> None:
    """The watch handles SIGALRM. Nothing else does."""
    variables = {"POPGATE_LOOP_WATCH": str(tmp_path / "slow") if is_asked_for else ""}
    with ServedGateway(tmp_path, **variables) as served:
        # Its address is announced before the loop is watched; answers come after that.
        assert served.client.get("/v1/health/live").status_code == 200
        status = Path(f"/proc/{served.process.pid}/status").read_text()
        caught = int(status.partition("SigCgt:")[2].split()[0], 16)
        assert bool(caught >> (signal.SIGALRM - 1) & 1) is is_asked_for
