"""A key reaches nothing of another key: neither its sequences nor its requests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from app.config.keys import digest_of
from tests.app.served import ServedGateway
from tests.app.serving.test_generators import write

SUM = """
class Sum:
    inputs = {"x": "INT32[1]", "before": "INT32[1]"}
    outputs = {"y": "INT32[1]", "after": "INT32[1]"}
    def __call__(self, x, before):
        return {"y": x + before, "after": x + before}
"""
SEQUENCE = """
[sequence]
max_idle = 600.0
max_sequences = 6
[[sequence.state]]
input = "before"
output = "after"
"""
#: A model that hands its clients' sequence ids on.
CALLER = """
class Caller:
    inputs = {"x": "INT32[1]"}
    outputs = {"y": "INT32[1]"}
    def load(self, context):
        self.context = context
    def __call__(self, x):
        (given,) = self.context.parameters
        model = self.context.models["sum"]
        return {"y": model.call({"x": x}, parameters=given)["y"]}
"""


def entry(name: str, models: str = '["*"]') -> str:
    digest = digest_of(name.encode()).hex()
    return f'[[key]]\nname = "{name}"\nsha256 = "{digest}"\nmodels = {models}\n'


@pytest.fixture(scope="module", params=[1, 2])
def served(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServedGateway]:
    root: Path = tmp_path_factory.mktemp("models")
    for name in ("sum", "mine"):
        write(root, name, SUM, SEQUENCE)
    write(root, "caller", CALLER)
    keys = root.parent / f"keys-{request.param}.toml"
    text = entry("shop") + entry("other") + entry("third")
    keys.write_text(text + entry("narrow", '["sum"]'))
    keys.chmod(0o600)
    options = ["--keys", str(keys), "--allow-python"]
    if request.param > 1:
        options += ["--workers", str(request.param)]
    with ServedGateway(root, *options) as found:
        yield found.wait_ready()


def ask(
    served: ServedGateway, key: str, x: int, flags: str = "", *,
    number: int = 42, model: str = "sum",
) -> httpx.Response:  # fmt: skip
    parameters: dict[str, Any] = {"sequence_id": number}
    parameters |= {"sequence_start": "s" in flags, "sequence_end": "e" in flags}
    return served.client.post(
        f"/v1/models/{model}/infer",
        json={"inputs": {"x": [x]}, "parameters": parameters},
        headers={"x-api-key": key},
    )


def value(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    outputs = {out["name"]: out["data"] for out in response.json()["outputs"]}
    return int(outputs["y"][0])


@pytest.mark.parametrize("model", ["sum", "caller"])
def test_a_sequence_belongs_to_the_key_that_started_it(
    served: ServedGateway, model: str
) -> None:
    assert value(ask(served, "shop", 1000, "s", model=model)) == 1000
    refused = ask(served, "other", 0, model=model)
    assert refused.status_code == 400
    assert "must specify the START flag" in refused.text
    assert value(ask(served, "other", 5, "s", model=model)) == 5
    assert value(ask(served, "shop", 1, model=model)) == 1001
    assert value(ask(served, "other", 1, "e", model=model)) == 6
    assert value(ask(served, "shop", 1, "e", model=model)) == 1002


def test_a_key_leaves_sequences_to_others(served: ServedGateway) -> None:
    for number in (1, 2, 3):
        assert value(ask(served, "shop", 1, "s", number=number)) == 1
    refused = ask(served, "shop", 1, "s", number=4)
    assert refused.status_code == 429
    assert "this key has 3 sequences of model 'sum'" in refused.text
    assert int(refused.headers["retry-after"]) > 0
    assert value(ask(served, "other", 1, "s", number=1)) == 1
    assert value(ask(served, "third", 1, "s", number=1)) == 1
    for key, number in (("shop", 1), ("shop", 2), ("shop", 3), ("other", 1)):
        ask(served, key, 1, "e", number=number)
    assert value(ask(served, "third", 1, "e", number=1)) == 2
