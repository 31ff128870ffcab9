"""A model folder of Triton's, served unmodified; its stock client asks.

Covers: app/config/declared.py,
plugins/triton/src/popgate_triton/declarations.py,
plugins/triton/src/popgate_triton/config_routes.py,
plugins/triton/src/popgate_triton/model_config.py,
plugins/triton/src/popgate_triton/schema.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.app.served import ServedGateway
from tests.engine import models

SIMPLE = """
name: "simple"
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] },
  { name: "INPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
output [
  { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] label_filename: "labels.txt" },
  { name: "OUTPUT1" data_type: TYPE_INT32 dims: [ 16 ] }
]
dynamic_batching { max_queue_delay_microseconds: 100 }
instance_group [ { count: 2 kind: KIND_CPU } ]
model_warmup { name: "w" batch_size: 8 inputs [
  { key: "INPUT0" value { data_type: TYPE_INT32 dims: [ 16 ] zero_data: true } },
  { key: "INPUT1" value { data_type: TYPE_INT32 dims: [ 16 ]
                          input_data_file: "one" } } ] }
optimization { graph { level: 1 } }
"""


def write_simple(root: Path, name: str, *versions: int, config: str = "") -> None:
    """OUTPUT0 = INPUT0 + INPUT1, OUTPUT1 = INPUT0 - INPUT1."""
    ports = [
        helper.make_tensor_value_info(n, TensorProto.INT32, ["N", 16])
        for n in ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    ]
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    graph = helper.make_graph(nodes, "simple", ports[:2], ports[2:])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    for version in versions:
        folder = root / name / str(version)
        folder.mkdir(parents=True)
        onnx.save(model, folder / "model.onnx")
    (root / name / "config.pbtxt").write_text(config)


def write_classifier(root: Path, name: str) -> None:
    """The means of the channels of an image, declared as image models usually are."""
    ports = [
        helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 4, 4]),
        helper.make_tensor_value_info("scores", TensorProto.FLOAT, [1, 3, 1, 1]),
    ]
    node = helper.make_node("GlobalAveragePool", ["image"], ["scores"])
    graph = helper.make_graph([node], "classifier", ports[:1], ports[1:])
    opset = [helper.make_opsetid("", 17)]
    (root / name / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    onnx.save(model, root / name / "1" / "model.onnx")
    (root / name / "channels.txt").write_text("red\ngreen\nblue\n")
    (root / name / "config.pbtxt").write_text(
        f"""
        name: "{name}" platform: "onnxruntime_onnx" max_batch_size: 0
        input [ {{ name: "image" data_type: TYPE_FP32 format: FORMAT_NCHW
                   dims: [ 3, 4, 4 ] reshape {{ shape: [ 1, 3, 4, 4 ] }} }} ]
        output [ {{ name: "scores" data_type: TYPE_FP32 dims: [ 3 ]
                    reshape {{ shape: [ 1, 3, 1, 1 ] }}
                    label_filename: "channels.txt" }} ]
        """
    )


def write_ensemble(root: Path, name: str, first: str, second: str) -> None:
    """OUT = (A + B) - B, by two models."""
    for part in (first, second):
        if not (root / part).exists():
            write_simple(root, part, 1, config=f'name: "{part}" max_batch_size: 8')
    (root / name / "1").mkdir(parents=True)
    (root / name / "config.pbtxt").write_text(
        f"""
        name: "{name}" platform: "ensemble" max_batch_size: 8
        input [ {{ name: "A" data_type: TYPE_INT32 dims: [ 16 ] }},
                {{ name: "B" data_type: TYPE_INT32 dims: [ 16 ] }} ]
        output {{ name: "OUT" data_type: TYPE_INT32 dims: [ 16 ] }}
        ensemble_scheduling {{ step [
          {{ model_name: "{first}" model_version: -1
             input_map {{ key: "INPUT0" value: "A" }}
             input_map {{ key: "INPUT1" value: "B" }}
             output_map {{ key: "OUTPUT0" value: "sum" }} }},
          {{ model_name: "{second}" model_version: -1
             input_map {{ key: "INPUT0" value: "sum" }}
             input_map {{ key: "INPUT1" value: "B" }}
             output_map {{ key: "OUTPUT1" value: "OUT" }} }} ] }}
        """
    )


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("triton")
    write_simple(root, "simple", 1, 3, config=SIMPLE)
    (root / "simple" / "labels.txt").write_text("a\nb\n")
    (root / "simple" / "warmup").mkdir()
    one = np.ones((8, 16), np.int32).tobytes()
    (root / "simple" / "warmup" / "one").write_bytes(one)
    write_simple(root, "minimal", 1)
    wrong = SIMPLE.replace("simple", "wrong").replace(
        "TYPE_INT32 dims", "TYPE_FP32 dims"
    )
    write_simple(
        root, "wrong", 1, config=wrong.replace('label_filename: "labels.txt"', "")
    )
    write_simple(root, "typo", 1, config="max_batchsize: 3")
    write_simple(root, "cold", 1, config=SIMPLE.replace("simple", "cold"))
    (root / "cold" / "labels.txt").write_text("")
    write_classifier(root, "classifier")
    write_ensemble(root, "both", "part1", "part2")
    write_ensemble(root, "other", "part1", "part1")
    with ServedGateway(root) as gateway:
        yield gateway.wait_ready()


def client(gateway: ServedGateway) -> Any:
    import tritonclient.http as http

    return http, http.InferenceServerClient(gateway.url.removeprefix("http://"))


def test_the_stock_client_gets_what_it_got_before(served: ServedGateway) -> None:
    http, triton = client(served)
    try:
        assert triton.is_model_ready("simple")
        assert not triton.is_model_ready("simple", "1")  # Triton serves the latest
        metadata = triton.get_model_metadata("simple")
        assert metadata["versions"] == ["3"]
        assert metadata["inputs"][0]["shape"] == [-1, 16]
        described = served.client.get("/v1/models/simple").json()  # no config.toml
        assert described["batching_reason"] == "the model's configuration sets it"
        config = triton.get_model_config("simple")
        assert config["max_batch_size"] == 8
        assert config["input"][0]["dims"] == [16]
        assert config["version_policy"] == {"latest": {"num_versions": 1}}
        assert config["instance_group"][0]["count"] == 2
        inputs = [http.InferInput(f"INPUT{i}", [1, 16], "INT32") for i in (0, 1)]
        x = np.arange(16, dtype=np.int32).reshape(1, 16)
        inputs[0].set_data_from_numpy(x)
        inputs[1].set_data_from_numpy(x)
        result = triton.infer("simple", inputs)
        assert (result.as_numpy("OUTPUT0") == x + x).all()
        wanted = http.InferRequestedOutput("OUTPUT0", class_count=1)
        best = triton.infer("simple", inputs, outputs=[wanted]).as_numpy("OUTPUT0")
        assert best.tolist() == [[b"30:15"]]
        for many in inputs:
            many.set_shape([9, 16])
            many.set_data_from_numpy(np.zeros((9, 16), np.int32))
        with pytest.raises(Exception, match=r"batch-size must be <= 8 for 'simple'"):
            triton.infer("simple", inputs)
    finally:
        triton.close()


def test_a_model_without_config_pbtxt_has_a_configuration(tmp_path: Path) -> None:
    models.affine(tmp_path / "affine.popef")
    models.text(tmp_path / "text.popef")
    aio = pytest.importorskip("tritonclient.http.aio")
    with ServedGateway(tmp_path) as gateway:
        _, triton = client(gateway.wait_ready())
        config = triton.get_model_config("affine", "1")
        assert config["max_batch_size"] > 1
        (tensor,) = config["input"]
        assert tensor == {
            "name": "input",
            "data_type": "TYPE_FP32",
            "dims": [4],
            "format": "FORMAT_NONE",
            "is_shape_tensor": False,
            "allow_ragged_batch": False,
            "optional": False,
        }
        (text,) = triton.get_model_config("text")["input"]
        assert text["data_type"] == "TYPE_STRING"
        triton.close()

        async def of_asyncio() -> Any:
            address = gateway.url.removeprefix("http://")
            async with aio.InferenceServerClient(address) as stock:
                return await stock.get_model_config("affine", "1")

        assert asyncio.run(of_asyncio()) == config


def test_a_client_for_images_finds_its_way(served: ServedGateway) -> None:
    http, triton = client(served)
    try:
        config = triton.get_model_config("classifier")
        (image,), (scores,) = config["input"], config["output"]
        assert image["format"] == "FORMAT_NCHW"
        assert image["reshape"] == {"shape": [1, 3, 4, 4]}
        assert (scores["dims"], scores["label_filename"]) == ([3], "channels.txt")
        (known,) = triton.get_model_metadata("classifier")["inputs"]
        assert known["shape"] == image["dims"] == [3, 4, 4]
        tensor = http.InferInput("image", known["shape"], known["datatype"])
        array = np.stack([np.full((4, 4), v, np.float32) for v in (0.5, 2, 1)])
        tensor.set_data_from_numpy(array)
        wanted = http.InferRequestedOutput("scores", class_count=2)
        result = triton.infer("classifier", [tensor], outputs=[wanted])
        assert result.as_numpy("scores").tolist() == [b"2.0:1:green", b"1.0:2:blue"]
    finally:
        triton.close()


def test_an_ensemble_and_what_goes_with_it(served: ServedGateway) -> None:
    _, triton = client(served)
    a, b = [list(range(16))], [[7] * 16]
    try:
        assert served.infer("both", A=a, B=b)["OUT"] == a[0]
        config = triton.get_model_config("both")
        assert config["max_batch_size"] == 8
        step = config["ensemble_scheduling"]["step"][1]
        assert (step["model_name"], step["output_map"]) == ("part2", {"OUTPUT1": "OUT"})
        assert (
            "model_repository(unload_dependents)"
            in (triton.get_server_metadata()["extensions"])
        )
        triton.unload_model("both", unload_dependents=True)
        assert not triton.is_model_ready("both")
        assert not triton.is_model_ready("part2")
        # Another ensemble still needs this one.
        assert triton.is_model_ready("part1")
        assert served.infer("other", A=a, B=b)["OUT"] == a[0]
        triton.load_model("both")
        assert triton.is_model_ready("part2")
        assert served.infer("both", A=a, B=b)["OUT"] == a[0]
        triton.unload_model("other", unload_dependents=False)
        assert triton.is_model_ready("part1")
    finally:
        triton.close()


def test_clients_and_the_model_may_see_other_shapes(tmp_path: Path) -> None:
    """The model has no dimension but the batch; clients see one more."""
    config = """
    max_batch_size: 8
    input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
    output { name: "Y" data_type: TYPE_FP32 dims: [ 1, 1 ] reshape { shape: [ ] } }
    dynamic_batching { }
    """
    ports = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["N"]) for n in ("X", "Y")
    ]
    nodes = [helper.make_node("Neg", ["X"], ["Y"])]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:])
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opset, ir_version=8)
    for name in ("flat", "odd"):
        (tmp_path / name / "1").mkdir(parents=True)
        onnx.save(model, tmp_path / name / "1" / "model.onnx")
        odd = config.replace('"X"', '"Z"') if name == "odd" else config
        (tmp_path / name / "config.pbtxt").write_text(odd)
    with ServedGateway(tmp_path) as gateway:
        gateway.wait_ready()
        metadata = gateway.client.get("/v2/models/flat").json()
        assert metadata["inputs"][0]["shape"] == [-1, 1]
        assert metadata["outputs"][0]["shape"] == [-1, 1, 1]
        config_ = gateway.client.get("/v2/models/flat/config").json()
        assert config_["max_batch_size"] == 8
        body = {"inputs": {"X": [[1.0], [2.0], [3.0]]}}
        answer = gateway.client.post("/v1/models/flat/infer", json=body).json()
        (output,) = answer["outputs"]
        assert (output["shape"], output["data"]) == ([3, 1, 1], [-1.0, -2.0, -3.0])
        failed = gateway.client.get("/v1/health/ready").json()["failed"]
        assert "config.pbtxt: the model has no input 'Z'" in failed["odd"]


def test_an_empty_configuration_is_enough(served: ServedGateway) -> None:
    ones = [[1] * 16]
    outputs = served.infer("minimal", INPUT0=ones, INPUT1=ones)
    assert outputs["OUTPUT0"] == [2] * 16


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "wrong",
            "config.pbtxt: input 'INPUT0' is declared as FP32, but the model has",
        ),
        ("typo", "config.pbtxt: unknown field 'max_batchsize' in ModelConfig (line 1,"),
        ("cold", "warm-up: file one cannot be read: No such file"),
    ],
)
def test_what_is_wrong_is_told(served: ServedGateway, name: str, message: str) -> None:
    failed = served.client.get("/v1/health/ready").json()["failed"]
    assert message in failed[name]


@pytest.mark.parametrize(
    ("model", "platform", "backend", "filename"),
    [
        ("simple", "onnxruntime_onnx", "onnxruntime", "model.onnx"),
        ("minimal", "onnxruntime_onnx", "onnxruntime", "model.onnx"),
        ("both", "ensemble", "", ""),
    ],
)
def test_what_runs_a_model_is_what_its_folder_says(
    served: ServedGateway, model: str, platform: str, backend: str, filename: str
) -> None:
    _, triton = client(served)
    assert triton.get_model_metadata(model)["platform"] == platform
    config = triton.get_model_config(model)
    assert (config["platform"], config["backend"]) == (platform, backend)
    assert config["default_model_filename"] == filename
