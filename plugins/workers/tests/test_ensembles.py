"""Ensembles that workers run, of models that they run."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import httpx

from plugins.workers.tests.conftest import metric, prefix
from tests.app.served import ServedGateway, add
from tests.engine import models
from tests.support import until

CHAIN = """
[ensemble]
[[ensemble.step]]
model = "first"
inputs = {input = "x"}
outputs = {output = "middle"}
[[ensemble.step]]
model = "affine"
inputs = {input = "middle"}
outputs = {output = "y"}
"""
ROW = {"inputs": {"x": [[1.0, 2.0, 3.0, 4.0]]}}


def ask(client: httpx.Client) -> httpx.Response:
    return client.post("/v1/models/chain/infer", json=ROW)


def counts(served: ServedGateway) -> list[float]:
    name = "nv_inference_request_success"
    names = "chain", "first", "affine"
    return [metric(served, name, model=model, version="1") for model in names]


def test_they_run_and_count_them_and_follow_their_members(
    served: ServedGateway, clients: dict[str, httpx.Client], repository: Path
) -> None:
    add(repository, "first")
    (repository / "chain" / "1").mkdir(parents=True)
    (repository / "chain" / "config.toml").write_text(CHAIN)
    for name in ("first", "chain"):
        loaded = served.client.post(f"/v1/models/{name}/load")
        assert loaded.status_code == 200, loaded.text

    def here(where: str, client: httpx.Client) -> bool:
        response = ask(client)
        return response.status_code == 200 and prefix(response) == where

    for where, client in clients.items():
        until(partial(here, where, client))
    before = counts(served)
    for client in clients.values():
        (found,) = ask(client).json()["outputs"]
        assert found["data"] == [7.0, 11.0, 15.0, 19.0]
        assert client.post("/v1/models/chain/infer", json={}).status_code == 400
    assert counts(served) == [count + 2 for count in before]
    # With a member that does not fit they say what the supervisor says.
    add(repository, "first", models.mean_over_rows)
    served.client.post("/v1/models/first/load").raise_for_status()
    for client in clients.values():
        assert "its member models have changed" in ask(client).text
    add(repository, "first")
    served.client.post("/v1/models/first/load").raise_for_status()
    for where, client in clients.items():
        until(partial(here, where, client))
    served.client.post("/v1/models/first/unload").raise_for_status()
    assert [ask(client).status_code for client in clients.values()] == [503, 503]
    served.client.post("/v1/models/first/load").raise_for_status()
    for where, client in clients.items():
        until(partial(here, where, client))


def test_what_they_do_not_run_is_said_when_it_is_loaded(
    served: ServedGateway, clients: dict[str, httpx.Client], repository: Path
) -> None:
    add(repository, "steady", config="[responses]\n")
    served.client.post("/v1/models/steady/load").raise_for_status()
    line = served.wait_line("model steady/1 runs in the supervisor")
    assert "[responses]" in line
