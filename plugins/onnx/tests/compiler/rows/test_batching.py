"""Which models may have rows of different requests mixed, shown on small ones.

Covers: plugins/onnx/src/popgate_onnx/compiler/rows/row_check.py,
    plugins/onnx/src/popgate_onnx/compiler/rows/row_trace.py,
    plugins/onnx/src/popgate_onnx/compiler/rows/samples.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from engine.errors import InvalidModel
from popef_io import load_model
from popgate_onnx.compiler import BatchDecision, CompileOptions, compile_model
from tests.engine.onnx_models import (
    FLOAT,
    INT64,
    X,
    Y,
    floats,
    mlp,
    node,
    onnx_model,
    value,
)

AXIS0 = np.array([0], np.int64)
AXIS1 = np.array([1], np.int64)
F16, BF16, BOOL, STRING = (
    TensorProto.FLOAT16,
    TensorProto.BFLOAT16,
    TensorProto.BOOL,
    TensorProto.STRING,
)


def decide(model: Any, folder: Path, **options: Any) -> BatchDecision:
    return compile_model(model, folder / "m.popef", CompileOptions(**options)).batch


def convolution() -> Any:
    return onnx_model(
        [
            node("Conv", ["x", "w"], ["a"], pads=[1] * 4),
            node("Relu", ["a"], ["b"]),
            node("GlobalAveragePool", ["b"], ["c"]),
            node("Flatten", ["c"], ["d"]),
            node("Gemm", ["d", "w2"], ["e"]),
            node("Softmax", ["e"], ["y"]),
        ],
        [value("x", FLOAT, ["N", 1, 8, 8])],
        [value("y", FLOAT, ["N", 10])],
        {"w": floats(8, 1, 3, 3), "w2": floats(8, 10)},
    )


def attention() -> Any:
    nodes = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes += [
            node("MatMul", ["x", name], [f"{name}1"]),
            node("Reshape", [f"{name}1", "heads"], [f"{name}2"]),
            node("Transpose", [f"{name}2"], [f"{name}3"], perm=perm),
        ]
    nodes += [
        node("MatMul", ["q3", "k3"], ["s"]),
        node("Softmax", ["s"], ["p"], axis=-1),
        node("MatMul", ["p", "v3"], ["o"]),
        node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
        node("Reshape", ["t", "back"], ["y"]),
    ]
    weights = {n: floats(32, 32, seed=i) for i, n in enumerate("qkv")}
    shapes = {"heads": np.array([0, 0, 4, 8]), "back": np.array([0, 0, 32])}
    tensor = ["N", "S", 32]
    return onnx_model(
        nodes,
        [value("x", FLOAT, tensor)],
        [value("y", FLOAT, tensor)],
        weights | shapes,
    )


def recurrent() -> Any:
    """The rows are along axis 1 inside."""
    return onnx_model(
        [
            node("Transpose", ["x"], ["t"], perm=[1, 0, 2]),
            node("LSTM", ["t", "w", "r"], ["all", "last"], hidden_size=8),
            node("Squeeze", ["last", "axis"], ["y"]),
        ],
        [value("x", FLOAT, ["N", 5, 4])],
        [Y],
        {"w": floats(1, 32, 4), "r": floats(1, 32, 8), "axis": AXIS0},
    )


def flattened() -> Any:
    """The rows are merged with another dimension inside."""
    return onnx_model(
        [
            node("Reshape", ["x", "flat"], ["a"]),
            node("MatMul", ["a", "w"], ["b"]),
            node("Reshape", ["b", "back"], ["y"]),
        ],
        [value("x", FLOAT, ["N", 4, 8])],
        [value("y", FLOAT, ["N", 4, 5])],
        {"flat": np.array([-1, 8]), "w": floats(8, 5), "back": np.array([-1, 4, 5])},
    )


def shape_arithmetic() -> Any:
    """NonZero and a branch, but on shapes only, as exporters write them."""
    return onnx_model(
        [
            node("Shape", ["x"], ["s"]),
            node("ConstantOfShape", ["s"], ["o"]),
            node("NonZero", ["o"], ["z"]),
            node("Cast", ["z"], ["c"], to=FLOAT),
            node("ReduceSum", ["c"], ["r"], keepdims=0),
            node("Mul", ["r", "zero"], ["n"]),
            node("Add", ["x", "n"], ["y"]),
        ],
        [X],
        [Y],
        {"zero": np.float32(0)},
    )


def embedding() -> Any:
    return onnx_model(
        [
            node("Gather", ["table", "x"], ["a"]),
            node("ReduceMean", ["a", "axis"], ["y"], keepdims=0),
        ],
        [value("x", INT64, ["N", "S"])],
        [value("y", FLOAT, ["N", 16])],
        {"table": floats(50, 16), "axis": AXIS1},
    )


def unary(op: str, kind: int, tail: tuple[int, ...] = (8,), **attributes: Any) -> Any:
    shape = ["N", *tail]
    return onnx_model(
        [node(op, ["x"], ["y"], **attributes)],
        [value("x", kind, shape)],
        [value("y", kind, shape)],
    )


def through_float(kind: int) -> Any:
    return onnx_model(
        [
            node("Cast", ["x"], ["a"], to=FLOAT),
            node("Exp", ["a"], ["b"]),
            node("Cast", ["b"], ["y"], to=kind),
        ],
        [value("x", kind, ["N", 8])],
        [value("y", kind, ["N", 8])],
    )


ROWWISE: dict[str, Callable[[], Any]] = {
    "mlp": mlp,
    "convolution": convolution,
    "attention": attention,
    "recurrent": recurrent,
    "flattened": flattened,
    "shape arithmetic": shape_arithmetic,
    "embedding": embedding,
    "softmax of a row": lambda: unary("Softmax", FLOAT, axis=1),
    "sum along a row": lambda: onnx_model(
        [node("CumSum", ["x", "a"], ["y"])], [X], [Y], {"a": np.int64(1)}
    ),
    "best of a row": lambda: onnx_model(
        [node("ArgMax", ["x"], ["y"], axis=1, keepdims=0)],
        [X],
        [value("y", INT64, ["N"])],
    ),
    "normalisation": lambda: onnx_model(
        [node("BatchNormalization", ["x", "a", "b", "c", "d"], ["y"])],
        [X],
        [Y],
        {n: np.abs(floats(8)) + 0.1 for n in "abcd"},
    ),
    "two inputs": lambda: onnx_model(
        [node("Concat", ["x", "z"], ["y"], axis=1)],
        [X, value("z", FLOAT, ["N", 3])],
        [value("y", FLOAT, ["N", 11])],
    ),
    "rows of one number": lambda: unary("Neg", FLOAT, ()),
    "half": lambda: unary("Sigmoid", F16),
    "bfloat": lambda: through_float(BF16),
    "booleans": lambda: unary("Not", BOOL),
    "bytes": lambda: unary("BitwiseNot", TensorProto.UINT8),
    "strings": lambda: onnx_model(
        [node("StringConcat", ["x", "s"], ["y"])],
        [value("x", STRING, ["N"])],
        [value("y", STRING, ["N"])],
        {"s": np.array(["!"], object)},
    ),
    "numbers as text": lambda: onnx_model(
        [node("Cast", ["x"], ["y"], to=FLOAT)],
        [value("x", STRING, ["N"])],
        [value("y", FLOAT, ["N"])],
    ),
    "words of texts": lambda: onnx_model(
        [
            node("StringNormalizer", ["x"], ["n"], case_change_action="LOWER"),
            node(
                "Tokenizer",
                ["n"],
                ["words"],
                domain="com.microsoft",
                mark=0,
                mincharnum=1,
                pad_value="#",
                tokenexp="[a-z]+",
            ),
            node(
                "TfIdfVectorizer",
                ["words"],
                ["y"],
                max_gram_length=1,
                max_skip_count=0,
                min_gram_length=1,
                mode="TF",
                ngram_counts=[0],
                ngram_indexes=[0, 1, 2],
                pool_strings=["good", "bad", "thing"],
            ),
        ],
        [value("x", STRING, ["N"])],
        [value("y", FLOAT, ["N", 3])],
        domains={"com.microsoft": 1},
    ),
    "a function": lambda: with_function("Neg"),
    "results renamed by the exporter": lambda: onnx_model(
        [node("Relu", ["x"], ["y"])],
        [value("x", FLOAT, ["unk__1", 8])],
        [value("y", FLOAT, ["unk__2", 8])],
    ),
    "loud rounding": lambda: onnx_model(
        # The variance as a difference of large numbers: little of it is left.
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Mul", ["a", "a"], ["aa"]),
            node("ReduceMean", ["aa", "axis"], ["m2"]),
            node("ReduceMean", ["a", "axis"], ["m"]),
            node("Mul", ["m", "m"], ["mm"]),
            node("Sub", ["m2", "mm"], ["v"]),
            node("Add", ["v", "c"], ["y"]),
        ],
        [X],
        [value("y", FLOAT, ["N", 1])],
        {"w": floats(8, 300) * 0.01 + 1, "axis": AXIS1, "c": np.float32(10)},
    ),
}


@pytest.mark.parametrize("name", ROWWISE)
def test_rows_that_do_not_depend_on_each_other_are_mixed(
    name: str, tmp_path: Path
) -> None:
    decision = decide(ROWWISE[name](), tmp_path)
    assert decision == BatchDecision(
        True, 0, "rows give the same answers alone and in a batch"
    )


def reduced(*then: Any, op: str = "ReduceMax", axis: Any = AXIS0, **more: Any) -> Any:
    """x and something made of `m`, which is a reduction of x over its rows."""
    reads = ["x"] if axis is None else ["x", "axis"]
    return onnx_model(
        [node(op, reads, ["m"], keepdims=1), *then],
        [X],
        [Y],
        {"axis": AXIS0 if axis is None else axis, **more},
    )


def threshold(op: str, comparison: str, limit: float) -> Any:
    """Only where the reduction passes the limit does anything happen."""
    return reduced(
        node(comparison, ["m", "limit"], ["g"]),
        node("Cast", ["g"], ["f"], to=FLOAT),
        node("Add", ["x", "f"], ["y"]),
        op=op,
        axis=None,
        limit=np.float32(limit),
    )


def branch(op: str) -> Any:
    out = value("z", FLOAT, ["N", 8])
    return helper.make_graph([node(op, ["x"], ["z"])], op, [], [out])


def branching(*before: Any, **constants: Any) -> Any:
    choose = node(
        "If", ["g"], ["y"], then_branch=branch("Neg"), else_branch=branch("Identity")
    )
    return onnx_model([*before, choose], [X], [Y], constants)


def data_loop() -> Any:
    """Doubles until the sum of all rows is large."""
    body = helper.make_graph(
        [
            node("Add", ["a", "a"], ["b"]),
            node("ReduceSum", ["b"], ["s"], keepdims=0),
            node("Less", ["s", "limit"], ["on"]),
        ],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), value("a", FLOAT, ["N", 8])],
        [value("on", BOOL, []), value("b", FLOAT, ["N", 8])],
    )
    return onnx_model(
        [node("Loop", ["count", "", "x"], ["y"], body=body)],
        [X],
        [Y],
        {"limit": np.float32(1e6), "count": np.int64(5)},
    )


SEEN_ALL = "reads all rows at once"
CHANGES = "changes when other rows do"
DIFFERS = "differs alone and in a batch"
COUPLED: dict[str, tuple[Callable[[], Any], str]] = {
    "softmax over rows": (lambda: unary("Softmax", FLOAT, axis=0), DIFFERS),
    "mean over rows": (
        lambda: reduced(node("Sub", ["x", "m"], ["y"]), op="ReduceMean"),
        DIFFERS,
    ),
    "a billionth of the mean": (
        lambda: reduced(
            node("Mul", ["m", "c"], ["n"]),
            node("Add", ["x", "n"], ["y"]),
            op="ReduceMean",
            c=np.float32(1e-9),
        ),
        CHANGES,
    ),
    "norm of everything": (
        lambda: reduced(node("Div", ["x", "m"], ["y"]), op="ReduceL2", axis=None),
        DIFFERS,
    ),
    "running sum": (
        lambda: onnx_model(
            [node("CumSum", ["x", "a"], ["y"])], [X], [Y], {"a": np.int64(0)}
        ),
        DIFFERS,
    ),
    "sorted rows": (
        lambda: onnx_model(
            [
                node("Shape", ["x"], ["s"], end=1),
                node("TopK", ["x", "s"], ["y", "i"], axis=0),
            ],
            [X],
            [Y],
        ),
        DIFFERS,
    ),
    "which row is best": (
        lambda: onnx_model(
            [
                node("ArgMax", ["x"], ["m"], axis=0, keepdims=1),
                node("Cast", ["m"], ["f"], to=FLOAT),
                node("Add", ["x", "f"], ["y"]),
            ],
            [X],
            [Y],
        ),
        DIFFERS,
    ),
    "rows among themselves": (
        lambda: onnx_model(
            [
                node("Transpose", ["x"], ["t"]),
                node("MatMul", ["x", "t"], ["a"]),
                node("MatMul", ["a", "x"], ["y"]),
            ],
            [X],
            [Y],
        ),
        DIFFERS,
    ),
    "rows of a lookup": (
        lambda: onnx_model(
            [node("Gather", ["x", "i"], ["y"])], [X, value("i", INT64, ["N"])], [Y]
        ),
        "either alone or in a batch",
    ),
    "statistics of the batch": (
        lambda: onnx_model(
            [
                node(
                    "BatchNormalization",
                    ["x", "a", "b", "c", "d"],
                    ["y", "e", "f"],
                    training_mode=1,
                )
            ],
            [X],
            [Y],
            {n: np.abs(floats(8)) for n in "abcd"},
        ),
        "takes its statistics from the batch",
    ),
    "scale of the batch": (
        lambda: onnx_model(
            [
                node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
                node("DequantizeLinear", ["q", "s", "z"], ["y"]),
            ],
            [X],
            [Y],
        ),
        SEEN_ALL,
    ),
    "how many are not zero": (
        lambda: onnx_model(
            [
                node("NonZero", ["x"], ["z"]),
                node("Shape", ["z"], ["s"], start=1),
                node("Cast", ["s"], ["c"], to=FLOAT),
                node("Add", ["x", "c"], ["y"]),
            ],
            [X],
            [Y],
        ),
        SEEN_ALL,
    ),
    "how many rows": (
        lambda: onnx_model(
            [
                node("Shape", ["x"], ["s"], end=1),
                node("Cast", ["s"], ["c"], to=FLOAT),
                node("Div", ["x", "c"], ["y"]),
            ],
            [X],
            [Y],
        ),
        DIFFERS,
    ),
    "more than seven rows": (
        lambda: branching(
            node("Size", ["x"], ["s"]),
            node("Greater", ["s", "c"], ["g"]),
            c=np.int64(56),
        ),
        DIFFERS,
    ),
    "place of the row": (
        lambda: onnx_model(
            [
                node("Shape", ["x"], ["s"], end=1),
                node("Squeeze", ["s"], ["n"]),
                node("Range", ["zero", "n", "one"], ["r"]),
                node("Cast", ["r"], ["f"], to=FLOAT),
                node("Unsqueeze", ["f", "axis"], ["p"]),
                node("Add", ["x", "p"], ["y"]),
            ],
            [X],
            [Y],
            {"zero": np.int64(0), "one": np.int64(1), "axis": AXIS1},
        ),
        DIFFERS,
    ),
    "rows turned round": (
        lambda: onnx_model(
            [node("Slice", ["x", "a", "b", "axis", "step"], ["y"])],
            [X],
            [Y],
            {
                "a": np.array([-1]),
                "b": np.array([-(10**6)]),
                "axis": AXIS0,
                "step": np.array([-1]),
            },
        ),
        DIFFERS,
    ),
    "a rare maximum": (lambda: threshold("ReduceMax", "Greater", 1e37), CHANGES),
    "a common maximum": (lambda: threshold("ReduceMax", "Greater", 2.5), "row"),
    "a rare minimum": (lambda: threshold("ReduceMin", "Less", -1e5), CHANGES),
    "one exact maximum": (lambda: threshold("ReduceMax", "Equal", 12345), CHANGES),
    "one exact count": (
        lambda: onnx_model(
            [
                node("Greater", ["x", "c"], ["g"]),
                node("Cast", ["g"], ["f"], to=FLOAT),
                node("ReduceSum", ["f"], ["s"], keepdims=0),
                node("Equal", ["s", "k"], ["e"]),
                node("Cast", ["e"], ["h"], to=FLOAT),
                node("Add", ["x", "h"], ["y"]),
            ],
            [X],
            [Y],
            {"c": np.float32(3.3), "k": np.float32(17)},
        ),
        "row",
    ),
    "a branch on data": (
        lambda: branching(
            node("ReduceMax", ["x"], ["m"], keepdims=0),
            node("Greater", ["m", "c"], ["g"]),
            c=np.float32(77),
        ),
        "branches on data",
    ),
    "a loop on data": (data_loop, "a number of times that depends on data"),
    "random": (
        lambda: onnx_model(
            [node("RandomNormalLike", ["x"], ["r"]), node("Add", ["x", "r"], ["y"])],
            [X],
            [Y],
        ),
        "returns random numbers",
    ),
    "dropping": (
        lambda: onnx_model(
            [node("Dropout", ["x", "ratio", "mode"], ["y"])],
            [X],
            [Y],
            {"ratio": np.float32(0.5), "mode": np.array(True)},
        ),
        "drops values at random",
    ),
    "integers over rows": (
        lambda: onnx_model(
            [
                node("ReduceMax", ["x", "axis"], ["m"], keepdims=1),
                node("Greater", ["m", "c"], ["g"]),
                node("Cast", ["g"], ["i"], to=INT64),
                node("Add", ["x", "i"], ["y"]),
            ],
            [value("x", INT64, ["N", 8])],
            [value("y", INT64, ["N", 8])],
            {"axis": AXIS0, "c": np.int64(10**12)},
        ),
        CHANGES,
    ),
    "any of the booleans": (
        lambda: onnx_model(
            [
                node("Cast", ["x"], ["f"], to=FLOAT),
                node("ReduceMax", ["f", "axis"], ["m"], keepdims=1),
                node("Add", ["f", "m"], ["y"]),
            ],
            [value("x", BOOL, ["N", 8])],
            [Y],
            {"axis": AXIS0},
        ),
        "row",
    ),
    "as large as data says": (
        lambda: onnx_model(
            [
                node("ReduceMax", ["x"], ["m"], keepdims=0),
                node("Range", ["zero", "m", "one"], ["r"]),
                node("Size", ["r"], ["s"]),
                node("Add", ["x", "s"], ["y"]),
            ],
            [value("x", INT64, ["N", 8])],
            [value("y", INT64, ["N", 8])],
            {"zero": np.int64(0), "one": np.int64(1)},
        ),
        "Range node 'Range_1' has a result whose size depends on data",
    ),
    "hidden in a function": (
        lambda: with_function("Unique"),
        "Unique node reads all rows at once",
    ),
    "nothing to see": (
        lambda: onnx_model(
            [node("Mul", ["x", "zero"], ["y"])], [X], [Y], {"zero": np.float32(0)}
        ),
        "which shows nothing; if rows do not depend on each other, set batching = true",
    ),
    "not to be run on anything": (
        lambda: onnx_model(
            [node("Cast", ["x"], ["n"], to=INT64), node("Gather", ["t", "n"], ["y"])],
            [value("x", STRING, ["N"])],
            [value("y", FLOAT, ["N", 4])],
            {"t": np.empty((0, 4), np.float32)},
        ),
        "could not be run on synthetic rows",
    ),
    "a fixed row": (lambda: unary_fixed(), "input 'x' is fixed at 1"),
    "a scalar beside": (
        lambda: onnx_model(
            [node("Mul", ["x", "s"], ["y"])], [X, value("s", FLOAT, [])], [Y]
        ),
        "input 's' is a scalar",
    ),
    "two kinds of rows": (
        lambda: onnx_model(
            [node("Add", ["x", "z"], ["y"])], [X, value("z", FLOAT, ["M", 8])], [Y]
        ),
        "'x' and 'z' are N and M, which may differ",
    ),
    "rows without a name": (
        lambda: onnx_model(
            [node("Add", ["x", "z"], ["y"])],
            [value("x", FLOAT, [None, 8]), value("z", FLOAT, [None, 8])],
            [value("y", FLOAT, [None, 8])],
        ),
        "which may differ",
    ),
    "rows and columns": (
        lambda: onnx_model(
            [node("Neg", ["x"], ["y"])],
            [value("x", FLOAT, ["N", "N"])],
            [value("y", FLOAT, ["N", "N"])],
        ),
        "is also another dimension",
    ),
    "one row out": (
        lambda: onnx_model(
            [node("ReduceSum", ["x", "axis"], ["y"])],
            [X],
            [value("y", FLOAT, ["K", 8])],
            {"axis": AXIS0},
        ),
        "output 'y' is fixed at 1; export the model with its rows first in every",
    ),
    "twice the rows out": (
        lambda: onnx_model(
            [node("Concat", ["x", "x"], ["y"], axis=0)],
            [X],
            [value("y", FLOAT, ["K", 8])],
        ),
        "for 1 row",
    ),
}


def with_function(op: str) -> Any:
    """y = x, by way of the size of what `op` makes of x, all in a function."""
    body = [
        node("Shape", ["a"], ["shape"]),
        node("Reshape", ["a", "shape"], ["same"]),
        node(op, ["same"], ["u"]),
        node("Size", ["u"], ["n"]),
        node("Cast", ["n"], ["f"], to=FLOAT),
        node("Mul", ["f", "f"], ["g"]),
        node("Sub", ["g", "g"], ["zero"]),
        node("Add", ["a", "zero"], ["b"]),
    ]
    imports = [helper.make_opsetid("", 20)]
    model = onnx_model(
        [node("Mine", ["x"], ["y"], domain="mine")], [X], [Y], domains={"mine": 1}
    )
    model.functions.append(
        helper.make_function("mine", "Mine", ["a"], ["b"], body, imports)
    )
    return model


def unary_fixed() -> Any:
    return onnx_model(
        [node("Neg", ["x"], ["y"])],
        [value("x", FLOAT, [1, 8])],
        [value("y", FLOAT, [1, 8])],
    )


@pytest.mark.parametrize("name", COUPLED)
def test_rows_that_may_depend_on_each_other_are_never_mixed(
    name: str, tmp_path: Path
) -> None:
    make, reason = COUPLED[name]
    decision = decide(make(), tmp_path)
    assert not decision.rows
    assert decision.size == 0
    assert reason in decision.reason


def test_the_decision_is_recorded(tmp_path: Path) -> None:
    for model, batching in ((mlp(), "rows"), (COUPLED["random"][0](), "none")):
        decision = decide(model, tmp_path)
        option = load_model(tmp_path / "m.popef").metadata.option
        assert option("popgate.batching") == batching
        assert option("popgate.batch_size") == "0"
        assert option("popgate.batching_reason") == decision.reason


def test_batching_can_be_switched_off(tmp_path: Path) -> None:
    report = compile_model(mlp(), tmp_path / "m", CompileOptions(batch="off"))
    assert report.batch == BatchDecision(False, 0, "batching is switched off")
    assert report.inputs[0].info.shape == (-1, 8)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_a_fixed_batch_is_checked_too(size: int, tmp_path: Path) -> None:
    report = compile_model(mlp(), tmp_path / "m", CompileOptions(batch=size))
    assert report.batch.rows
    assert report.batch.size == size
    assert report.inputs[0].info.shape == (size, 8)
    assert report.outputs[0].info.shape == (size, 4)
    for name in ("softmax over rows", "running sum", "one exact maximum"):
        decision = decide(COUPLED[name][0](), tmp_path, batch=size)
        assert not decision.rows
        assert decision.size == size


def test_a_batch_that_the_model_has_already(tmp_path: Path) -> None:
    model = onnx_model(
        [node("Neg", ["x"], ["y"])],
        [value("x", FLOAT, [4, 8])],
        [value("y", FLOAT, [4, 8])],
    )
    assert decide(model, tmp_path, batch=4).rows
    assert not decide(model, tmp_path).rows


def test_a_batch_of_one_has_nothing_to_mix(tmp_path: Path) -> None:
    report = compile_model(mlp(), tmp_path / "m", CompileOptions(batch=1))
    assert not report.batch.rows
    assert report.inputs[0].info.shape == (1, 8)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ([value("x", FLOAT, [3, 8])], "first dimension of input 'x' is fixed at 3"),
        ([value("x", FLOAT, [])], "input 'x' has no first dimension"),
        ([value("x", FLOAT, None)], "input 'x' has no first dimension"),
        ([], "the model has no inputs"),
    ],
)
def test_a_batch_that_contradicts_the_model_is_refused(
    inputs: list[Any], message: str, tmp_path: Path
) -> None:
    constant = {} if inputs else {"x": np.float32(1)}
    model = onnx_model(
        [node("Neg", ["x"], ["y"])], inputs, [value("y", FLOAT, None)], constant
    )
    with pytest.raises(InvalidModel, match=message):
        decide(model, tmp_path, batch=4)


def test_more_than_one_seed_and_thread_agree(tmp_path: Path) -> None:
    for seed in range(3):
        assert decide(convolution(), tmp_path, seed=seed, threads=2).rows
        model = COUPLED["a rare minimum"][0]()
        assert not decide(model, tmp_path, seed=seed).rows


def test_a_check_without_time_still_asks_what_tells_most(tmp_path: Path) -> None:
    assert decide(mlp(), tmp_path, check_seconds=0.0).rows
    for name in ("softmax over rows", "a billionth of the mean", "a rare maximum"):
        assert not decide(COUPLED[name][0](), tmp_path, check_seconds=0.0).rows


def test_rows_too_large_to_be_tried_are_never_mixed(tmp_path: Path) -> None:
    # Not tried either, so that nobody's memory is filled.
    for rows, size, batch in (("N", 1 << 40, "auto"), (1 << 20, 1 << 10, 1 << 20)):
        model = onnx_model(
            [node("Relu", ["x"], ["y"])],
            [value("x", FLOAT, [rows, size])],
            [value("y", FLOAT, [rows, size])],
        )
        decision = decide(model, tmp_path, batch=batch)
        assert not decision.rows
        assert "synthetic rows would take" in decision.reason
