"""Ensembles of a ``config.pbtxt``: with rows and without, reshaped, asked for in part.

As Triton's generators write them: `nop` steps of any size, steps with and without a
batch, fans.

Covers: app/config/reshape.py,
plugins/onnx/src/popgate_onnx/graph_changes.py,
plugins/onnx/src/popgate_onnx/reshapes.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from onnx import helper

from plugins.triton.tests.folders import (
    ensemble,
    identity,
    tensors,
    write_config,
    write_onnx,
)
from tests.app.served import Serve, ServedGateway


def chain(*models: str) -> list[tuple[str, dict[str, str], dict[str, str]]]:
    """X through models, one after the other, to Y."""
    names = ["X", *(f"t{n}" for n in range(1, len(models))), "Y"]
    return [
        (model, {"INPUT0": names[n]}, {"OUTPUT0": names[n + 1]})
        for n, model in enumerate(models)
    ]


def one(root: Path, name: str, steps: Any, x: str, y: str, batch: int = 0) -> None:
    ensemble(
        root, name, steps, {"X": ("FP32", x)}, {"Y": ("FP32", y)}, max_batch_size=batch
    )


def _negate(root: Path, name: str, version: int, more: str = "") -> None:
    write_onnx(
        root,
        name,
        [helper.make_node("Neg", ["INPUT0"], ["OUTPUT0"])],
        [("INPUT0", "FLOAT", [None, None])],
        [("OUTPUT0", "FLOAT", [None, None])],
        version=version,
    )
    both = tensors("input", {"INPUT0": ("FP32", "-1")}) + tensors(
        "output", {"OUTPUT0": ("FP32", "-1")}
    )
    write_config(root, name, f"max_batch_size: 8 {both} {more}")


def _fill(root: Path) -> None:
    identity(root, "nop", max_batch_size=1024)
    identity(root, "nop2", shape=(None, None, None), dims="-1, -1", max_batch_size=16)
    identity(root, "one", shape=(16,), dims="16", max_batch_size=0)
    identity(root, "many", shape=(None, 16), dims="-1, 16", max_batch_size=0)
    identity(root, "cube", shape=(None, 4, 1, 2), dims="4, 1, 2")
    for version in (1, 2):
        policy = "version_policy { all { } }"
        _negate(root, "neg", version, policy)
    one(root, "flat_over_rows", chain("nop"), "16", "16")
    one(root, "free_over_rows", chain("nop"), "-1", "-1")
    one(root, "table_over_rows", chain("nop"), "-1, 16", "-1, 16")
    one(root, "rows_over_flat", chain("one"), "16", "16", 8)
    one(root, "rows_over_table", chain("many"), "16", "16", 8)
    one(root, "mixed", chain("nop", "one", "nop"), "16", "16")
    one(root, "mixed_rows", chain("nop", "one", "nop"), "16", "16", 8)
    inner = [("flat_over_rows", {"X": "X"}, {"Y": "Y"})]
    one(root, "inner", inner, "16", "16", 4)
    eight = "dims: [ 8 ] reshape { shape: [ 4, 1, 2 ] }"
    free = "dims: [ -1 ] reshape { shape: [ 1, -1 ] }"
    one(root, "reshaped", chain("cube"), eight, eight, 8)
    one(root, "free_reshaped", chain("nop2"), free, free, 8)
    one(root, "half_reshaped", chain("cube"), eight, "4, 1, 2", 8)
    ensemble(
        root,
        "fan",
        [("neg:1", {"INPUT0": "X"}, {"OUTPUT0": "A"}),
         ("neg:2", {"INPUT0": "X"}, {"OUTPUT0": "B"}),
         ("nop", {"INPUT0": "B"}, {"OUTPUT0": "C"})],
        {"X": ("FP32", "2")},
        {"A": ("FP32", "2"), "C": ("FP32", "2")},
        max_batch_size=8,
    )  # fmt: skip
    ensemble(
        root,
        "fan_of_fan",
        [("fan", {"X": "X"}, {"A": "A", "C": "C"})],
        {"X": ("FP32", "2")},
        {"A": ("FP32", "2"), "C": ("FP32", "2")},
        max_batch_size=8,
    )
    write_onnx(
        root,
        "with_default",
        [helper.make_node("Add", ["INPUT0", "BIAS"], ["OUTPUT0"])],
        [("INPUT0", "FLOAT", [None, 2]), ("BIAS", "FLOAT", [None, 2])],
        [("OUTPUT0", "FLOAT", [None, 2])],
        initializers=[helper.make_tensor("BIAS", 1, [1, 2], [10.0, 20.0])],
    )
    ins = {"INPUT0": ("FP32", "2"), "BIAS": ("FP32", "dims: [ 2 ] optional: true")}
    out = tensors("output", {"OUTPUT0": ("FP32", "2")})
    write_config(
        root, "with_default", f"max_batch_size: 8 {tensors('input', ins)} {out}"
    )
    one(root, "left_out", chain("with_default"), "2", "2", 8)
    # What cannot be.
    one(root, "other_size", chain("one"), "8", "16")
    one(root, "other_output", chain("one"), "16", "8")
    one(root, "too_many", chain("nop2"), "-1, -1", "-1, -1", 32)
    ensemble(root, "other_type", chain("one"), {"X": ("INT32", "16")},
             {"Y": ("FP32", "16")})  # fmt: skip
    ensemble(root, "other_result", chain("one"), {"X": ("FP32", "16")},
             {"Y": ("INT32", "16")})  # fmt: skip
    wrong = "dims: [ 9 ] reshape { shape: [ 4, 1, 2 ] }"
    one(root, "misfit", chain("cube"), wrong, wrong, 8)


@pytest.fixture(scope="module")
def served(serve: Serve) -> ServedGateway:
    return serve(_fill)


def post(served: ServedGateway, name: str, shape: list[int], **more: Any) -> Any:
    count = 1
    for dim in shape:
        count *= dim
    x = {"name": "X", "datatype": "FP32", "shape": shape, "data": list(range(count))}
    body = {"inputs": [x], **more}
    return served.client.post(f"/v2/models/{name}/infer", json=body)


def shown(served: ServedGateway, name: str) -> tuple[list[int], list[int], int]:
    metadata = served.client.get(f"/v2/models/{name}").json()
    config = served.client.get(f"/v2/models/{name}/config").json()
    (x,), (y,) = metadata["inputs"], metadata["outputs"]
    return x["shape"], y["shape"], config["max_batch_size"]


@pytest.mark.parametrize(
    ("name", "face", "shape"),
    [
        ("flat_over_rows", ([16], [16], 0), [16]),
        ("free_over_rows", ([-1], [-1], 0), [5]),
        ("table_over_rows", ([-1, 16], [-1, 16], 0), [3, 16]),
        ("rows_over_flat", ([-1, 16], [-1, 16], 8), [1, 16]),
        ("rows_over_table", ([-1, 16], [-1, 16], 8), [3, 16]),
        ("mixed", ([16], [16], 0), [16]),
        ("mixed_rows", ([-1, 16], [-1, 16], 8), [1, 16]),
        ("inner", ([-1, 16], [-1, 16], 4), [1, 16]),
        ("reshaped", ([-1, 8], [-1, 8], 8), [3, 8]),
        ("free_reshaped", ([-1, -1], [-1, -1], 8), [2, 5]),
    ],
)
def test_with_and_without_rows(
    served: ServedGateway, name: str, face: Any, shape: list[int]
) -> None:
    assert shown(served, name) == face
    response = post(served, name, shape)
    assert response.status_code == 200, response.text
    (y,) = response.json()["outputs"]
    count = len(y["data"])
    assert (y["shape"], y["data"]) == (shape, list(map(float, range(count))))


def test_only_one_side_is_reshaped(served: ServedGateway) -> None:
    assert shown(served, "half_reshaped") == ([-1, 8], [-1, 4, 1, 2], 8)
    (y,) = post(served, "half_reshaped", [2, 8]).json()["outputs"]
    assert y["shape"] == [2, 4, 1, 2]


def test_what_a_step_may_leave_out_is_left_out(served: ServedGateway) -> None:
    (y,) = post(served, "left_out", [2, 2]).json()["outputs"]
    assert y["data"] == [10.0, 21.0, 12.0, 23.0]


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("flat_over_rows", [1, 16], "Expected [16], got [1,16]"),
        ("rows_over_flat", [3, 16], "step 1 (one): input 'INPUT0' expects shape [16]"),
        ("rows_over_table", [9, 16], "batch-size must be <= 8"),
        ("reshaped", [1, 4, 1, 2], "Expected [-1,8], got [1,4,1,2]"),
    ],
)
def test_what_is_refused(
    served: ServedGateway, name: str, shape: list[int], message: str
) -> None:
    response = post(served, name, shape)
    assert response.status_code == 400
    assert message in response.json()["error"]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "other_size",
            "the input that config.pbtxt declares has shape [8], but input 'INPUT0' of",
        ),
        (
            "other_output",
            "output 'Y' is declared with shape [8], but output 'OUTPUT0' of step 1",
        ),
        ("too_many", "max_batch_size is 32, but step 1 (nop2) takes at most 16 rows"),
        (
            "other_type",
            "'X' is declared as INT32, but input 'INPUT0' of step 1 (one) is",
        ),
        (
            "other_result",
            "'Y' is declared as INT32, but output 'OUTPUT0' of step 1 (one)",
        ),
        ("misfit", "reshape of 'X' is impossible: [9] and [4, 1, 2] differ in size"),
    ],
)
def test_what_cannot_be_loaded(served: ServedGateway, name: str, message: str) -> None:
    failed = served.client.get("/v1/health/ready").json()["failed"]
    assert message in failed[name]


def executions(served: ServedGateway) -> dict[str, int]:
    stats = served.client.get("/v2/models/stats").json()["model_stats"]
    return {f"{s['name']}:{s['version']}": s["execution_count"] for s in stats}


@pytest.mark.parametrize("name", ["fan", "fan_of_fan"])
def test_only_what_is_asked_for_is_run(served: ServedGateway, name: str) -> None:
    before = executions(served)

    def ran() -> list[int]:
        now = executions(served)
        return [now[m] - before[m] for m in ("neg:1", "neg:2", "nop:1")]

    response = post(served, name, [1, 2], outputs=[{"name": "A"}])
    (a,) = response.json()["outputs"]
    assert (a["name"], a["data"]) == ("A", [0.0, -1.0])
    assert ran() == [1, 0, 0]
    response = post(served, name, [1, 2], outputs=[{"name": "C"}])
    assert [o["name"] for o in response.json()["outputs"]] == ["C"]
    assert ran() == [1, 1, 1]
    response = post(served, name, [1, 2])
    assert [o["name"] for o in response.json()["outputs"]] == ["A", "C"]
    assert ran() == [2, 2, 2]


def control(served: ServedGateway, verb: str, name: str, **config: Any) -> Any:
    import json

    body = {"parameters": {"config": json.dumps(config)}} if config else {}
    path = f"/v2/repository/models/{name}/{verb}"
    response: httpx.Response = served.client.post(path, json=body)
    return response


def test_loading_it_loads_what_it_is_made_of(served: ServedGateway) -> None:
    """Or is an error; the one answer that there must not be is that all is well."""
    name, part = "rows_over_flat", "one"
    assert control(served, "unload", part).status_code == 200
    response = post(served, name, [1, 16])
    assert response.status_code == 503
    assert response.json()["error"].count("has no available versions") == 1
    assert control(served, "load", name).status_code == 200
    assert served.client.get(f"/v2/models/{part}/ready").status_code == 200
    assert post(served, name, [1, 16]).status_code == 200
    assert control(served, "load", name).status_code == 200  # and again, as it is
    assert post(served, name, [1, 16]).status_code == 200


def test_a_load_takes_over_models_that_have_changed(served: ServedGateway) -> None:
    name, part = "table_over_rows", "nop"
    assert control(served, "load", part, max_batch_size=2).status_code == 200
    assert post(served, name, [3, 16]).status_code == 400
    assert control(served, "load", name).status_code == 200
    assert post(served, name, [2, 16]).status_code == 200
    assert control(served, "load", part).status_code == 200
    assert control(served, "load", name).status_code == 200
    assert post(served, name, [3, 16]).status_code == 200


def test_a_load_may_say_how_many_rows_it_takes(served: ServedGateway) -> None:
    assert control(served, "load", "inner", max_batch_size="2").status_code == 200
    assert shown(served, "inner")[2] == 2
    assert post(served, "inner", [3, 16]).status_code == 400
    assert control(served, "load", "inner").status_code == 200
    assert shown(served, "inner")[2] == 4
