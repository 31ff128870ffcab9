"""Requests that fail keep what was measured of them."""

from __future__ import annotations

import json
import socket
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plugins.telemetry.tests.test_spans import Collector, told
from popgate_telemetry.exporters import spans_wanted
from tests.app.served import ServedGateway
from tests.support import until

#: Waits until a file is there, or fails.
WAITS = """
    import os, time

    class Waits:
        inputs = {"file": "BYTES[1]"}
        outputs = {"y": "INT32[1]"}

        def __call__(self, file):
            name = os.fsdecode(file[0])
            if not name:
                raise RuntimeError("of its own")
            open(name + ".begun", "w").close()
            while not os.path.exists(name):
                time.sleep(0.005)
            return {"y": [1]}
"""
PATH = "/v1/models/waits/infer"


class Waiting:
    """A server with a model that runs until it is told to end."""

    def __init__(self, root: Path, served: ServedGateway) -> None:
        self.root = root
        self.served = served
        self._numbers = iter(range(1000))
        self._threads: list[threading.Thread] = []

    def ask(self, request_id: str, file: str, **headers: str) -> int:
        mine = {"x-request-id": request_id, **headers}
        body = {"inputs": {"file": [file]}}
        return self.served.client.post(PATH, json=body, headers=mine).status_code

    def occupy(self) -> Path:
        """Have the model run; it ends when the file is there that is returned."""
        file = self.root / f"go-{next(self._numbers)}"
        self.begin(file.name, str(file))
        until(lambda: Path(f"{file}.begun").exists())
        return file

    def begin(self, request_id: str, file: str) -> None:
        thread = threading.Thread(target=self.ask, args=(request_id, file))
        thread.start()
        self._threads.append(thread)

    def end(self, *files: Path) -> None:
        for file in files:
            file.touch()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def record(self, request_id: str) -> Any:
        """What the page of requests has of one that is over."""
        found = self.served.client.get(f"/v1/requests/{request_id}")
        return found.json() if found.status_code == 200 else None


@pytest.fixture(params=[1, 2])
def waiting(
    request: pytest.FixtureRequest, tmp_path: Path, collector: Collector | None
) -> Iterator[Waiting]:
    folder = tmp_path / "models" / "waits"
    (folder / "1").mkdir(parents=True)
    (folder / "1" / "model.py").write_text(textwrap.dedent(WAITS))
    (folder / "config.toml").write_text(
        "max_queue_size = 16\ninstances = 1\n[warmup]\nenabled = false\n"
    )
    options = "--allow-python", "--log-format", "json", "--workers", str(request.param)
    variables: dict[str, str] = {}
    if collector is not None:
        variables |= collector.variables
    assert spans_wanted(variables) == (collector is not None)
    with ServedGateway(tmp_path / "models", *options, **variables) as served:
        yield Waiting(tmp_path, served.wait_ready())


@pytest.fixture
def collector() -> Iterator[Collector | None]:
    try:
        import opentelemetry.exporter.otlp.proto.http  # noqa: F401
    except ImportError:
        yield None
        return
    collector = Collector()
    yield collector
    collector.close()


def test_how_far_a_request_came(waiting: Waiting, collector: Collector | None) -> None:
    served = waiting.served
    assert waiting.ask("own-mistake", "") == 500
    assert waiting.ask("undecoded", 7) == 400  # type: ignore[arg-type]
    go = waiting.occupy()
    late = {"x-request-timeout": "0.1"}
    assert waiting.ask("late-in-queue", str(go), **late) == 504
    leave(served, "left-in-queue", go)
    until(lambda: waiting.record("left-in-queue") is not None)
    # Those that were given up stay in the queue until their turn comes.
    late["x-request-timeout"] = "0.01"
    count = 0
    while waiting.ask(f"full-{count}", str(go), **late) != 429:
        count += 1
    waiting.end(go)
    full = f"full-{count}"
    names = ["own-mistake", "undecoded", "late-in-queue", "left-in-queue", full]
    names.append("late-running")
    forever = str(waiting.root / "never")
    late["x-request-timeout"] = "0.3"
    assert waiting.ask("late-running", forever, **late) == 504
    for name in names:  # a worker that is busy tells of its requests later
        until(lambda: waiting.record(name) is not None)  # noqa: B023
    records = {name: waiting.record(name) for name in names}
    assert served.stop() == 0
    lines = [json.loads(line) for line in served.lines if line.startswith("{")]
    for name, record in records.items():
        line = [each for each in lines if each.get("request_id") == name][-1]
        phases = {n.removesuffix("_ms"): line[n] for n in line if n.endswith("_ms")}
        del phases["total"]
        assert phases == record["phases"], name
        assert line.get("device", "") == record["device"], name
    for name in ("undecoded", full):  # they came to no queue
        assert set(records[name]["phases"]) == {"receive", "decode"}
        assert records[name]["device"] == ""
    for name in ("late-in-queue", "left-in-queue"):
        record = records[name]
        assert record["device"].startswith("python:"), str(record)
        assert record["phases"]["queue"] > 0
        assert record["phases"]["compute"] == 0
    assert records["late-in-queue"]["phases"]["queue"] > 50  # of its 100 ms
    assert records["left-in-queue"]["status"] == 499
    for name in ("own-mistake", "late-running"):
        assert records[name]["phases"]["compute"] > 0, name
        assert records[name]["rows"] == 1
    if collector is None:
        return
    phases_of = {name: list(collector.of(name)[1]) for name in records}
    assert phases_of[full] == ["receive", "decode"]
    assert phases_of["late-in-queue"] == ["receive", "decode", "queue"]
    assert phases_of["late-running"] == ["receive", "decode", "queue", "batch"]
    assert phases_of["own-mistake"] == phases_of["late-running"]
    root, phases = collector.of("late-in-queue")
    assert told(phases["queue"], "popgate.device").startswith("python:")
    took = phases["queue"].end_time_unix_nano - phases["queue"].start_time_unix_nano
    assert took > 50_000_000
    for span in phases.values():
        assert root.start_time_unix_nano <= span.start_time_unix_nano
        assert span.end_time_unix_nano <= root.end_time_unix_nano


def leave(served: ServedGateway, request_id: str, file: Path) -> None:
    """Ask for something that is queued, and hang up."""
    body = json.dumps({"inputs": {"file": [str(file)]}})
    until(lambda: pending(served) == 1)
    host, port = served.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST {PATH} HTTP/1.1\r\nhost: x\r\nx-request-id: {request_id}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
            f"{body}".encode()
        )
        until(lambda: pending(served) == 2)


def pending(served: ServedGateway) -> int:
    """Return how many requests to the model have been accepted and not answered."""
    name = 'popgate_requests_in_flight{model="waits",version="1"} '
    lines = served.client.get("/metrics").text.splitlines()
    return int(next(x for x in lines if x.startswith(name)).removeprefix(name))
