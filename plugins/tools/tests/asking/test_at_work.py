"""Commands at a server that is full, and commands that are interrupted.

Covers nothing of its own: cells of tests/matrix name these tests.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.cli.calls import Call
from tests.app.python_sources import write
from tests.app.served import POPGATE, ROOT, ServedGateway
from tests.engine import models
from tests.support import FOR_EVER, WAIT, until

#: Runs until a file is there, so its queue is full as long as a test wants. The warm-up
#: gives no path.
GATE = """
import os, time

class Gate:
    inputs = {"path": "BYTES[1]"}
    outputs = {"y": "INT32[1]"}
    def __call__(self, path):
        while path[0].startswith(b"/") and not os.path.exists(path[0]):
            time.sleep(0.01)
        return {"y": [1]}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root: Path = tmp_path_factory.mktemp("models")
    models.slow(root / "slow.popef")
    write(root, "gate", GATE, "max_queue_size = 1\n")
    with ServedGateway(root, "--allow-python") as gateway:
        yield gateway.wait_ready()


def in_flight(served: ServedGateway, model: str) -> int:
    text = served.client.get("/metrics").text
    found = re.search(rf'popgate_requests_in_flight{{model="{model}",.*}} (\d+)', text)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("command", ["infer", "batch", "perf"])
def test_an_interrupted_command_cancels_its_requests(
    served: ServedGateway, tmp_path: Path, command: str
) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(f"{FOR_EVER}\n")
    given = ["-i", str(rows)] if command == "batch" else ["-i", f"count={FOR_EVER}"]
    process = subprocess.Popen(
        [*POPGATE, command, "slow", *given, "--url", served.url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    with process:
        until(lambda: in_flight(served, "slow") >= 1)
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=WAIT)
    assert process.returncode == 130
    assert "Traceback" not in output
    until(lambda: in_flight(served, "slow") == 0)


def test_rows_that_a_full_server_refuses_are_sent_again(
    served: ServedGateway, popgate: Call, tmp_path: Path
) -> None:
    """By the next run; the rows with a result are not."""
    rows, target = tmp_path / "rows.jsonl", tmp_path / "out.jsonl"
    gate, opened = tmp_path / "gate", tmp_path / "opened"
    opened.touch()
    rows.write_text("".join(f"{json.dumps(str(p))}\n" for p in (opened, gate, gate)))
    held = subprocess.Popen(
        [*POPGATE, "infer", "gate", "-i", f"path={gate}", "--url", served.url],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    with held:
        until(lambda: in_flight(served, "gate") == 1)
        at = ("-i", rows, "-o", target, "--url", served.url)
        done = popgate("batch", "gate", *at, "--timeout", "1", "--retries", "0")
        assert done.code == 1
        errors = Path(f"{target}.errors.jsonl").read_text()
        assert "queue" in errors
        gate.touch()
        assert held.wait(WAIT) == 0
    done = popgate("batch", "gate", *at)
    assert done.code == 0, Path(f"{target}.errors.jsonl").read_text()
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert sorted(one["row"] for one in found) == [0, 1, 2]
