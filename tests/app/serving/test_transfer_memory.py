"""Memory of large bodies goes back to the system."""

from __future__ import annotations

import _thread
import subprocess
import sys

import pytest

from app.serving.transfer_memory import TransferMemory

# Small objects between the blocks, so that malloc returns no block by itself.
PROGRAM = """
import sys
import time
from pathlib import Path

from app.serving.transfer_memory import TransferMemory
from engine import keep_large_blocks


def used():
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if "RssAnon" in line)


assert keep_large_blocks(arenas=1, returns=False)
memory = TransferMemory(int(sys.argv[1]))
blocks, small = [], []
for _ in range(800):
    blocks.append(b"x" * 250_000)
    small.append(b"y" * 2000)
memory.add(200_000_000)
before = used()
for size in (100_000_000, 1):  # a little is kept for the next request
    blocks[-size // 250_000 :] = []
    memory.add(-size)
    assert used() > before - 20_000_000
blocks.clear()
memory.add(1 - 100_000_000)
while used() > before - 150_000_000:
    time.sleep(0.01)
"""


@pytest.mark.parametrize("limit", [1 << 30, 250_000_000], ids=["later", "at once"])
def test_freed_memory_is_returned(limit: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(limit)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


class Alone:
    """Stands for other processes that hold nothing."""

    def publish(self, part: int) -> int:
        return part


@pytest.mark.parametrize(
    ("total", "held", "waits"),
    [
        (None, 500 << 20, [5.0]),
        (None, 700 << 20, [0.0]),
        (Alone(), 200 << 20, [5.0]),
        (Alone(), 500 << 20, [0.0]),
        (Alone(), 100 << 20, []),
    ],
)
def test_one_of_several_processes_keeps_less(
    monkeypatch: pytest.MonkeyPatch, total: Alone | None, held: int, waits: list[float]
) -> None:
    started: list[float] = []
    monkeypatch.setattr(
        _thread, "start_new_thread", lambda _, given: started.extend(given)
    )
    memory = TransferMemory(1 << 30, total)
    memory.add(held)
    memory.add(-held)
    assert started == waits
