"""What converters write by default is served: ZipMaps, and texts in English."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import build_popef
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine import describe_model
from engine.errors import InvalidModel
from popef_io import Option, load_model
from popgate_onnx.compiler import CompileOptions, compile_fused, compile_model
from tests.engine.onnx_models import FLOAT, INT64, Compiled, node, onnx_model, value

ML = {"ai.onnx.ml": 1}
X = value("x", FLOAT, ["N", 4])
LABELS: dict[str, list[Any]] = {
    "int64s": [0, 1, 2],
    "strings": ["setosa", "versicolor", "virginica"],
}


def classifier(kind: str) -> onnx.ModelProto:
    """As skl2onnx and onnxmltools export classifiers, with labels of either kind."""
    key = TensorProto.STRING if kind == "strings" else INT64
    maps = helper.make_map_type_proto(key, helper.make_tensor_type_proto(FLOAT, None))
    rows = helper.make_sequence_type_proto(maps)
    classes = {f"classlabels_{kind}": LABELS[kind]}
    return onnx_model(
        [
            node(
                "LinearClassifier",
                ["x"],
                ["label", "scores"],
                domain="ai.onnx.ml",
                coefficients=[float(n % 5) for n in range(12)],
                intercepts=[0.5, 0.0, -0.5],
                multi_class=1,
                **{f"classlabels_{kind.replace('64', '')}": LABELS[kind]},
            ),
            node("Normalizer", ["scores"], ["p"], domain="ai.onnx.ml", norm="L1"),
            node("ZipMap", ["p"], ["probability"], domain="ai.onnx.ml", **classes),
        ],
        [X],
        [value("label", key, [None]), helper.make_value_info("probability", rows)],
        domains=ML,
    )


@pytest.mark.parametrize("kind", list(LABELS))
def test_a_final_zip_map_becomes_a_tensor_with_labels(
    tmp_path: Path, kind: str
) -> None:
    model, target = classifier(kind), tmp_path / "m.popef"
    report = compile_model(model, target, CompileOptions(outputs={"probability": "p"}))
    assert [str(t) for t in report.outputs][1] == "p: F32[?, 3]"
    assert report.batch.rows
    assert describe_model(target).labels == {"p": tuple(map(str, LABELS[kind]))}
    rows = np.arange(8, dtype=np.float32).reshape(2, 4)
    found = Compiled(target).run(x=rows)["p"]
    maps = reference(model, rows)
    for row, expected in zip(found, maps, strict=True):
        assert dict(zip(LABELS[kind], row.tolist(), strict=True)) == expected


def reference(model: onnx.ModelProto, rows: Any) -> Any:
    """What ONNX Runtime gives for the model as it is: a map for each row."""
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString())
    return session.run(["probability"], {"x": rows})[0]


@pytest.mark.parametrize("scores", [TensorProto.DOUBLE, FLOAT])
def test_a_zip_map_that_is_declared_to_give_doubles_is_served(
    tmp_path: Path, scores: int
) -> None:
    """skl2onnx exports models of FP64 so. ONNX Runtime refuses these models itself.
    Some of them calculate in FP32."""
    model, target = classifier("int64s"), tmp_path / "m.popef"
    maps = model.graph.output[1].type.sequence_type.elem_type.map_type
    maps.value_type.tensor_type.elem_type = TensorProto.DOUBLE
    model.graph.node.insert(2, node("Cast", ["p"], ["d"], to=scores))
    model.graph.node[-1].input[0] = "d"
    report = compile_model(model, target)
    assert [str(t) for t in report.outputs][1] == "probability: F64[?, 3]"
    found = Compiled(target).run(x=np.ones((2, 4), np.float32))["probability"]
    assert found.sum(axis=1).round(6).tolist() == [1.0, 1.0]


def test_fused_models_keep_their_labels_apart(tmp_path: Path) -> None:
    target = tmp_path / "m.popef"
    compile_fused([(kind, classifier(kind)) for kind in LABELS], target)
    assert describe_model(target).labels == {
        f"{kind}/probability": tuple(map(str, labels))
        for kind, labels in LABELS.items()
    }


@pytest.mark.parametrize("text", ["no list", "{}", "[1]", "[" * 100_000])
def test_labels_in_a_file_that_are_none_are_left_out(tmp_path: Path, text: str) -> None:
    model = load_model(build_popef.build_simple(tmp_path))
    notes = (Option("popgate.labels.y", text), Option("popgate.labels.z", '["a"]'))
    metadata = replace(model.metadata, engine_options=notes)
    assert describe_model(replace(model, metadata=metadata)).labels == {"z": ("a",)}


def test_a_zip_map_that_something_reads_is_refused(tmp_path: Path) -> None:
    model = classifier("int64s")
    model.graph.node.append(node("SequenceLength", ["probability"], ["n"]))
    with pytest.raises(InvalidModel, match=r"ZipMap node .* is of type sequence"):
        compile_model(model, tmp_path / "m.popef")


@pytest.mark.parametrize("locale", [None, "", "en_US.UTF-8", "en"])
def test_texts_need_no_locale_of_the_machine(
    tmp_path: Path, locale: str | None
) -> None:
    given = {} if locale is None else {"locale": locale}
    model = onnx_model(
        [node("StringNormalizer", ["x"], ["y"], case_change_action="LOWER", **given)],
        [value("x", TensorProto.STRING, [None])],
        [value("y", TensorProto.STRING, [None])],
    )
    target = tmp_path / "m.popef"
    compile_model(model, target)
    texts = np.array(["KÖLN", "ÉTÉ", "Straße"], object)
    found = Compiled(target).run(x=texts)["y"]
    assert [bytes(t).decode() if isinstance(t, bytes) else t for t in found] == [
        "köln",
        "été",
        "straße",
    ]


def test_a_file_that_lacks_data_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    first, _ = build_popef.build_split(tmp_path)
    with pytest.raises(
        InvalidModel, match="'bias' has no data, neither in the file nor"
    ):
        describe_model(first)
    assert load_model(first).metadata.executable
