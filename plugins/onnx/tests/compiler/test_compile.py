"""What `compile_model` makes of ONNX models, and what it refuses.

Covers: plugins/onnx/src/popgate_onnx/compiler/graphs.py,
    plugins/onnx/src/popgate_onnx/compiler/interface.py,
    plugins/onnx/src/popgate_onnx/compiler/loading.py,
    plugins/onnx/src/popgate_onnx/compiler/options.py,
    plugins/onnx/src/popgate_onnx/compiler/package.py,
    plugins/onnx/src/popgate_onnx/compiler/source.py,
    plugins/onnx/src/popgate_onnx/compiler/weights.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from engine.errors import ExecutionFailed, InvalidConfig, InvalidModel
from popef_io import DataType, TensorInfo, TensorType
from popgate_onnx.compiler import CompileOptions, compile_fused, compile_model
from tests.engine.onnx_models import (
    FLOAT,
    INT64,
    Compiled,
    X,
    Y,
    floats,
    mlp,
    node,
    onnx_model,
    value,
)


def neg(shape: Any = ("N", 8)) -> onnx.ModelProto:
    return onnx_model(
        [node("Neg", ["x"], ["y"])],
        [value("x", FLOAT, shape)],
        [value("y", FLOAT, shape)],
    )


def reference(x: Any) -> Any:
    m = {t.name: onnx.numpy_helper.to_array(t) for t in mlp().graph.initializer}
    return np.maximum(x @ m["w1"] + m["b1"], 0) @ m["w2"]


def test_the_compiled_model_computes(tmp_path: Path) -> None:
    report = compile_model(mlp(), tmp_path / "m.popef")
    compiled = Compiled(tmp_path / "m.popef")
    x = floats(3, 8)
    np.testing.assert_allclose(compiled.run(x=x)["y"], reference(x), rtol=1e-5)
    assert [str(t) for t in report.inputs] == ["x: F32[?, 8]"]
    assert [str(t) for t in report.outputs] == ["y: F32[?, 4]"]
    assert report.file_bytes == (tmp_path / "m.popef").stat().st_size
    assert "batching: on" in str(report)


def test_bytes_paths_and_protos_are_sources(tmp_path: Path) -> None:
    source = tmp_path / "source.onnx"
    source.write_bytes(mlp().SerializeToString())
    for given in (source, str(source), source.read_bytes(), mlp()):
        compile_model(given, tmp_path / "m.popef", CompileOptions(name="same"))
        assert Compiled(tmp_path / "m.popef").metadata.executable == "same"


def test_the_source_is_not_changed(tmp_path: Path) -> None:
    model = mlp()
    before = model.SerializeToString()
    compile_model(model, tmp_path / "m.popef", CompileOptions(batch=4))
    assert model.SerializeToString() == before


def test_the_same_source_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        compile_model(mlp(), tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_large_weights_become_tensor_data(tmp_path: Path) -> None:
    report = compile_model(mlp(), tmp_path / "m.popef")
    compiled = Compiled(tmp_path / "m.popef")
    assert list(compiled.model.tensors) == ["w1", "w2"]
    assert report.weight_count == 2
    assert report.weight_bytes == 2048 + 1024
    anchors = {a.name: a for a in compiled.metadata.anchors}
    assert anchors["w1"].type is TensorType.INPUT
    assert anchors["w1"].programs == (0,)
    assert anchors["w1"].tensor_info == TensorInfo((8, 64), DataType.F32)
    assert anchors["x"].programs == (1,)
    assert anchors["x"].handle == "h2d_x"
    assert anchors["y"].handle == "d2h_y"
    assert compiled.executable.graphs["main"].weights == ("w1", "w2")
    assert len(compiled.executable.graphs["main"].model) < 1500


@pytest.mark.parametrize(
    ("options", "outside"),
    [
        (CompileOptions(weights="inside"), []),
        (CompileOptions(weights_from=2048), ["w1"]),
        (CompileOptions(weights_from=1), ["w1", "b1", "w2"]),
        (CompileOptions(weights_from=0), ["w1", "b1", "w2"]),
    ],
)
def test_which_weights_are_outside_is_a_choice(
    tmp_path: Path, options: CompileOptions, outside: list[str]
) -> None:
    compile_model(mlp(), tmp_path / "m.popef", options)
    compiled = Compiled(tmp_path / "m.popef")
    assert list(compiled.model.tensors) == outside
    x = floats(2, 8)
    np.testing.assert_allclose(compiled.run(x=x)["y"], reference(x), rtol=1e-5)


def test_metadata_says_what_it_is(tmp_path: Path) -> None:
    model = mlp()
    model.producer_name, model.producer_version = "trainer", "1.2"
    model.doc_string = "A perceptron."
    helper.set_model_props(model, {"classes": "cat,dog"})
    options = CompileOptions(user_metadata={"team": "vision"})
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    compile_model(tmp_path / "net.onnx", tmp_path / "m.popef", options)
    compiled = Compiled(tmp_path / "m.popef")
    metadata = compiled.metadata
    assert metadata.executable == "net"
    assert metadata.program_flow.load == (0,)
    assert metadata.program_flow.main == (1,)
    assert metadata.program_flow.save == ()
    assert metadata.programs_map == {0: "load", 1: "main"}
    assert compiled.option("popgate.batching") == "rows"
    assert compiled.option("popgate.batch_size") == "0"
    assert (compiled.option("popgate.producer") or "").startswith("popgate ")
    assert compiled.option("popgate.source_producer") == "trainer 1.2"
    assert compiled.option("popgate.description") == "A perceptron."
    assert compiled.option("onnx.classes") == "cat,dog"
    assert compiled.option("user.team") == "vision"
    assert compiled.executable.graphs["main"].opsets == {"": 20}


def test_inputs_and_outputs_can_be_renamed(tmp_path: Path) -> None:
    options = CompileOptions(inputs={"x": "image"}, outputs={"y": "scores"})
    compile_model(mlp(), tmp_path / "m.popef", options)
    compiled = Compiled(tmp_path / "m.popef")
    x = floats(1, 8)
    assert list(compiled.run(image=x)) == ["scores"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (CompileOptions(inputs={"q": "r"}), "no such input; it has 'x'"),
        (CompileOptions(outputs={"x": "r"}), "no such output; it has 'y'"),
        (CompileOptions(inputs={"x": ""}), "an input has no name"),
        (CompileOptions(shapes={"q": (1,)}), "shape of 'q': the model has no such"),
        (CompileOptions(shapes={"x": (1,)}), "expected 2 dimensions"),
        (CompileOptions(shapes={"x": (1, 9)}), "Gemm"),
        (CompileOptions(inputs={"x": "x" * 20_000}), "cannot write the model"),
    ],
)
def test_changes_that_do_not_fit_are_refused(
    tmp_path: Path, options: CompileOptions, message: str
) -> None:
    with pytest.raises(InvalidModel, match=message):
        compile_model(mlp(), tmp_path / "m.popef", options)
    assert list(tmp_path.iterdir()) == []


def test_two_inputs_may_not_get_one_name(tmp_path: Path) -> None:
    add = onnx_model(
        [node("Add", ["x", "z"], ["y"])], [X, value("z", FLOAT, ["N", 8])], [Y]
    )
    with pytest.raises(InvalidModel, match="two inputs would have the name 'z'"):
        compile_model(add, tmp_path / "m", CompileOptions(inputs={"x": "z"}))


def test_shapes_can_be_overridden(tmp_path: Path) -> None:
    options = CompileOptions(shapes={"x": (2, "width"), "y": (2, "width")})
    report = compile_model(neg(("N", "M")), tmp_path / "m.popef", options)
    assert [str(t) for t in report.inputs] == ["x: F32[2, ?]"]
    report = compile_model(
        neg((1, 8)), tmp_path / "m", CompileOptions(shapes={"x": (-1, 8)})
    )
    assert report.inputs[0].info.shape == (-1, 8)


@pytest.mark.parametrize(
    "changes",
    [
        {"batch": 0},
        {"batch": -3},
        {"batch": True},
        {"batch": "on"},
        {"weights": "outside"},
        {"threads": 0},
    ],
)
def test_options_out_of_range_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfig):
        CompileOptions(**changes)


def test_shapes_that_the_file_leaves_out_are_completed(tmp_path: Path) -> None:
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("row", "sum")]
    model = onnx_model(
        [node("Neg", ["x"], ["row"]), node("ReduceSum", ["x"], ["sum"], keepdims=0)],
        [X],
        outputs,
    )
    report = compile_model(model, tmp_path / "m")
    assert [str(t) for t in report.outputs] == ["row: F32[?, 8]", "sum: F32[]"]


def test_an_unknown_rank_stays_unknown(tmp_path: Path) -> None:
    report = compile_model(neg(None), tmp_path / "m")
    assert report.inputs[0].info.shape is None
    assert report.outputs[0].info.shape is None
    assert report.batch.reason == "the rank of input 'x' is unknown"


@pytest.mark.parametrize(
    "name", ["../w", "/abs/w", "a b", "ünï", "*/_ORT_MEM_ADDR_/*", "a\nb", "w" * 5000]
)
def test_odd_names_are_kept(tmp_path: Path, name: str) -> None:
    model = onnx_model(
        [node("Mul", [name + "x", name], [name + "y"])],
        [value(name + "x", FLOAT, ["N", 512])],
        [value(name + "y", FLOAT, ["N", 512])],
        {name: np.full(512, 3, np.float32)},
    )
    compile_model(model, tmp_path / "m.popef")
    compiled = Compiled(tmp_path / "m.popef")
    assert list(compiled.model.tensors) == [name]
    result = compiled.run(**{name + "x": np.ones((1, 512), np.float32)})
    assert result[name + "y"].tolist() == [[3] * 512]


def test_pass_through_and_repeated_outputs(tmp_path: Path) -> None:
    weight = np.arange(512, dtype=np.float32)
    wide = [value(n, FLOAT, ["N", 512]) for n in ("x", "y")]
    model = onnx_model(
        [node("Mul", ["x", "w"], ["y"])],
        [wide[0]],
        [*wide, wide[1], value("w", FLOAT, [512])],
        {"w": weight},
    )
    compile_model(model, tmp_path / "m.popef")
    x = np.full((1, 512), 2, np.float32)
    results = Compiled(tmp_path / "m.popef").run(x=x)
    assert results["x"].tolist() == x.tolist()
    assert results["y"].tolist() == (x * weight).tolist()
    assert results["w"].tolist() == weight.tolist()


def test_initializers_that_are_inputs_are_weights(tmp_path: Path) -> None:
    model = mlp()
    model.ir_version = 3
    model.graph.input.append(value("w1", FLOAT, [8, 64]))
    report = compile_model(model, tmp_path / "m.popef")
    assert [t.name for t in report.inputs] == ["x"]
    assert report.weight_count == 2


def test_initializers_that_nothing_uses_are_left_out(tmp_path: Path) -> None:
    model = neg()
    model.graph.initializer.append(onnx.numpy_helper.from_array(floats(999), "w"))
    assert compile_model(model, tmp_path / "m.popef").weight_count == 0


@pytest.mark.parametrize("weights", ["data", "inside"])
def test_the_last_initializer_of_a_name_is_the_weight(
    tmp_path: Path, weights: Literal["data", "inside"]
) -> None:
    model = mlp()
    kept = list(model.graph.initializer)
    del model.graph.initializer[:]
    zeros = np.zeros((8, 64), np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(zeros, "w1"))
    model.graph.initializer.extend(kept)
    compile_model(model, tmp_path / "m.popef", CompileOptions(weights=weights))
    x = floats(3, 8)
    found = Compiled(tmp_path / "m.popef").run(x=x)["y"]
    np.testing.assert_allclose(found, reference(x), rtol=1e-5)


def test_weights_used_inside_a_branch(tmp_path: Path) -> None:
    def branch(op: str) -> Any:
        out = value("z", FLOAT, None)
        return helper.make_graph([node(op, ["x", "w"], ["z"])], op, [], [out])

    choose = node(
        "If", ["c"], ["y"], then_branch=branch("Mul"), else_branch=branch("Add")
    )
    model = onnx_model(
        [choose],
        [value("x", FLOAT, [512]), value("c", TensorProto.BOOL, [])],
        [value("y", FLOAT, [512])],
        {"w": np.full(512, 5, np.float32)},
    )
    assert compile_model(model, tmp_path / "m.popef").weight_count == 1
    compiled = Compiled(tmp_path / "m.popef")
    x = np.full(512, 3, np.float32)
    assert compiled.run(x=x, c=np.array(True))["y"][0] == 15
    assert compiled.run(x=x, c=np.array(False))["y"][0] == 8


def test_local_functions_and_other_domains(tmp_path: Path) -> None:
    twice = helper.make_function(
        "mine",
        "Twice",
        ["a"],
        ["b"],
        [node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 20)],
    )
    model = onnx_model(
        [
            node("Twice", ["x"], ["t"], domain="mine"),
            node(
                "Scaler", ["t"], ["y"], domain="ai.onnx.ml", scale=[5.0], offset=[0.0]
            ),
        ],
        [X],
        [Y],
        domains={"mine": 1, "ai.onnx.ml": 3},
    )
    model.functions.append(twice)
    compile_model(model, tmp_path / "m.popef")
    x = floats(2, 8)
    result = Compiled(tmp_path / "m.popef").run(x=x)["y"]
    np.testing.assert_allclose(result, x * 10, rtol=1e-6)


def test_no_inputs(tmp_path: Path) -> None:
    model = onnx_model(
        [node("Constant", [], ["y"], value_ints=[1, 2])], [], [value("y", INT64, [2])]
    )
    report = compile_model(model, tmp_path / "m.popef")
    assert report.batch.reason == "the model has no inputs"
    assert Compiled(tmp_path / "m.popef").run()["y"].tolist() == [1, 2]


def typed(kind: int) -> onnx.ModelProto:
    return onnx_model(
        [node("Cast", ["x"], ["y"], to=kind)], [X], [value("y", kind, ["N", 8])]
    )


ROWS_OF_MAPS = helper.make_value_info(
    "y",
    helper.make_sequence_type_proto(
        helper.make_map_type_proto(INT64, helper.make_tensor_type_proto(FLOAT, None))
    ),
)


def optional_input() -> onnx.ModelProto:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    return onnx_model(
        [node("OptionalHasElement", ["x"], ["y"])],
        [helper.make_value_info("x", kind)],
        [value("y", TensorProto.BOOL, [])],
    )


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            onnx_model([node("Foo", ["x"], ["y"], name="the node")], [X], [Y]),
            "the node.*No Op registered for Foo",
        ),
        (
            onnx_model(
                [node("Neg", ["x"], ["z"]), node("Foo", ["z"], ["y"])], [X], [Y]
            ),
            "Foo_1",
        ),
        (
            onnx_model(
                [node("Foo", ["x"], ["y"], domain="acme", name="nn")],
                [X],
                [Y],
                domains={"acme": 1},
            ),
            r"acme:Foo.*not a registered.*\(acme.Foo node 'nn'\)",
        ),
        (
            onnx_model(
                [node("Gradient", ["x"], ["y"], domain="ai.onnx.preview.training")],
                [X],
                [Y],
                domains={"ai.onnx.preview.training": 1},
            ),
            "Gradient node 'Gradient_0'",
        ),
        (
            onnx_model([node("Neg", ["x"], ["y"])], [X], [Y], opset=99),
            "needs operator set 99 of ONNX, which this version",
        ),
        (
            onnx_model([node("Neg", ["q"], ["y"], name="nn")], [X], [Y]),
            r"input 'q'.*\(Neg node 'nn'\)",
        ),
        (
            onnx_model(
                [node("Neg", ["z"], ["y"]), node("Neg", ["y"], ["z"])], [X], [Y]
            ),
            "acyclic",
        ),
        (
            onnx_model(
                [node("MatMul", ["x", "w"], ["y"], name="mm")],
                [X],
                [Y],
                {"w": floats(9)},
            ),
            "mm.*MatMul",
        ),
        (
            typed(TensorProto.FLOAT8E4M3FN),
            "output 'y' has elements of type FLOAT8E4M3FN",
        ),
        (typed(TensorProto.INT4), "output 'y' has elements of type INT4"),
        (typed(TensorProto.COMPLEX64), "output 'y' has elements of type COMPLEX64"),
        (typed(123), "type number 123"),
        (optional_input(), "input 'x' is of type optional"),
        (
            onnx_model(
                [node("SequenceConstruct", ["x"], ["y"], name="sc")],
                [X],
                [ROWS_OF_MAPS],
            ),
            r"'y' of SequenceConstruct node 'sc' is of type sequence; only tensors",
        ),
        (
            onnx_model(
                [node("SequenceConstruct", ["x"], ["y"])],
                [X],
                [helper.make_empty_tensor_value_info("y")],
            ),
            r"output 'y' is of type seq\(tensor\(float\)\)",
        ),
        (onnx.ModelProto(), "no graph"),
        (onnx_model([], [X], []), "no outputs"),
        (onnx_model([node("", ["x"], ["y"])], [X], [Y]), "no operator type"),
        (b"", "empty"),
        (b"PK\3\4" + bytes(100), "not an ONNX model"),
        (b"some text that is no model", "not an ONNX model"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(
    tmp_path: Path, model: Any, message: str
) -> None:
    with pytest.raises(InvalidModel, match=message) as caught:
        compile_model(model, tmp_path / "m.popef")
    assert "onnxruntime_src" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_every_truncation_is_refused_or_compiles(tmp_path: Path) -> None:
    whole = neg().SerializeToString()
    for length in range(len(whole)):
        with pytest.raises(InvalidModel):
            compile_model(whole[:length], tmp_path / "m.popef")


def test_a_file_that_is_not_there_and_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        compile_model(tmp_path / "none.onnx", tmp_path / "m.popef")
    with pytest.raises(InvalidModel, match="expected a regular file"):
        compile_model(tmp_path, tmp_path / "m.popef")


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    target = tmp_path / "m.popef"
    compile_model(mlp(), target)
    before = target.read_bytes()
    with pytest.raises(InvalidModel):
        compile_model(b"nothing", target)
    assert target.read_bytes() == before


def test_progress_grows_to_one(tmp_path: Path) -> None:
    stages: list[tuple[str, float]] = []
    compile_model(mlp(), tmp_path / "m", progress=lambda s, d: stages.append((s, d)))
    done = [d for _, d in stages]
    assert done == sorted(done)
    assert done[0] == 0
    assert stages[-1] == ("done", 1.0)
    assert {"reading", "loading", "checking rows", "writing"} <= {s for s, _ in stages}


def test_fused_models_run_one_at_a_time(tmp_path: Path) -> None:
    sources = [("net", mlp()), ("neg", neg())]
    stages: list[float] = []
    report = compile_fused(
        sources,
        tmp_path / "m.popef",
        selector="which",
        options=CompileOptions(user_metadata={"k": "v"}),
        progress=lambda _, done: stages.append(done),
    )
    assert [str(t) for t in report.inputs] == [
        "which: S64[1]",
        "net/x: F32[?, 8]",
        "neg/x: F32[?, 8]",
    ]
    assert [t.name for t in report.outputs] == ["net/y", "neg/y"]
    assert not report.batch.rows
    assert stages[-1] == 1.0
    compiled = Compiled(tmp_path / "m.popef")
    assert compiled.option("popgate.fused") == "0: net, 1: neg"
    assert compiled.option("user.k") == "v"
    assert sorted(compiled.model.tensors) == ["net/w1", "net/w2"]
    x = floats(2, 8)
    # Only the tensors of the chosen model are given, and only its outputs come.
    zero = compiled.run(**{"which": np.array([0]), "net/x": x})
    np.testing.assert_allclose(zero.pop("net/y"), reference(x), rtol=1e-5)
    one = compiled.run(**{"which": np.array([1]), "neg/x": x})
    assert np.array_equal(one.pop("neg/y"), -x)
    assert zero == one == {}
    with pytest.raises(ExecutionFailed, match="must be one of 0, 1"):
        compiled.run(which=np.array([2]))


def test_what_cannot_be_fused_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "m.popef"
    with pytest.raises(InvalidModel, match="bad: not an ONNX model"):
        compile_fused([("good", neg()), ("bad", b"nothing")], target)
    for sources in ([], [("a", neg()), ("a", neg())], [("", neg())]):
        with pytest.raises(InvalidConfig):
            compile_fused(sources, target)
    with pytest.raises(InvalidConfig):
        compile_fused([("a", neg())], target, options=CompileOptions(batch=3))
    assert list(tmp_path.iterdir()) == []


def test_onnx_is_imported_only_to_compile() -> None:
    code = "import popgate_onnx.compiler, sys; sys.exit('onnx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
