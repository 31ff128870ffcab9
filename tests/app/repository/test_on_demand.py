"""Models loaded by their first request, and unloaded to make room; over HTTP.

Covers: app/codec/preamble.py, app/repository/memory_budget.py,
app/serving/timeout_policy.py, app/repository/loading/eviction.py.
"""

from __future__ import annotations

import gzip
import json
import threading
from pathlib import Path
from typing import Any

import msgpack
import pytest

from tests.app.python_sources import write
from tests.app.served import Serve, ServedGateway, add
from tests.engine import models

ROW = [[1.0, 2.0, 3.0, 4.0]]
AFFINE = [3.0, 5.0, 7.0, 9.0]
NAMES = ("a", "b", "c")
ENSEMBLE = """
[[ensemble.step]]
model = "a"
outputs = { output = "between" }
[[ensemble.step]]
model = "b"
inputs = { input = "between" }
"""


def fill(root: Path) -> None:
    """Models of a byte each, by their own account."""
    for name in (*NAMES, "two"):
        add(root, name, config="memory = 1")
    add(root, "two", models.mean_over_rows, version=2)
    add(root, "huge", config='memory = "1MiB"')
    (root / "broken.popef").write_bytes(b"not a container")
    (root / "e").mkdir()
    (root / "e" / "config.toml").write_text(ENSEMBLE)


@pytest.fixture(scope="module")
def lazy(serve: Serve) -> ServedGateway:
    """With room for two models."""
    return serve(fill, "--lazy", "--model-memory", "2")


def in_memory(gateway: ServedGateway) -> set[str]:
    listed = gateway.client.get("/v1/models").json()["models"]
    return {
        f"{m['name']}/{v['version']}"
        for m in listed
        for v in m["versions"]
        if v["in_memory"]
    }


def gauge(gateway: ServedGateway, name: str) -> float:
    for line in gateway.client.get("/metrics").text.splitlines():
        if line.startswith(name + " "):
            return float(line.split()[1])
    raise AssertionError(name)


def ask(gateway: ServedGateway, name: str, **headers: str) -> Any:
    path = f"/v1/models/{name}/infer"
    return gateway.client.post(path, json={"inputs": {"input": ROW}}, headers=headers)


def test_nothing_is_loaded_until_it_is_asked_for(lazy: ServedGateway) -> None:
    assert in_memory(lazy) == set()
    (device,) = lazy.client.get("/v1/devices").json()["devices"]
    assert device["models"] == 0
    for name in NAMES:
        assert lazy.client.get(f"/v2/models/{name}/ready").status_code == 200
    listed = lazy.client.post("/v2/repository/index", json={"ready": True}).json()
    assert {e["name"] for e in listed} >= set(NAMES)
    assert {e["reason"] for e in listed} == {"the first request to the model loads it"}
    assert lazy.infer("a", input=ROW)["output"] == AFFINE
    assert in_memory(lazy) == {"a/1"}
    assert gauge(lazy, "popgate_model_memory_bytes") == 1
    assert gauge(lazy, "popgate_model_memory_limit_bytes") == 2


def test_the_least_recently_used_is_evicted(lazy: ServedGateway) -> None:
    for name, there in (
        ("a", {"a/1"}),
        ("b", {"a/1", "b/1"}),
        ("a", {"a/1", "b/1"}),
        ("c", {"a/1", "c/1"}),
        ("b", {"b/1", "c/1"}),
    ):
        assert lazy.infer(name, input=ROW)["output"] == AFFINE
        # What was left by other tests goes first, being older.
        assert in_memory(lazy) >= there
        assert gauge(lazy, "popgate_model_memory_bytes") <= 2
    assert in_memory(lazy) == {"b/1", "c/1"}
    (device,) = lazy.client.get("/v1/devices").json()["devices"]
    assert device["models"] == 2


def test_a_version_makes_room_for_another_of_its_model(tmp_path: Path) -> None:
    """A request to one evicts the other, which is idle, though its model is locked."""
    fill(tmp_path)
    with ServedGateway(tmp_path, "--lazy", "--model-memory", "1") as gateway:
        gateway.wait_ready()
        for version in ("2", "1", "2"):
            path = f"/v1/models/two/versions/{version}/infer"
            answer = gateway.client.post(path, json={"inputs": {"input": ROW}})
            assert answer.status_code == 200, answer.text
            assert in_memory(gateway) == {f"two/{version}"}


def test_metadata_loads_too(lazy: ServedGateway) -> None:
    lazy.infer("b", input=ROW)
    lazy.infer("c", input=ROW)
    inputs = lazy.client.get("/v2/models/a").json()["inputs"]
    assert inputs == [{"name": "input", "datatype": "FP32", "shape": [-1, 4]}]
    assert "a/1" in in_memory(lazy)


def test_requests_that_come_together_load_once(lazy: ServedGateway) -> None:
    lazy.infer("b", input=ROW)
    lazy.infer("c", input=ROW)
    (before,) = lazy.client.get("/v1/devices").json()["devices"]
    answers: list[int] = []

    def one() -> None:
        answers.append(ask(lazy, "a").status_code)

    askers = [threading.Thread(target=one) for _ in range(12)]
    for asker in askers:
        asker.start()
    for asker in askers:
        asker.join()
    assert answers == [200] * 12
    (after,) = lazy.client.get("/v1/devices").json()["devices"]
    assert after["models"] == before["models"] == 2


def test_each_version_for_itself(lazy: ServedGateway) -> None:
    assert lazy.infer("two/versions/1", input=ROW)["output"] == AFFINE
    assert {v for v in in_memory(lazy) if v.startswith("two")} == {"two/1"}
    assert lazy.infer("two", input=ROW)["output"] == [0.0] * 4
    assert in_memory(lazy) == {"two/1", "two/2"}
    assert lazy.client.get("/v2/models/two").json()["versions"] == ["1", "2"]
    lazy.infer("a", input=ROW)
    lazy.infer("b", input=ROW)
    assert lazy.infer("two/versions/1", input=ROW)["output"] == AFFINE
    # The default is the highest all the same.
    assert lazy.infer("two", input=ROW)["output"] == [0.0] * 4


def test_what_never_fits_says_so(lazy: ServedGateway) -> None:
    answer = ask(lazy, "huge")
    assert answer.status_code == 503
    assert "needs about 1 MiB" in answer.json()["error"]
    assert "--model-memory" in answer.json()["error"]
    assert lazy.client.get("/v2/models/huge/ready").status_code == 503
    assert ask(lazy, "broken").status_code == 503
    assert ask(lazy, "nowhere").status_code == 404
    assert ask(lazy, "two/versions/9").status_code == 404


def test_another_version_answers_if_the_newest_cannot_be_loaded(tmp_path: Path) -> None:
    add(tmp_path, "m")
    (tmp_path / "m" / "2").mkdir()
    (tmp_path / "m" / "2" / "m.popef").write_bytes(b"not a container")
    with ServedGateway(tmp_path, "--lazy") as gateway:
        gateway.wait_ready()
        assert gateway.infer("m", input=ROW)["output"] == AFFINE
        assert in_memory(gateway) == {"m/1"}
        assert gateway.client.get("/v1/models").json()["models"][0]["version"] == "1"
        assert ask(gateway, "m/versions/2").status_code == 503


def test_nobody_in_use_is_unloaded(tmp_path: Path) -> None:
    for name in NAMES:
        add(tmp_path, name, config="memory = 1\ndevices = [1]")
    add(tmp_path, "slow", models.slow, config="memory = 1\ndevices = [0]")
    options = ("--lazy", "--model-memory", "2", "--devices", "cpu:2")
    with ServedGateway(tmp_path, *options) as gateway:
        gateway.wait_ready()
        gateway.infer("slow", count=1)
        answers: list[Any] = []

        def run() -> None:
            body = {"inputs": {"count": 40_000}}
            answers.append(gateway.client.post("/v1/models/slow/infer", json=body))

        runner = threading.Thread(target=run)
        runner.start()
        while not gateway.client.get("/v1/devices").json()["devices"][0]["in_flight"]:
            assert not answers
        for name in NAMES:
            assert gateway.infer(name, input=ROW)["output"] == AFFINE
        assert not answers
        assert in_memory(gateway) == {"c/1", "slow/1"}
        runner.join()
        assert answers[0].status_code == 200


def test_an_ensemble_leaves_and_comes_with_its_models(lazy: ServedGateway) -> None:
    twice = [7.0, 11.0, 15.0, 19.0]
    assert lazy.client.get("/v2/models/e/ready").status_code == 200
    assert lazy.infer("e", input=ROW)["output"] == twice
    assert in_memory(lazy) == {"a/1", "b/1", "e/1"}
    assert lazy.infer("c", input=ROW)["output"] == AFFINE
    assert "e/1" not in in_memory(lazy)
    assert lazy.infer("e", input=ROW)["output"] == twice
    assert in_memory(lazy) == {"a/1", "b/1", "e/1"}


@pytest.mark.parametrize("encoding", ["json", "msgpack", "binary", "gzip"])
def test_the_wait_ends_when_the_request_says_so(
    lazy: ServedGateway, encoding: str
) -> None:
    lazy.infer("b", input=ROW)
    lazy.infer("c", input=ROW)
    document = {"inputs": {"input": ROW}, "parameters": {"timeout": 100}}
    body, headers = json.dumps(document).encode(), {}
    if encoding == "msgpack":
        body, headers = msgpack.packb(document), {"content-type": "application/msgpack"}
    elif encoding == "binary":
        size = len(body)
        headers = {"inference-header-content-length": str(size)}
        body += bytes(16)
    elif encoding == "gzip":
        body, headers = gzip.compress(body), {"content-encoding": "gzip"}
    answer = lazy.client.post("/v1/models/a/infer", content=body, headers=headers)
    assert answer.status_code == 504, answer.text
    assert "still loading when the request's deadline passed" in answer.json()["error"]
    assert ask(lazy, "a").status_code == 200


@pytest.mark.parametrize("extra", ["timeout", "max_timeout", "level"])
def test_the_wait_ends_when_the_model_says_so(tmp_path: Path, extra: str) -> None:
    config, parameters = f"{extra} = 0.001\n", {}
    if extra == "level":
        parameters = {"priority": 1}
        config = "priority_levels = 2\n[[priority]]\nlevel = 1\ntimeout = 0.001\n"
    add(tmp_path, "m", config=config)
    body = {"inputs": {"input": ROW}, "parameters": parameters}
    with ServedGateway(tmp_path, "--lazy") as gateway:
        gateway.wait_ready()
        answer = gateway.client.post("/v1/models/m/infer", json=body)
        assert answer.status_code == 504, answer.text
        assert (
            "still loading when the request's deadline passed" in answer.json()["error"]
        )


def test_a_deadline_ends_the_wait_and_not_the_loading(lazy: ServedGateway) -> None:
    lazy.infer("b", input=ROW)
    lazy.infer("c", input=ROW)
    assert ask(lazy, "a", **{"x-request-timeout": "0.0001"}).status_code == 504
    assert ask(lazy, "a").status_code == 200
    lazy.infer("b", input=ROW)
    lazy.infer("c", input=ROW)
    assert ask(lazy, "a", **{"x-request-timeout": ""}).status_code == 400


def test_a_budget_without_lazy_loads_what_fits(tmp_path: Path) -> None:
    for name in NAMES:
        add(tmp_path, name, config="memory = 1")
    with ServedGateway(tmp_path, "--model-memory", "2") as gateway:
        gateway.wait_ready()
        assert len(in_memory(gateway)) == 2
        for name in NAMES:
            assert gateway.infer(name, input=ROW)["output"] == AFFINE
        assert in_memory(gateway) == {"b/1", "c/1"}
        assert gateway.client.post("/v1/models/a/load").status_code == 200
        assert in_memory(gateway) == {"a/1", "c/1"}
        assert gateway.client.post("/v1/models/b/unload").status_code == 200
        assert ask(gateway, "b").status_code == 503


SUM = """
class Sum:
    inputs = {"x": "INT32[1]", "before": "INT32[1]"}
    outputs = {"y": "INT32[1]", "after": "INT32[1]"}
    def __call__(self, x, before):
        return {"y": x + before, "after": x + before}
"""
SEQUENCE = """
memory = 1
[sequence]
max_idle = 600.0
[[sequence.state]]
input = "before"
output = "after"
"""


def test_a_model_with_an_open_sequence_stays(tmp_path: Path) -> None:
    fill(tmp_path)
    write(tmp_path, "sum", SUM, SEQUENCE)
    options = ("--lazy", "--model-memory", "2", "--allow-python")
    with ServedGateway(tmp_path, *options) as gateway:
        gateway.wait_ready()

        def total(x: int, flag: str = "") -> int:
            parameters = {"sequence_id": 7, **({flag: True} if flag else {})}
            body = {"inputs": {"x": [x]}, "parameters": parameters}
            answer = gateway.client.post("/v1/models/sum/infer", json=body)
            assert answer.status_code == 200, answer.text
            return int(answer.json()["outputs"][0]["data"][0])

        assert total(1000, "sequence_start") == 1000
        for name in ("a", "b", "a", "b"):
            assert ask(gateway, name).status_code == 200
        assert in_memory(gateway) == {"sum/1", "b/1"}
        assert total(1) == 1001
        assert total(1, "sequence_end") == 1002
        for name in ("a", "b"):
            assert ask(gateway, name).status_code == 200
        assert in_memory(gateway) == {"a/1", "b/1"}
