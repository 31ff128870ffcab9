"""Ensembles over HTTP: real models, real devices.

Covers: app/repository/loading/ensemble_loader.py, app/serving/tensor_fit.py,
app/repository/records.py,
plugins/ensembles/src/popgate_ensembles/runner.py,
plugins/ensembles/src/popgate_ensembles/shapes.py.
"""

from __future__ import annotations

import concurrent.futures
import json
from pathlib import Path
from typing import Any

import httpx
import msgpack
import numpy as np
import pytest
from onnx import helper

from engine.run_failures import MOST
from tests.app.served import Serve, ServedGateway, add
from tests.app.serving.test_keys_apart import entry
from tests.app.serving.test_scheduling import Asking, in_flight
from tests.engine import models
from tests.engine.loops import looping
from tests.engine.models import Port
from tests.support import FOR_EVER, until

ROW = [[1.0, 2.0, 3.0, 4.0]]

ENSEMBLES = {
    "chain": """
        [[ensemble.step]]
        model = "affine"
        inputs = { input = "START" }
        outputs = { output = "middle" }
        [[ensemble.step]]
        model = "affine"
        version = 1
        inputs = { input = "middle" }
        outputs = { output = "END" }
    """,
    "diamond": """
        [ensemble]
        inputs = ["x"]
        outputs = ["total", "left"]
        [[ensemble.step]]
        model = "add"
        inputs = { a = "left", b = "right" }
        outputs = { sum = "total" }
        [[ensemble.step]]
        model = "chain"
        inputs = { START = "x" }
        outputs = { END = "left" }
        [[ensemble.step]]
        model = "affine"
        inputs = { input = "x" }
        outputs = { output = "right" }
    """,
    "words": """
        [[ensemble.step]]
        model = "text"
        outputs = { output = "once" }
        [[ensemble.step]]
        model = "text"
        inputs = { input = "once" }
        outputs = { output = "twice" }
    """,
    "lookup": """
        [[ensemble.step]]
        model = "gather"
        outputs = { output = "pair" }
        [[ensemble.step]]
        model = "negate"
        inputs = { input = "pair" }
    """,
    "both": """
        [[ensemble.step]]
        model = "slow"
        outputs = { output = "one" }
        [[ensemble.step]]
        model = "slower"
        outputs = { output = "two" }
    """,
    "circle": """
        [[ensemble.step]]
        model = "circle"
        inputs = { x = "y" }
    """,
    "round": """
        [[ensemble.step]]
        model = "about"
    """,
    "about": """
        [[ensemble.step]]
        model = "round"
    """,
    "orphan": """
        [[ensemble.step]]
        model = "nobody"
    """,
    "misfit": """
        [[ensemble.step]]
        model = "text"
        outputs = { output = "words" }
        [[ensemble.step]]
        model = "affine"
        inputs = { input = "words" }
    """,
}


def fill(root: Path) -> None:
    models.affine(root / "affine.popef")
    models.text(root / "text.popef")
    models.gather(root / "gather.popef")
    # One on each device, whichever is loaded first: together they keep both busy.
    for device, name in enumerate(("slow", "slower")):
        config = f"devices = [{device}]\nmax_queue_size = {16 * device + 1}"
        add(root, name, models.slow, config=config)
    models.write_model(
        root / "add.popef",
        [helper.make_node("Add", ["a", "b"], ["sum"])],
        [Port("a", (-1, 4)), Port("b", (-1, 4))],
        [Port("sum", (-1, 4))],
        batching="rows",
    )
    models.write_model(
        root / "negate.popef",
        [helper.make_node("Neg", ["input"], ["output"])],
        [Port("input", (-1, -1))],
        [Port("output", (-1, -1))],
        batching="rows",
    )
    for name, text in ENSEMBLES.items():
        (root / name).mkdir()
        (root / name / "config.toml").write_text(text)


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> ServedGateway:
    return serve(fill, "--devices", "cpu:2")


def post(gateway: ServedGateway, path: str, **options: Any) -> httpx.Response:
    return gateway.client.post(f"/v1/models/{path}", **options)


def test_a_chain(gateway: ServedGateway) -> None:
    assert gateway.infer("chain", START=ROW) == {"END": [7.0, 11.0, 15.0, 19.0]}


def test_steps_beside_each_other_and_an_ensemble_in_another(
    gateway: ServedGateway,
) -> None:
    found = gateway.infer("diamond", x=ROW)
    assert found["left"] == [7.0, 11.0, 15.0, 19.0]
    assert found["total"] == [10.0, 16.0, 22.0, 28.0]


def test_strings(gateway: ServedGateway) -> None:
    assert gateway.infer("words", input=["ä", ""]) == {"twice": ["ä!!", "!!"]}


def test_every_encoding(gateway: ServedGateway) -> None:
    data = np.array(ROW, np.float32)
    expected = (data * 4 + 3).tobytes()
    body = {"inputs": {"START": ROW}}
    accept = {"Accept": "application/x-npy"}
    answer = post(gateway, "chain/infer", json=body, headers=accept)
    assert answer.content.endswith(expected)
    tensor: dict[str, Any] = {"name": "START", "shape": [1, 4], "datatype": "FP32"}
    packed = msgpack.packb({"inputs": [{**tensor, "data": data.tobytes()}]})
    kind = {"Content-Type": "application/msgpack"}
    answer = post(gateway, "chain/infer", content=packed, headers=kind)
    assert msgpack.unpackb(answer.content)["outputs"][0]["data"] == expected
    tensor["parameters"] = {"binary_data_size": 16}
    head = json.dumps({"inputs": [tensor]}).encode()
    answer = gateway.client.post(
        "/v2/models/chain/versions/1/infer",
        content=head + data.tobytes(),
        headers={"Inference-Header-Content-Length": str(len(head))},
    )
    assert answer.json()["outputs"][0]["data"] == [7.0, 11.0, 15.0, 19.0]


def test_metadata_like_any_model(gateway: ServedGateway) -> None:
    found = gateway.client.get("/v2/models/diamond").json()
    assert found["platform"] == "ensemble"
    assert found["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    assert [o["name"] for o in found["outputs"]] == ["total", "left"]
    config = gateway.client.get("/v2/models/chain/config").json()
    assert config["ensemble_scheduling"]["step"][1] == {
        "model_name": "affine",
        "model_version": 1,
        "input_map": {"input": "middle"},
        "output_map": {"output": "END"},
    }
    detail = gateway.client.get("/v1/models/chain").json()
    assert detail["state"] == "READY"
    assert post(gateway, "chain/infer", json=detail["example"]).status_code == 200


def test_requests_are_checked_like_any_other(gateway: ServedGateway) -> None:
    answer = post(gateway, "chain/infer", json={"inputs": {"START": [[1.0]]}})
    assert answer.status_code == 400
    assert "'START'" in answer.json()["error"]


def test_a_step_that_fails_says_which(gateway: ServedGateway) -> None:
    assert gateway.infer("lookup", index=[3]) == {"output": [-6.0, -7.0]}
    answer = post(gateway, "lookup/infer", json={"inputs": {"index": [99]}})
    assert answer.status_code == 400
    assert answer.json()["error"].startswith("step 1 (gather): ")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("circle", "step 1 (circle): 'circle' would run itself"),
        ("round", "'round' would run 'about', which runs it"),
        ("about", "'about' would run 'round', which runs it"),
        ("orphan", "step 1 (nobody): there is no model 'nobody'"),
        ("misfit", "is BYTES, but input 'input' of step 2 (affine) is FP32"),
    ],
)
def test_what_cannot_be_loaded(gateway: ServedGateway, name: str, text: str) -> None:
    found = gateway.client.get(f"/v1/models/{name}").json()
    assert found["state"] == "UNAVAILABLE"
    assert text in found["reason"]


def test_independent_steps_run_together_and_end_with_their_client(
    gateway: ServedGateway,
) -> None:
    asking = Asking(gateway, "both", {"inputs": {"count": FOR_EVER}})
    until(lambda: in_flight(gateway) == 2)
    asking.leave()
    until(lambda: in_flight(gateway) == 0)
    body = {"inputs": {"count": FOR_EVER}, "parameters": {"timeout": 50_000}}
    assert post(gateway, "both/infer", json=body).status_code == 504
    until(lambda: in_flight(gateway) == 0)
    assert len(gateway.infer("both", count=1)["two"]) == 128 * 128


def test_a_step_whose_queue_is_full_refuses_the_request(gateway: ServedGateway) -> None:
    """And the step beside it, which has room, is given up."""
    body = {"inputs": {"count": FOR_EVER}}
    holding = Asking(gateway, "slow", body)
    until(lambda: in_flight(gateway) == 1)
    answer = post(gateway, "both/infer", json=body)
    assert answer.status_code == 429
    assert answer.json()["error"].startswith("step 1 (slow): the queue of 'slow/1'")
    assert "retry-after" in answer.headers
    holding.leave()
    until(lambda: in_flight(gateway) == 0)


def test_requests_share_the_batches_of_the_members(gateway: ServedGateway) -> None:
    def counts() -> tuple[int, int]:
        document = gateway.client.get("/v2/models/affine/stats").json()
        (stats,) = document["model_stats"]
        return stats["inference_count"], stats["execution_count"]

    inferences, executions = counts()
    body = {"inputs": {"count": FOR_EVER}}
    blocking = [Asking(gateway, name, body) for name in ("slow", "slower")]
    until(lambda: in_flight(gateway) == 2)
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(gateway.infer, "chain", START=ROW) for _ in range(8)]
        until(lambda: in_flight(gateway) == 10)
        for one in blocking:
            one.leave()
        assert all(a.result()["END"] == [7.0, 11.0, 15.0, 19.0] for a in asked)
    more_inferences, more_executions = counts()
    assert more_inferences - inferences == 16
    assert more_executions - executions < 16


def test_a_member_that_goes_comes_and_changes(
    tmp_path: Path, gateway: ServedGateway
) -> None:
    root = tmp_path / "models"
    root.mkdir()
    models.affine(root / "affine.popef")
    (root / "chain").mkdir()
    (root / "chain" / "config.toml").write_text(ENSEMBLES["chain"])
    options = ("--model-control-mode", "explicit", "--load-model", "chain")
    with ServedGateway(root, *options) as served:
        served.wait_ready()
        # Its member was loaded for it.
        assert served.infer("chain", START=ROW)["END"][0] == 7.0
        assert post(served, "affine/unload").status_code == 200
        answer = post(served, "chain/infer", json={"inputs": {"START": ROW}})
        assert answer.status_code == 503
        assert "step 1 (affine)" in answer.json()["error"]
        found = served.client.get("/v1/models/chain").json()
        assert found["state"] == "UNAVAILABLE"
        assert found["reason"] == "step 1 (affine) needs a model that is not loaded"
        assert post(served, "affine/load").status_code == 200
        assert served.infer("chain", START=ROW)["END"][0] == 7.0
        models.affine(root / "new.popef", width=5).rename(root / "affine.popef")
        assert post(served, "affine/load").status_code == 200
        answer = post(served, "chain/infer", json={"inputs": {"START": ROW}})
        assert answer.status_code == 503
        assert "load the ensemble again" in answer.json()["error"]
        assert post(served, "chain/unload").status_code == 200
        assert post(served, "chain/load").status_code == 200
        wider = [[*ROW[0], 5.0]]
        assert served.infer("chain", START=wider)["END"][4] == 23.0
        assert served.stop() == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_member_becomes_a_model_with_sequences(tmp_path: Path, workers: str) -> None:
    add(tmp_path, "affine")
    (tmp_path / "chain").mkdir()
    (tmp_path / "chain" / "config.toml").write_text(ENSEMBLES["chain"])
    with ServedGateway(tmp_path, "--workers", workers, "--devices", "cpu:1") as served:
        served.wait_ready()
        (tmp_path / "affine" / "config.toml").write_text("[sequence]\n")
        assert post(served, "affine/load").status_code == 200

        def answer() -> tuple[int, str]:
            found = post(served, "chain/infer", json={"inputs": {"START": ROW}})
            return found.status_code, found.json().get("error", "")

        until(lambda: answer()[0] == 503)
        assert "step 1 (affine): its requests use [sequence] or" in answer()[1]


def test_a_member_that_failed_is_named(tmp_path: Path) -> None:
    """Whether it could not be loaded, or was given up since."""
    broken = tmp_path / "broken" / "1" / "m.popef"
    broken.parent.mkdir(parents=True)
    broken.write_bytes(b"not a container")
    add(tmp_path, "bad", looping, config="[warmup]\nenabled = false\n")
    for member in ("bad", "broken"):
        step = f"""
            [[ensemble.step]]
            model = "{member}"
            inputs = {{ x = "START" }}
            outputs = {{ y = "END" }}
        """
        (tmp_path / f"of_{member}").mkdir()
        (tmp_path / f"of_{member}" / "config.toml").write_text(step)
    outer = ENSEMBLES["round"].replace("about", "of_bad")
    (tmp_path / "outer").mkdir()
    (tmp_path / "outer" / "config.toml").write_text(outer)
    options = "--devices", "cpu:1", "--run-timeout", "1"
    with ServedGateway(tmp_path, *options) as served:
        served.wait_ready()

        def ask(name: str) -> tuple[int, str]:
            body = {"inputs": {"START": ROW}}
            answer = post(served, f"{name}/infer", json=body)
            return answer.status_code, answer.json()["error"]

        status, error = ask("of_broken")
        assert status == 503
        assert "step 1 (broken)" in error
        assert "not a PopGate container" in error
        for _ in range(MOST):
            status, error = ask("of_bad")
            assert (status, error[:13]) == (500, "step 1 (bad):")
        status, error = ask("of_bad")
        assert (status, error[:13]) == (503, "step 1 (bad):")
        assert "a run exceeded the limit of 1 s" in error
        status, error = ask("outer")
        assert (status, error[:30]) == (503, "step 1 (of_bad): step 1 (bad):")


def test_a_key_unloads_the_members_that_it_allows(tmp_path: Path) -> None:
    add(tmp_path, "affine")
    (tmp_path / "chain").mkdir()
    (tmp_path / "chain" / "config.toml").write_text(ENSEMBLES["chain"])
    keys = tmp_path / "keys.toml"
    keys.write_text(
        entry("chain", '["chain"]', "manage", "metadata")
        + entry("all", '["*"]', "manage", "metadata")
    )
    keys.chmod(0o600)
    with ServedGateway(tmp_path, "--keys", str(keys)) as served:
        client = served.wait_ready().client
        for key, left in (("chain", 200), ("all", 503)):
            client.headers["x-api-key"] = key
            assert client.post("/v1/models/chain/load").status_code == 200
            answer = client.post(
                "/v2/repository/models/chain/unload",
                json={"parameters": {"unload_dependents": True}},
            )
            assert answer.status_code == 200
            assert client.get("/v2/models/affine/ready").status_code == left


def test_members_leave_with_an_ensemble_of_a_load_request(tmp_path: Path) -> None:
    for name in ("affine", "made"):
        add(tmp_path, name)
    with ServedGateway(tmp_path, "--trust-loopback") as served:
        client = served.wait_ready().client
        step = {"model": "affine", "inputs": {"input": "a"}, "outputs": {"output": "b"}}
        config = json.dumps({"ensemble": {"step": [step]}})
        loaded = client.post(
            "/v2/repository/models/made/load", json={"parameters": {"config": config}}
        )
        assert loaded.status_code == 200, loaded.text
        answer = client.post(
            "/v2/repository/models/made/unload",
            json={"parameters": {"unload_dependents": True}},
        )
        assert answer.status_code == 200
        assert client.get("/v2/models/affine/ready").status_code == 503
