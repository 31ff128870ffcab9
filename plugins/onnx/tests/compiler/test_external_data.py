from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from engine.errors import InvalidModel
from popgate_onnx.compiler import CompileOptions, compile_model
from tests.engine.onnx_models import (
    FLOAT,
    Compiled,
    X,
    floats,
    mlp,
    node,
    onnx_model,
    value,
)


def saved(
    folder: Path,
    location: str = "weights.bin",
    changes: Mapping[str, str] | None = None,
) -> Path:
    """The MLP in `folder`, its weights in one file; entries of `w1` may be changed."""
    model = mlp()
    path = folder / "model.onnx"
    folder.mkdir(exist_ok=True)
    onnx.save_model(
        model, path, save_as_external_data=True, location=location, size_threshold=0
    )
    if changes:
        model = onnx.load(path, load_external_data=False)
        for entry in model.graph.initializer[0].external_data:
            entry.value = changes.get(entry.key, entry.value)
        path.write_bytes(model.SerializeToString())
    return path


def test_weights_come_from_the_files_beside_the_model(tmp_path: Path) -> None:
    source = saved(tmp_path / "m")
    compile_model(source, tmp_path / "data")
    compile_model(source, tmp_path / "inside", CompileOptions(weights="inside"))
    compile_model(mlp(), tmp_path / "plain", CompileOptions(name="model"))
    assert (tmp_path / "data").read_bytes() == (tmp_path / "plain").read_bytes()
    x = floats(3, 8)
    expected = Compiled(tmp_path / "plain").run(x=x)["y"]
    assert np.array_equal(Compiled(tmp_path / "inside").run(x=x)["y"], expected)


def test_a_relative_source_finds_its_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "m")
    monkeypatch.chdir(tmp_path / "m")
    assert compile_model("model.onnx", tmp_path / "out").weight_count == 2


def test_data_in_a_folder_below(tmp_path: Path) -> None:
    (tmp_path / "m" / "data").mkdir(parents=True)
    source = saved(tmp_path / "m", location="data/w.bin")
    assert compile_model(source, tmp_path / "out").weight_count == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"location": "../secret.bin"}, "outside the model's folder"),
        ({"location": "a/../../secret.bin"}, "outside the model's folder"),
        ({"location": "/etc/hostname"}, "must be a path inside"),
        ({"location": ""}, "must be a path inside"),
        ({"location": "we\0ights.bin"}, "must be a path inside"),
        ({"location": "none.bin"}, "'none.bin' is missing"),
        ({"location": "."}, "is missing"),
        ({"offset": "100000"}, "'weights.bin', which has"),
        ({"offset": "-8"}, "is at bytes -8"),
        ({"offset": "many"}, "must be numbers"),
        ({"offset": "9" * 5000}, "must be numbers|which has"),
        ({"length": "12"}, "has 12 bytes, expected 2048"),
    ],
)
def test_what_is_wrong_with_external_data_is_named(
    changes: dict[str, str], message: str, tmp_path: Path
) -> None:
    (tmp_path / "secret.bin").write_bytes(bytes(100_000))
    source = saved(tmp_path / "m", changes=changes)
    with pytest.raises(InvalidModel, match=message) as caught:
        compile_model(source, tmp_path / "out")
    assert "'w1'" in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_link_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "m")
    data = tmp_path / "m" / "weights.bin"
    data.rename(tmp_path / "elsewhere.bin")
    data.symlink_to(tmp_path / "elsewhere.bin")
    with pytest.raises(InvalidModel, match="outside the model's folder"):
        compile_model(source, tmp_path / "out")


def test_data_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path / "m")
    data = tmp_path / "m" / "weights.bin"
    for size in (0, 1, 2047):
        data.write_bytes(data.read_bytes()[:size])
        with pytest.raises(InvalidModel, match=r"weights\.bin"):
            compile_model(source, tmp_path / "out")


def test_a_model_that_is_no_file_has_no_data_beside_it(tmp_path: Path) -> None:
    content = saved(tmp_path / "m").read_bytes()
    with pytest.raises(InvalidModel, match="a model that is a file"):
        compile_model(content, tmp_path / "out")


def external(tensor: Any, location: str) -> Any:
    tensor.data_location = TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    return tensor


def test_a_constant_may_have_its_data_outside(tmp_path: Path) -> None:
    tensor = TensorProto(name="c", data_type=FLOAT, dims=[8])
    model = onnx_model(
        [
            node("Constant", [], ["c"], value=external(tensor, "c.bin")),
            node("Add", ["x", "c"], ["y"]),
        ],
        [X],
        [value("y", FLOAT, ["N", 8])],
    )
    (tmp_path / "c.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    compile_model(tmp_path / "m.onnx", tmp_path / "out")
    result = Compiled(tmp_path / "out").run(x=np.zeros((1, 8), np.float32))["y"]
    assert result.tolist() == [list(range(8))]


def test_a_model_larger_than_protocol_buffers_hold(tmp_path: Path) -> None:
    # 2.5 GiB of zeros, of which the file system stores nothing; only mapped here.
    rows = 5 << 17
    tensor = TensorProto(name="w", data_type=FLOAT, dims=[rows, 1024])
    model = onnx_model(
        [node("Gather", ["w", "x"], ["y"])],
        [value("x", TensorProto.INT64, ["N"])],
        [value("y", FLOAT, ["N", 1024])],
    )
    model.graph.initializer.append(external(tensor, "w.bin"))
    with (tmp_path / "w.bin").open("wb") as data:
        data.truncate(rows * 4096)
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(InvalidModel, match="the graph must hold it, and the limit"):
        compile_model(
            tmp_path / "m.onnx", tmp_path / "out", CompileOptions(weights="inside")
        )


def test_all_types_of_weights(tmp_path: Path) -> None:
    for kind in (np.float16, np.float64, np.uint8, np.int8, np.int16, np.bool_):
        table = (np.arange(4096) % 2).astype(kind)
        wanted = TensorProto.INT64
        model = onnx_model(
            [node("Gather", ["w", "x"], ["g"]), node("Cast", ["g"], ["y"], to=wanted)],
            [value("x", wanted, ["N"])],
            [value("y", wanted, ["N"])],
            {"w": table},
        )
        assert compile_model(model, tmp_path / "m").weight_count == 1
        result = Compiled(tmp_path / "m").run(x=np.array([6, 7]))["y"]
        assert result.tolist() == [0, 1]


def test_bf16_weights(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", data_type=TensorProto.BFLOAT16, dims=[1024])
    tensor.raw_data = np.full(1024, 0x4040, np.uint16).tobytes()  # 3.0
    model = onnx_model(
        [node("Cast", ["w"], ["f"], to=FLOAT), node("Mul", ["x", "f"], ["y"])],
        [value("x", FLOAT, ["N", 1])],
        [value("y", FLOAT, ["N", 1024])],
    )
    model.graph.initializer.append(tensor)
    assert compile_model(model, tmp_path / "m").weight_count == 1
    result = Compiled(tmp_path / "m").run(x=np.full((1, 1), 2, np.float32))["y"]
    assert result[0, :2].tolist() == [6, 6]


def test_weights_stored_as_numbers_and_not_as_bytes(tmp_path: Path) -> None:
    model = mlp()
    for tensor in model.graph.initializer:
        numbers = numpy_helper.to_array(tensor).reshape(-1).tolist()
        tensor.ClearField("raw_data")
        tensor.float_data.extend(numbers)
    report = compile_model(model, tmp_path / "a", CompileOptions(name="m"))
    compile_model(mlp(), tmp_path / "b", CompileOptions(name="m"))
    assert report.weight_count == 2
    x = floats(2, 8)
    one, other = (Compiled(tmp_path / n).run(x=x)["y"] for n in "ab")
    assert np.array_equal(one, other)


def test_integers_stay_inside_unless_they_are_many(tmp_path: Path) -> None:
    for count, outside in ((1000, 0), (20_000, 1)):
        kind = TensorProto.INT64
        model = onnx_model(
            [node("Gather", ["w", "x"], ["y"])],
            [value("x", kind, ["N"])],
            [value("y", kind, ["N"])],
            {"w": np.arange(count)},
        )
        assert compile_model(model, tmp_path / "m").weight_count == outside
        assert Compiled(tmp_path / "m").run(x=np.array([77]))["y"].tolist() == [77]


def test_integers_outside_may_tell_shapes(tmp_path: Path) -> None:
    model = onnx_model(
        [
            node("Slice", ["numbers", "from", "to"], ["shape"]),
            node("Expand", ["x", "shape"], ["y"]),
        ],
        [value("x", FLOAT, [1])],
        [value("y", FLOAT, None)],
        {"numbers": np.arange(20_000), "from": np.array([2]), "to": np.array([4])},
    )
    report = compile_model(model, tmp_path / "m")
    assert report.weight_count == 1
    assert report.outputs[0].info.shape == (2, 3)
    result = Compiled(tmp_path / "m").run(x=np.ones(1, np.float32))["y"]
    assert result.shape == (2, 3)


def test_a_tensor_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    model = mlp()
    model.graph.initializer[0].raw_data = bytes(100)
    with pytest.raises(InvalidModel, match="w1"):
        compile_model(model, tmp_path / "m")
    model.graph.initializer[0].dims[0] = -5
    with pytest.raises(InvalidModel):
        compile_model(model, tmp_path / "m")
