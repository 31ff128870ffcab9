"""A swap, or an unload, waits for streams that run.

Covers: app/repository/repository.py, app/repository/served_models.py,
app/repository/loading/version_loader.py.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.app.python_sources import values, write
from tests.app.served import ServedGateway
from tests.support import until

GENERATOR = """
import os, time

class Counter:
    inputs = {"n": "INT32[1]"}
    outputs = {"i": "INT32[1]"}

    def load(self, context):
        self.gate = context.config["gate"]
        self.plus = context.config["plus"]

    def __call__(self, n):
        for i in range(n[0]):
            while i == 3 and not os.path.exists(self.gate):
                time.sleep(0.01)
            yield {"i": [i + self.plus]}
"""
STEPS = """
import os, time

class Counter:
    inputs = {"n": "INT32[1]", "step": "INT32[1]"}
    outputs = {"i": "INT32[1]", "more": "BOOL[1]"}

    def load(self, context):
        self.gate = context.config["gate"]
        self.plus = context.config["plus"]

    def __call__(self, n, step):
        while step[0] == 3 and not os.path.exists(self.gate):
            time.sleep(0.01)
        return {"i": step + self.plus, "more": step + 1 < n}
"""
KINDS = {
    "generator": (GENERATOR, ""),
    "responses": (STEPS, '[responses]\nstep = "step"\nmore = "more"\n'),
}
EVENTS = 8


def config(kind: str, gate: Path, plus: int) -> str:
    parameters = f'[parameters]\ngate = "{gate}"\nplus = {plus}\n'
    # One that waits at the gate, and one that says which options hold.
    return (
        "instances = 2\n" + KINDS[kind][1] + "[warmup]\nenabled = false\n" + parameters
    )


def lines(response: httpx.Response) -> Iterator[Any]:
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line[6:])


@pytest.mark.parametrize("end", ["swap", "unload"])
@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_runs_comes_to_its_end(
    tmp_path: Path, kind: str, workers: str, end: str
) -> None:
    root, gate = tmp_path / "models", tmp_path / "gate"
    write(root, "count", KINDS[kind][0], config(kind, gate, 0))
    options = "--devices", "cpu:1", "--allow-python", "--workers", workers
    with ServedGateway(root, *options) as gateway:
        gateway.wait_ready()
        statuses: list[int] = []

        def change() -> None:
            verb = "load" if end == "swap" else "unload"
            answer = gateway.client.post(f"/v1/models/count/{verb}", timeout=60)
            statuses.append(answer.status_code)

        def has_changed() -> bool:
            if end == "unload":
                answer = gateway.client.get("/v1/models/count")
                return bool(answer.json()["state"] != "READY")
            return bool(gateway.infer("count", n=[1])["i"] == [100])

        body = {"inputs": {"n": [EVENTS]}}
        headers = {"Accept": "text/event-stream"}
        url = "/v2/models/count/infer"
        with gateway.client.stream("POST", url, json=body, headers=headers) as stream:
            events = lines(stream)
            found = [values(next(events)) for _ in range(3)]
            (root / "count" / "config.toml").write_text(config(kind, gate, 100))
            changing = threading.Thread(target=change)
            changing.start()
            until(has_changed)
            gate.touch()
            found += [values(event) for event in events]
        changing.join()
        assert found == [[i] for i in range(EVENTS)]
        assert statuses == [200]


def test_a_stream_without_end_is_cut_at_the_time_limit(tmp_path: Path) -> None:
    root, gate = tmp_path / "models", tmp_path / "gate"
    endless = GENERATOR.replace("i == 3 and not os", "not os").replace(
        "range(n[0])", "iter(int, 1)"
    )
    gate.touch()
    write(root, "count", endless, config("generator", gate, 0))
    options = "--devices", "cpu:1", "--allow-python", "--shutdown-timeout", "0.5"
    with ServedGateway(root, *options) as gateway:
        gateway.wait_ready()
        body = {"inputs": {"n": [1]}}
        headers = {"Accept": "text/event-stream"}
        url = "/v2/models/count/infer"
        with gateway.client.stream("POST", url, json=body, headers=headers) as stream:
            events = lines(stream)
            next(events)
            statuses: list[int] = []

            def unload() -> None:
                answer = gateway.client.post("/v1/models/count/unload", timeout=60)
                statuses.append(answer.status_code)

            unloading = threading.Thread(target=unload)
            unloading.start()
            *_, last = events
            assert "error" in last
        unloading.join()
        assert statuses == [200]
