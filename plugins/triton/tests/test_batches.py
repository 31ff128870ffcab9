"""``max_batch_size`` of a ``config.pbtxt`` states that a model batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onnx import helper

from plugins.triton.tests.folders import (
    add_sub,
    identity,
    tensors,
    write_config,
    write_onnx,
)
from tests.app.served import Serve, ServedGateway

WARM = """
    dynamic_batching { max_queue_delay_microseconds: 60000000 }
    model_warmup [
      { name: "one" batch_size: 1 count: 2
        inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: 16
                                       zero_data: true } }
        inputs { key: "INPUT1" value { data_type: TYPE_INT32 dims: 16
                                       random_data: true } }
      },
      { name: "eight" batch_size: 8
        inputs { key: "INPUT0" value { data_type: TYPE_INT32 dims: 16
                                       input_data_file: "row" } }
        inputs { key: "INPUT1" value { data_type: TYPE_INT32 dims: 16
                                       input_data_file: "row" } }
      } ]
"""


def _mean_over_rows(root: Path, name: str, more: str = "") -> None:
    """A model whose rows depend on each other."""
    write_onnx(
        root,
        name,
        [
            helper.make_node("ReduceMean", ["X"], ["mean"], axes=[0], keepdims=1),
            helper.make_node("Sub", ["X", "mean"], ["Y"]),
        ],
        [("X", "FLOAT", [None, 2])],
        [("Y", "FLOAT", [None, 2])],
    )
    both = tensors("input", {"X": ("FP32", "2")}) + tensors(
        "output", {"Y": ("FP32", "2")}
    )
    write_config(root, name, f"max_batch_size: 8 {both} {more}")


def _fill(root: Path) -> None:
    add_sub(root, "simple")
    add_sub(root, "nobatch", max_batch_size=0, dims="-1, 16")
    add_sub(root, "flat", max_batch_size=0, first=())
    add_sub(root, "delayed", more="dynamic_batching { }")
    add_sub(root, "fixed", first=(4,))
    add_sub(root, "filled", first=(4,), more="dynamic_batching { }")
    identity(root, "narrow", shape=(None, None), dims="3")
    identity(root, "only", shape=(None, 16))
    write_config(root, "only", "max_batch_size: 4")
    _mean_over_rows(root, "mean")
    add_sub(root, "warm", more=WARM)
    (root / "warm" / "warmup").mkdir()
    (root / "warm" / "warmup" / "row").write_bytes(b"\1\0\0\0" * 16)
    add_sub(root, "few")
    one = tensors("input", {"INPUT0": ("INT32", "16")})
    write_config(root, "few", f"max_batch_size: 8 {one}")
    add_sub(root, "half")
    both = tensors("input", dict.fromkeys(("INPUT0", "INPUT1"), ("INT32", "16")))
    out = tensors("output", {"OUTPUT1": ("INT32", "16")})
    write_config(root, "half", f"max_batch_size: 8 {both} {out}")


@pytest.fixture(scope="module")
def served(serve: Serve) -> ServedGateway:
    return serve(_fill)


def _config(served: ServedGateway, name: str) -> Any:
    response = served.client.get(f"/v2/models/{name}/config")
    assert response.status_code == 200, response.text
    return response.json()


def _post(served: ServedGateway, name: str, rows: int, **more: Any) -> Any:
    data = [[1] * 16] * rows
    inputs = [
        {"name": n, "datatype": "INT32", "shape": [rows, 16], "data": data}
        for n in ("INPUT0", "INPUT1")
    ]
    body = {"inputs": inputs, **more}
    return served.client.post(f"/v2/models/{name}/infer", json=body)


def test_the_configuration_is_the_statement(served: ServedGateway) -> None:
    config = _config(served, "simple")
    assert config["max_batch_size"] == 8
    assert [t["dims"] for t in (*config["input"], *config["output"])] == [[16]] * 4
    assert "dynamic_batching" in config  # its rows were found to be independent
    metadata = served.client.get("/v2/models/simple").json()
    assert metadata["inputs"][0]["shape"] == [-1, 16]
    assert _post(served, "simple", 8).status_code == 200
    response = _post(served, "simple", 9)
    assert response.status_code == 400
    assert "batch-size must be <= 8 for 'simple'" in response.text


def test_classes_are_of_each_row(served: ServedGateway) -> None:
    wanted = [{"name": "OUTPUT0", "parameters": {"classification": 3}}]
    response = _post(served, "simple", 1, outputs=wanted)
    assert response.json()["outputs"][0]["shape"] == [1, 3]
    response = _post(served, "nobatch", 1, outputs=wanted)
    assert response.json()["outputs"][0]["shape"] == [3]


def test_without_it_dims_are_as_they_are(served: ServedGateway) -> None:
    config = _config(served, "nobatch")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (0, [-1, 16])
    assert _post(served, "nobatch", 20).status_code == 200
    config = _config(served, "flat")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (0, [16])


@pytest.mark.parametrize("batch", ["16", 16])
def test_a_load_may_say_otherwise(served: ServedGateway, batch: Any) -> None:
    import json

    def load(**config: Any) -> Any:
        parameters = {"config": json.dumps(config)}
        path = "/v2/repository/models/delayed/load"
        return served.client.post(path, json={"parameters": parameters})

    assert load(max_batch_size=batch).status_code == 200
    assert _config(served, "delayed")["max_batch_size"] == 16
    assert _post(served, "delayed", 16).status_code == 200
    assert _post(served, "delayed", 17).status_code == 400
    refused = load(max_batch_size=0)  # dims are the folder's: without rows
    assert refused.status_code == 400
    assert "declared with shape [16]" in refused.text
    assert _post(served, "delayed", 16).status_code == 200
    shape = {"data_type": "TYPE_INT32", "dims": [-1, 16]}
    shapes = [{"name": f"INPUT{n}", **shape} for n in range(2)]
    out = [{"name": f"OUTPUT{n}", **shape} for n in range(2)]
    assert load(max_batch_size=0, input=shapes, output=out).status_code == 200
    assert _config(served, "delayed")["max_batch_size"] == 0
    assert _post(served, "delayed", 17).status_code == 200
    assert load().status_code == 200
    assert _config(served, "delayed")["max_batch_size"] == 8


def test_rows_that_depend_on_each_other_are_not_mixed(served: ServedGateway) -> None:
    config = _config(served, "mean")
    assert config["max_batch_size"] == 8
    assert "dynamic_batching" not in config
    assert served.infer("mean", X=[[1, 2], [3, 6]])["Y"] == [-1, -2, 1, 2]


def test_a_warm_up_of_rows(served: ServedGateway) -> None:
    """It has run before the model was ready; a delay of a minute was not waited for."""
    assert served.client.get("/v2/models/warm/ready").status_code == 200


def test_dims_say_more_than_the_model(served: ServedGateway) -> None:
    metadata = served.client.get("/v2/models/narrow").json()
    assert metadata["inputs"][0]["shape"] == [-1, 3]
    assert metadata["outputs"][0]["shape"] == [-1, 3]
    assert served.infer("narrow", INPUT0=[[1, 2, 3]])["OUTPUT0"] == [1, 2, 3]
    body = {"inputs": {"INPUT0": [[1, 2, 3, 4]]}}
    response = served.client.post("/v1/models/narrow/infer", json=body)
    assert response.status_code == 400
    assert "Expected [-1,3], got [1,4]" in response.text


def test_a_configuration_of_one_line(served: ServedGateway) -> None:
    config = _config(served, "only")
    assert (config["max_batch_size"], config["input"][0]["dims"]) == (4, [16])


def test_a_fixed_first_dimension(served: ServedGateway) -> None:
    failed = served.client.get("/v1/health/ready").json()["failed"]
    assert (
        "max_batch_size is 8, but input 'INPUT0' has a fixed first" in failed["fixed"]
    )
    assert _config(served, "filled")["max_batch_size"] == 8
    answer = _post(served, "filled", 3).json()
    assert answer["outputs"][0]["shape"] == [3, 16]


def test_what_is_not_declared(served: ServedGateway) -> None:
    """Inputs have to be; outputs that are not are not given."""
    failed = served.client.get("/v1/health/ready").json()["failed"]
    assert (
        "the model also has the input 'INPUT1', which is not among the declared"
        in failed["few"]
    )
    answer = _post(served, "half", 1).json()
    assert [o["name"] for o in answer["outputs"]] == ["OUTPUT1"]
    response = _post(served, "half", 1, outputs=[{"name": "OUTPUT0"}])
    assert response.status_code == 400
    assert "unexpected inference output 'OUTPUT0'" in response.text
