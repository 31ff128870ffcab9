"""Generators and coroutines as models in Python, behind HTTP.

Covers: plugins/stateful/src/popgate_stateful/kind.py,
plugins/python_models/src/popgate_python_worker/authors_loop.py.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.app.python_sources import COUNT, SEQUENCE, SUM, values, write
from tests.app.served import ServedGateway
from tests.support import until

WAITING = """
import asyncio

class Waiting:
    inputs = {"n": "INT32[1]"}
    outputs = {"i": "INT32[1]"}

    async def load(self, context):
        self.log = context.log
        self.lock = asyncio.Lock()

    async def __call__(self, n):
        for i in range(n[0]):
            async with self.lock:
                await asyncio.sleep(0)
            yield {"i": [i]}
"""
DOUBLE = """
import asyncio

class Double:
    inputs = {"n": "INT32[-1]"}
    outputs = {"twice": "INT32[-1]"}
    batching = True

    async def load(self, context):
        self.log = context.log

    async def __call__(self, n):
        try:
            while 0 in n:
                await asyncio.sleep(3600)
        except asyncio.CancelledError:
            self.log.info("was cancelled")
            raise
        return {"twice": sum(await asyncio.gather(*[self.one(n), self.one(n)]))}

    async def one(self, n):
        await asyncio.sleep(0)
        return n

    async def close(self):
        self.log.info("closed Double")
"""
ENSEMBLE = """
[ensemble]
inputs = ["n"]
outputs = ["out"]
[[ensemble.step]]
model = "{member}"
inputs = {{n = "n"}}
outputs = {{{output} = "out"}}
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("models")
    write(root, "count", COUNT)
    write(root, "waiting", WAITING, "instances = 2\n")
    write(root, "double", DOUBLE)
    write(root, "sum", SUM, SEQUENCE)
    write(root, "whole", "", ENSEMBLE.format(member="double", output="twice"))
    write(root, "parts", "", ENSEMBLE.format(member="waiting", output="i"))
    write(root, "wrong", COUNT, "[responses]\nmax_steps = 3\n")
    with ServedGateway(root, "--allow-python") as gateway:
        gateway.wait_ready()
        yield gateway


def events(gateway: ServedGateway, name: str, **body: Any) -> list[Any]:
    """The data of each event."""
    response = gateway.client.post(
        f"/v2/models/{name}/infer", json=body, headers={"Accept": "text/event-stream"}
    )
    assert response.status_code == 200, response.text
    lines = response.text.splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def count(n: int, text: str = "a") -> dict[str, Any]:
    return {"inputs": {"n": [n], "text": [text]}}


def test_a_generator_gives_several_responses(served: ServedGateway) -> None:
    found = events(served, "count", **count(3))
    assert [values(event) for event in found] == [[0, "a"], [1, "a"], [2, "a"]]
    metadata = served.client.get("/v2/models/count").json()
    assert [tensor["name"] for tensor in metadata["inputs"]] == ["n", "text"]
    assert [tensor["name"] for tensor in metadata["outputs"]] == ["i", "word"]
    config = served.client.get("/v2/models/count/config").json()
    assert config["model_transaction_policy"] == {"decoupled": True}
    assert events(served, "count", **count(0)) == []


def test_one_response_needs_no_stream(served: ServedGateway) -> None:
    assert served.infer("count", n=[1], text=["b"]) == {"i": [0], "word": ["b"]}
    response = served.client.post("/v2/models/count/infer", json=count(2, "twice"))
    assert response.status_code == 400
    assert "gave several responses" in response.text
    served.wait_line("closed twice")


def test_an_error_ends_the_stream_and_says_where(served: ServedGateway) -> None:
    found = events(served, "count", **count(5, "raise"))
    assert [values(event) for event in found[:2]] == [[0, "raise"], [1, "raise"]]
    assert "ValueError: in the middle; model.py, line" in found[2]["error"]
    assert len(found) == 3


def test_a_client_that_goes_ends_the_generator(served: ServedGateway) -> None:
    with served.client.stream(
        "POST",
        "/v2/models/count/infer",
        json=count(1 << 30, "gone"),
        headers={"Accept": "text/event-stream"},
    ) as response:
        lines = response.iter_lines()
        assert next(lines).startswith("data: ")
    served.wait_line("closed gone")


def test_a_deadline_ends_what_is_being_made(served: ServedGateway) -> None:
    response = served.client.post(
        "/v2/models/count/infer",
        json={**count(1, "hang"), "parameters": {"timeout": 300_000}},
    )
    assert response.status_code == 504
    served.wait_line("closed hang")
    assert events(served, "count", **count(1))


def test_a_process_that_dies_takes_its_generators_with_it(
    served: ServedGateway,
) -> None:
    found = events(served, "count", **count(5, "die"))
    assert [values(event)[0] for event in found[:-1]] == [0, 1]
    assert "was lost" in found[-1]["error"]

    def works() -> bool:
        response = served.client.post("/v2/models/count/infer", json=count(1))
        return response.status_code == 200

    until(works)


def test_asynchronous_generators_on_several_instances(served: ServedGateway) -> None:
    for n in (4, 1, 7):
        found = events(served, "waiting", inputs={"n": [n]})
        assert [values(event) for event in found] == [[i] for i in range(n)]


def test_a_coroutine_is_awaited_and_cancelled(served: ServedGateway) -> None:
    assert served.infer("double", n=[3, 4]) == {"twice": [6, 8]}
    response = served.client.post(
        "/v2/models/double/infer",
        json={"inputs": {"n": [0]}, "parameters": {"timeout": 300_000}},
    )
    assert response.status_code == 504
    served.wait_line("was cancelled")
    assert served.infer("double", n=[1]) == {"twice": [2]}


def test_sequences_have_their_state_and_number(served: ServedGateway) -> None:
    for x, start, total in ((1.0, True, 1.0), (2.0, False, 3.0), (4.0, False, 7.0)):
        response = served.client.post(
            "/v2/models/sum/infer",
            json={
                "inputs": {"x": [x]},
                "parameters": {"sequence_id": 7, "sequence_start": start},
            },
        )
        assert response.status_code == 200, response.text
        outputs = {o["name"]: o["data"] for o in response.json()["outputs"]}
        assert outputs == {"y": [total], "of": [7]}


def test_python_models_are_members_of_ensembles(served: ServedGateway) -> None:
    assert served.infer("whole", n=[5]) == {"out": [10]}


def test_what_cannot_be_is_refused_when_it_is_loaded(served: ServedGateway) -> None:
    index = served.client.post("/v2/repository/index").json()
    reasons = {model["name"]: model.get("reason", "") for model in index}
    assert "which an ensemble cannot run" in reasons["parts"]
    assert "a generator can have neither [sequence] nor [responses]" in reasons["wrong"]


def test_a_coroutine_that_is_unloaded_is_closed(served: ServedGateway) -> None:
    for name in ("whole", "double"):
        assert served.client.post(f"/v1/models/{name}/unload").status_code == 200
    served.wait_line("closed Double")


WARMUPS = {
    "none": "",
    "section": '[warmup]\ndata = "random"\n',
    "sample": '[[warmup.samples]]\ninputs.n.data = "ones"\ncount = 3\n',
}


@pytest.mark.parametrize("warmup", WARMUPS)
def test_the_generator_of_the_docs_warms_up(tmp_path: Path, warmup: str) -> None:
    """As it stands: it ends after what it counts to, and that is no failure."""
    page = (
        Path(__file__).resolve().parents[3] / "docs" / "reference" / "python-models.md"
    )
    text = page.read_text().partition("# models/counter/1/model.py\n")[2]
    code = text.partition("```")[0]
    write(tmp_path, "counter", code, WARMUPS[warmup])
    with ServedGateway(tmp_path, "--devices", "cpu:1", "--allow-python") as gateway:
        gateway.wait_ready()
        assert "warm-up with" not in gateway.output
        found = events(gateway, "counter", inputs={"n": [2]})
        assert [values(event) for event in found] == [[0], [1]]
