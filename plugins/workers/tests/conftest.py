"""A server with two workers, for all tests of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.app.python_sources import COUNT, write
from tests.app.served import ServedGateway, add, trace_to
from tests.engine import models
from tests.support import WAIT, until

ROWS = {"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}
#: Rows of 0 hold the run up until the file of their text is there; 13 raises, and 666
#: ends the process.
MIXED = """
import os, time

class Mixed:
    inputs = {"x": "INT32[-1]", "text": "BYTES[-1]"}
    outputs = {"rows": "INT32[-1]", "id": "BYTES[-1]"}
    batching = True

    def load(self, context):
        self.context = context

    def __call__(self, x, text):
        if 13 in x:
            raise ValueError("thirteen")
        if 666 in x:
            os._exit(1)
        for path in text[x == 0]:
            open(path + b".runs", "w").close()
            while not os.path.exists(path) and not self.context.cancelled:
                time.sleep(0.001)
        return {"rows": [len(x)] * len(x), "id": text}
"""
#: Says how long the parameters of its client are.
TOLD = """
class Told:
    inputs = {"x": "INT32[1]"}
    outputs = {"length": "INT32[1]"}
    def load(self, context):
        self.context = context
    def __call__(self, x):
        return {"length": [len(p.get("text", "")) for p in self.context.parameters]}
"""
#: Calls `told` with parameters of its own.
TELLING = """
from popgate import Model

class Telling(Model):
    inputs = {"x": "INT32[1]"}
    outputs = {"length": "INT32[1]"}
    def load(self, context):
        self.told = context.models["told"]
    def __call__(self, x):
        return self.told.call({"x": x}, parameters={"text": "four"})
"""


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    add(root, "affine")
    add(root, "slow", models.slow)
    write(root, "mixed", MIXED)
    write(root, "count", COUNT)
    write(root, "told", TOLD)
    write(root, "telling", TELLING)
    return root


@pytest.fixture(scope="session")
def served(repository: Path) -> Iterator[ServedGateway]:
    options = (
        "--workers",
        "2",
        "--trust-loopback",
        "--device-timeout",
        "5",
        "--allow-python",
    )
    trace = trace_to(repository.parent / "traces.json")
    log = repository.parent / "log.toml"
    log.touch()
    more = *trace, "--log-config", str(log)
    with ServedGateway(repository, *options, *more) as found:
        yield found.wait_ready()


def connect(served: ServedGateway) -> httpx.Client:
    return httpx.Client(base_url=served.url, timeout=WAIT, trust_env=False)


def infer(client: httpx.Client, name: str = "affine") -> httpx.Response:
    return client.post(f"/v1/models/{name}/infer", json=ROWS)


def process_of(client: httpx.Client, name: str = "affine") -> str:
    """Which process has answered: the ids that it makes begin alike."""
    response = infer(client, name)
    assert response.status_code == 200, response.text
    return response.headers["x-request-id"].partition("-")[0]


def metric(served: ServedGateway, name: str, **labels: str) -> float:
    inside = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    text = served.client.get("/metrics").text
    (line,) = (x for x in text.splitlines() if x.startswith(f"{name}{{{inside}}}"))
    return float(line.rpartition(" ")[2])


@pytest.fixture
def clients(served: ServedGateway) -> Iterator[dict[str, httpx.Client]]:
    """A connection to each worker, once both run the model themselves."""
    found: dict[str, httpx.Client] = {}
    supervisor = prefix(served.client.get("/v1/health/live"))

    def both() -> bool:
        client = connect(served)
        where = process_of(client)
        if where == supervisor or where in found:
            client.close()
        else:
            found[where] = client
        return len(found) == 2

    until(both)
    yield found
    for client in found.values():
        client.close()


def prefix(response: httpx.Response) -> str:
    return str(response.headers["x-request-id"].partition("-")[0])
