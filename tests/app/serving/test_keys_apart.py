"""A key reaches nothing of another key: neither its sequences nor its requests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.config.keys import digest_of
from tests.app.python_sources import write
from tests.app.served import ServedGateway, share_memory

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


def entry(name: str, models: str = '["*"]', *groups: str) -> str:
    digest = digest_of(name.encode()).hex()
    may = list(groups or ("infer", "metadata"))
    return (
        f'[[key]]\nname = "{name}"\nsha256 = "{digest}"\n'
        f"models = {models}\ngroups = {may}\n"
    )


@pytest.fixture(scope="module", params=[1, 2])
def served(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[ServedGateway]:
    root: Path = tmp_path_factory.mktemp("models")
    for name in ("sum", "mine"):
        write(root, name, SUM, SEQUENCE)
    write(root, "caller", CALLER)
    write(root, "broken", "no Python")
    keys = root.parent / f"keys-{request.param}.toml"
    text = entry("shop") + entry("other") + entry("third")
    for name in ("boss", "rival"):
        text += entry(name, '["*"]', "infer", "metadata", "manage")
    keys.write_text(text + entry("narrow", '["sum"]'))
    keys.chmod(0o600)
    options = ["--keys", str(keys), "--allow-python", *share_memory()]
    options += ["--base-path", "/pg"]
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


def get(served: ServedGateway, path: str, key: str = "") -> Any:
    headers = {"x-api-key": key} if key else {}
    response = served.client.get(path, headers=headers)
    return response.json() if response.status_code == 200 else response.status_code


def test_health_checks_give_no_reasons(served: ServedGateway) -> None:
    """They need no key. The key decides who reads why a model is not served."""
    for path in ("/v2/models/broken/ready", "/v2/models/broken/versions/1/ready"):
        answer = served.client.get(path)
        assert answer.status_code == 503
        assert answer.json()["error"].startswith("Request for unknown model: 'broken'")
        assert "GET /v1/models gives the reason" in answer.json()["error"]
    assert served.client.get("/v2/models/sum/ready").status_code == 200


def test_requests_of_others_are_not_shown(served: ServedGateway) -> None:
    """Neither those to models that a key may not see, nor the texts of any other."""
    sent = {}
    for model, key in (("mine", "shop"), ("sum", "shop"), ("sum", "narrow")):
        response = served.client.post(
            f"/v1/models/{model}/infer",
            json={"inputs": {"x": [1]}, "parameters": {"sequence_id": f"{key} only"}},
            headers={"x-api-key": key},
        )
        assert response.status_code == 400
        sent[model, key] = response.headers["x-request-id"]
    served.client.get("/v1/nothing", headers={"x-api-key": "shop"})

    def shown(key: str) -> dict[str, str]:
        failed = get(served, "/v1/requests?limit=200", key)["failed"]
        return {one["id"]: one["error"] for one in failed}

    found = shown("narrow")
    assert sent["mine", "shop"] not in found
    assert found[sent["sum", "shop"]] == ""
    assert "narrow only" in found[sent["sum", "narrow"]]
    assert not any("shop" in why or "nothing" in why for why in found.values())
    for base in ("", "/pg"):  # models that the server does not have
        asked = served.client.post(
            base + "/v1/models/none/infer", headers={"x-api-key": "shop"}
        )
        assert asked.headers["x-request-id"] in shown("other")
        assert asked.headers["x-request-id"] not in shown("narrow")
    for key in ("boss", "shop"):
        assert "shop only" in shown(key)[sent["mine", "shop"]]
    assert "narrow only" in shown("boss")[sent["sum", "narrow"]]
    assert get(served, f"/v1/requests/{sent['mine', 'shop']}", "narrow") == 404
    assert get(served, f"/v1/requests/{sent['sum', 'shop']}", "narrow")["error"] == ""

    done = ask(served, "shop", 1, "se", model="mine").headers["x-request-id"]
    assert get(served, f"/v1/requests/{done}", "shop")["model"] == "mine"
    assert get(served, f"/v1/requests/{done}", "narrow") == 404
    answered = get(served, "/v1/requests", "narrow")["answered"]
    assert {one["model"] for one in answered} <= {"sum"}


def test_lists_have_the_models_of_the_key(served: ServedGateway) -> None:
    def names(key: str) -> list[set[str]]:
        index = served.client.post("/v2/repository/index", headers={"x-api-key": key})
        return [
            {one["name"] for one in get(served, "/v1/models", key)["models"]},
            set(get(served, "/v2/models", key)["models"]) | {"broken"},
            {one["name"] for one in index.json()},
            {one["name"] for one in get(served, "/v2/models/stats", key)["model_stats"]}
            | {"broken"},
        ]

    every = {"sum", "mine", "caller", "broken"}
    assert names("shop") == [every] * 4
    narrow = names("narrow")
    assert narrow == [{"sum"}, {"sum", "broken"}, {"sum"}, {"sum", "broken"}]
    text = served.client.get("/v1/models/summ", headers={"x-api-key": "shop"}).text
    assert "did you mean" not in text
    ready = get(served, "/v1/health/ready")  # which needs no key
    assert ready == {"ready": True, "reasons": [], "loading": [], "failed": {}}


def test_shared_memory_belongs_to_the_key_that_registered_it(
    served: ServedGateway,
) -> None:
    name = f"popgate-test-{os.getpid()}"
    segment = Path("/dev/shm") / name
    segment.write_bytes(np.array([7, 0], np.int32).tobytes())

    def post(path: str, holder: str, **document: Any) -> httpx.Response:
        url = f"/v2/{path}"
        return served.client.post(url, json=document, headers={"x-api-key": holder})

    place = {"shared_memory_region": "r", "shared_memory_byte_size": 4}
    tensor = {"name": "x", "datatype": "INT32", "shape": [1], "parameters": place}
    flags = {"sequence_id": 1, "sequence_start": True, "sequence_end": True}
    region = "systemsharedmemory/region/r"
    try:
        done = post(f"{region}/register", "boss", key=name, offset=0, byte_size=8)
        assert done.status_code == 200, done.text
        asked = {"inputs": [tensor], "parameters": flags}
        for key in ("rival", "shop"):
            refused = post("models/sum/infer", key, **asked)
            assert refused.status_code == 404
            assert "Unable to find shared memory region: 'r'" in refused.text
        assert get(served, f"/v2/{region}/status", "rival") == 404
        assert get(served, "/v2/systemsharedmemory/status", "rival") == []
        post("systemsharedmemory/unregister", "rival")
        post(f"{region}/unregister", "rival")
        assert value(post("models/sum/infer", "boss", **asked)) == 7
        post(f"{region}/unregister", "boss")
        assert get(served, "/v2/systemsharedmemory/status", "boss") == []
    finally:
        segment.unlink()
