"""Inputs whose first dimensions have no common name: proven to be rows, or left alone.

Where a model is batched, requests that bring different numbers of rows are refused: so
it must be sure that ONNX Runtime would have refused them too.

Covers: plugins/onnx/src/popgate_onnx/compiler/rows/column_values.py,
    plugins/onnx/src/popgate_onnx/compiler/rows/row_mixers.py,
    plugins/onnx/src/popgate_onnx/compiler/rows/row_proof.py,
    plugins/row_proof/src/popgate_row_proof/call.py,
    plugins/row_proof/src/popgate_row_proof/ml_rules.py,
    plugins/row_proof/src/popgate_row_proof/rules.py,
    plugins/row_proof/src/popgate_row_proof/shape_rules.py,
    plugins/row_proof/src/popgate_row_proof/values.py.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from plugins.onnx.tests.compiler.test_backend_cases import CASES, Case, array, same
from popgate_onnx.compiler import BatchDecision, compile_model
from popgate_onnx.compiler.rows.row_mixers import row_mixer
from popgate_row_proof.proof import traced
from popgate_row_proof.values import AbstractValue, RowCounts, Rows, Unproven, reshaped
from tests.engine.onnx_models import (
    FLOAT,
    INT64,
    Compiled,
    floats,
    node,
    onnx_model,
    value,
)
from tests.engine.transformer import transformer

ML = "ai.onnx.ml"
STRING = TensorProto.STRING
ANY = None


def learned(*arguments: Any, **attributes: Any) -> Any:
    return node(*arguments, domain=ML, **attributes)


def columns(
    *nodes: Any,
    outputs: Mapping[str, Any] | None = None,
    constants: Mapping[str, Any] | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Any:
    """A model of the columns `a`, `b` and `c`; `y` is what it gives."""
    given = inputs or dict.fromkeys("abc", (FLOAT, [ANY, 1]))
    results = outputs or {"y": (FLOAT, [ANY, None])}
    return onnx_model(
        nodes,
        [value(name, *info) for name, info in given.items()],
        [value(name, *info) for name, info in results.items()],
        constants,
        domains={ML: 3},
    )


JOIN = node("Concat", ["a", "b", "c"], ["x"], axis=1)
WEIGHTS = {"w": floats(3, 4)}
DENSE = node("MatMul", ["x", "w"], ["y"])


def forest() -> Any:
    """Two trees of one comparison each."""
    return learned(
        "TreeEnsembleClassifier", ["s"], ["label", "p"],
        nodes_treeids=[0, 0, 0, 1, 1, 1], nodes_nodeids=[0, 1, 2] * 2,
        nodes_featureids=[0, 0, 0, 2, 0, 0], nodes_values=[0.3, 0, 0, -0.2, 0, 0],
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
        nodes_truenodeids=[1, 0, 0] * 2, nodes_falsenodeids=[2, 0, 0] * 2,
        nodes_missing_value_tracks_true=[0] * 6, nodes_hitrates=[1.0] * 6,
        class_treeids=[0, 0, 1, 1], class_nodeids=[1, 2, 1, 2],
        class_ids=[0, 1, 2, 0], class_weights=[1.0, 0.5, 0.7, 0.2],
        classlabels_int64s=[10, 11, 12], post_transform="NONE",
    )  # fmt: skip


def pipeline() -> Any:
    """As scikit-learn exports a table of numbers and words, a column an input."""
    return columns(
        node("Concat", ["a", "b"], ["n"], axis=1),
        learned("Imputer", ["n"], ["i"], imputed_value_floats=[30.0, 20.0],
                replaced_value_float=float("nan")),
        learned("Scaler", ["i"], ["n2"], offset=[30.0, 20.0], scale=[0.1, 0.2]),
        node("Concat", ["u", "v"], ["t"], axis=1),
        node("Gather", ["t", "first"], ["u1"], axis=1),
        node("Gather", ["t", "second"], ["v1"], axis=1),
        learned("OneHotEncoder", ["u1"], ["u2"], cats_strings=["m", "f"], zeros=0),
        learned("OneHotEncoder", ["v1"], ["v2"], cats_strings=["S", "C"], zeros=0),
        node("Reshape", ["u2", "flat"], ["u3"]),
        node("Reshape", ["v2", "flat"], ["v3"]),
        learned("LabelEncoder", ["u"], ["u4"], keys_strings=["m", "f"],
                values_floats=[1.0, 2.0], default_float=0.0),
        node("Concat", ["n2", "u3", "v3", "u4"], ["x"], axis=1),
        learned("LinearClassifier", ["x"], ["k", "s"], coefficients=[*floats(21)],
                intercepts=[0.1, 0.2, 0.3], classlabels_ints=[0, 1, 2]),
        learned("Normalizer", ["s"], ["p"], norm="L1"),
        node("ArgMax", ["p"], ["best"], axis=1),
        learned("ArrayFeatureExtractor", ["names", "best"], ["line"]),
        node("Reshape", ["line", "all"], ["label"]),
        inputs={"a": (FLOAT, [ANY, 1]), "b": (FLOAT, [ANY, 1]),
                "u": (STRING, [ANY, 1]), "v": (STRING, [ANY, 1])},
        outputs={"label": (STRING, [ANY]), "p": (FLOAT, [ANY, 3])},
        constants={"flat": np.array([-1, 2]), "all": np.array([-1]),
                   "first": np.array([0]), "second": np.array([1]),
                   "names": np.array(["x", "y", "z"], object)},
    )  # fmt: skip


def towers() -> Any:
    """Two towers as Keras exports them: names of their own, shapes from shapes."""
    return columns(
        node("Shape", ["a"], ["shape"]),
        node("Slice", ["shape", "zero", "one", "zero"], ["n"]),
        node("Concat", ["n", "six"], ["target"], axis=0),
        node("Reshape", ["a", "target"], ["flat"]),
        node("MatMul", ["flat", "w"], ["left"]),
        node("Unsqueeze", ["n", "zero"], ["n1"]),
        node("Squeeze", ["n1", "zero"], ["n2"]),
        node("Concat", ["n2", "four"], ["hidden"], axis=0),
        node("ConstantOfShape", ["hidden"], ["state"]),
        node("Add", ["left", "state"], ["l"]),
        node("Concat", ["l", "b"], ["x"], axis=-1),
        node("Softmax", ["x"], ["y"], axis=-1),
        inputs={"a": (FLOAT, ["unk__1", 2, 3]), "b": (FLOAT, ["unk__2", 4])},
        outputs={"y": (FLOAT, ["unk__3", 8])},
        constants={"zero": np.array([0]), "one": np.array([1]), "six": np.array([6]),
                   "four": np.array([4]), "w": floats(6, 4)},
    )  # fmt: skip


def recurrent() -> Any:
    return columns(
        node("Transpose", ["a"], ["t"], perm=[1, 0, 2]),
        node("LSTM", ["t", "lw", "lr"], ["", "last"], hidden_size=4),
        node("Squeeze", ["last", "zero"], ["l"]),
        node("Concat", ["l", "b"], ["y"], axis=1),
        inputs={"a": (FLOAT, [ANY, 5, 2]), "b": (FLOAT, [ANY, 3])},
        outputs={"y": (FLOAT, [ANY, 7])},
        constants={"lw": floats(1, 16, 2), "lr": floats(1, 16, 4),
                   "zero": np.array([0])},
    )  # fmt: skip


SEPARATE: dict[str, Callable[[], Any]] = {
    "columns side by side": lambda: columns(JOIN, DENSE, constants=WEIGHTS),
    "a forest": lambda: columns(
        JOIN,
        learned("Scaler", ["x"], ["s"], offset=[0.1], scale=[2.0]),
        forest(),
        outputs={"label": (INT64, [ANY]), "p": (FLOAT, [ANY, 3])},
    ),
    "numbers and words": pipeline,
    "two towers": towers,
    "a recurrent tower": recurrent,
    "added, and side by side": lambda: columns(
        JOIN, node("Add", ["a", "b"], ["d"]), node("Mul", ["x", "d"], ["y"])
    ),
    "a vector": lambda: columns(
        learned("FeatureVectorizer", ["a", "b", "c"], ["x"], inputdimensions=[1, 1, 1]),
        DENSE,
        constants=WEIGHTS,
    ),
    "some share a name": lambda: columns(
        node("Add", ["a", "b"], ["d"]),
        node("Concat", ["d", "c"], ["y"], axis=1),
        inputs={"a": (FLOAT, ["N", 1]), "b": (FLOAT, ["N", 1]), "c": (FLOAT, [ANY, 1])},
    ),
    "in a function": lambda: with_function(),
    "a transformer": transformer,
}


def with_function() -> Any:
    model = columns(
        node("Join", ["a", "b", "c"], ["x"], domain="mine"), DENSE, constants=WEIGHTS
    )
    model.opset_import.append(helper.make_opsetid("mine", 1))
    imports = [helper.make_opsetid("", 20)]
    model.functions.append(
        helper.make_function("mine", "Join", ["a", "b", "c"], ["x"], [JOIN], imports)
    )
    return model


@pytest.mark.parametrize("name", SEPARATE)
def test_inputs_that_must_have_as_many_rows_are_batched(
    name: str, tmp_path: Path
) -> None:
    decision = compile_model(SEPARATE[name](), tmp_path / "m.popef").batch
    assert decision == BatchDecision(
        True, 0, "rows give the same answers alone and in a batch"
    )


X3 = {"x": (FLOAT, [ANY, 3]), "z": (FLOAT, [ANY, 3])}
NOTHING_FAILS = "the model may also run if"
JOINED: dict[str, tuple[Callable[[], Any], str]] = {
    "one after the other": (
        lambda: columns(node("Concat", ["x", "z"], ["y"], axis=0), inputs=X3),
        "concatenates values along the axis of rows",
    ),
    "a single row for all": (
        lambda: columns(node("Add", ["x", "z"], ["y"]), inputs=X3),
        NOTHING_FAILS,
    ),
    "a single row for all, beside one": (
        lambda: columns(
            node("Add", ["x", "z"], ["s"]),
            node("Concat", ["s", "x"], ["y"], axis=1),
            inputs=X3,
        ),
        NOTHING_FAILS,
    ),
    "side by side, for nothing": (
        lambda: columns(
            node("Concat", ["x", "z"], ["unused"], axis=1),
            node("Add", ["x", "z"], ["y"]),
            inputs=X3,
        ),
        NOTHING_FAILS,
    ),
    "a transformer without a common name": (
        # One mask may do for all texts.
        lambda: transformer("b1", "b2", "b3"),
        NOTHING_FAILS,
    ),
    "never together": (
        lambda: columns(
            node("Neg", ["x"], ["y"]),
            node("Abs", ["z"], ["w"]),
            inputs=X3,
            outputs={"y": (FLOAT, [ANY, 3]), "w": (FLOAT, [ANY, 3])},
        ),
        NOTHING_FAILS,
    ),
    "never read": (
        lambda: columns(node("Neg", ["x"], ["y"]), inputs=X3),
        NOTHING_FAILS,
    ),
    "taken by number": (
        lambda: columns(
            node("Gather", ["x", "i"], ["y"]),
            inputs={"x": (FLOAT, [ANY, 3]), "i": (INT64, [ANY])},
        ),
        "selects rows by their number",
    ),
    "extracted by number": (
        lambda: columns(
            learned("ArrayFeatureExtractor", ["x", "i"], ["y"]),
            inputs={"x": (FLOAT, [ANY, 3]), "i": (INT64, [ANY])},
        ),
        "selects rows by their number",
    ),
    "a mean over rows": (
        lambda: columns(
            JOIN,
            node("ReduceMean", ["x", "axis"], ["m"]),
            node("Sub", ["x", "m"], ["y"]),
            constants={"axis": np.array([0])},
        ),
        "combines values along the axis of rows",
    ),
    "a sum of everything": (
        lambda: columns(
            JOIN, node("ReduceSum", ["x"], ["m"]), node("Sub", ["x", "m"], ["y"])
        ),
        "combines values along the axis of rows",
    ),
    "each row with every other": (
        lambda: columns(
            node("Transpose", ["z"], ["t"]),
            node("MatMul", ["x", "t"], ["y"]),
            inputs=X3,
        ),
        "combines each row with every other",
    ),
    "a column beside a line": (
        lambda: columns(
            node("Add", ["a", "v"], ["y"]),
            inputs={"a": (FLOAT, [ANY, 1]), "v": (FLOAT, [ANY])},
        ),
        "combines each row with every other",
    ),
    "rows as columns": (
        lambda: columns(
            node("Reshape", ["v", "line"], ["m"]),
            learned("Scaler", ["m"], ["n"], offset=[1.0], scale=[2.0]),
            learned("Normalizer", ["n"], ["o"], norm="MAX"),
            node("Reshape", ["o", "all"], ["p"]),
            node("Concat", ["p", "a"], ["y"], axis=1),
            inputs={"a": (FLOAT, [ANY, 1]), "v": (FLOAT, [ANY])},
            constants={"line": np.array([1, -1]), "all": np.array([-1, 1])},
        ),
        "reads rows that do not lie along the first axis",
    ),
    "a vector, which is one row to it": (
        lambda: columns(
            learned("Normalizer", ["v"], ["o"], norm="MAX"),
            node("Unsqueeze", ["o", "one"], ["p"]),
            node("Concat", ["p", "a"], ["y"], axis=1),
            inputs={"a": (FLOAT, [ANY, 1]), "v": (FLOAT, [ANY])},
            constants={"one": np.array([1])},
        ),
        "reads 1 dimension, expected 2",
    ),
    "a scale for each of a vector": (
        lambda: columns(
            learned("Scaler", ["v"], ["o"], offset=[1.0] * 5, scale=[2.0] * 5),
            node("Unsqueeze", ["o", "one"], ["p"]),
            node("Concat", ["p", "a"], ["y"], axis=1),
            inputs={"a": (FLOAT, [ANY, 1]), "v": (FLOAT, [ANY])},
            constants={"one": np.array([1])},
        ),
        "reads 1 dimension, expected 2",
    ),
    "more elements than places": (
        # ONNX Runtime makes (-1, 1) of the shape, and does not fail.
        lambda: columns(
            node("Shape", ["b"], ["s"], end=1),
            node("Concat", ["s", "one"], ["target"], axis=0),
            node("Reshape", ["a", "target"], ["u"]),
            node("Concat", ["u", "b"], ["y"], axis=1),
            inputs={"a": (FLOAT, [ANY, 3]), "b": (FLOAT, [ANY, 1])},
            constants={"one": np.array([1])},
        ),
        "may put different rows together",
    ),
    "divided by their number": (
        lambda: columns(
            JOIN,
            node("Shape", ["x"], ["s"], end=1),
            node("Cast", ["s"], ["n"], to=FLOAT),
            node("Div", ["x", "n"], ["y"]),
        ),
        "depends on the number of rows",
    ),
    "the place of their number": (
        lambda: columns(
            JOIN,
            node("Shape", ["x"], ["s"], end=1),
            node("Gather", ["w", "s"], ["v"]),
            node("Add", ["x", "v"], ["y"]),
            constants={"w": floats(100, 3)},
        ),
        "depends on the number of rows",
    ),
    "different rows in a line": (
        lambda: columns(
            node("Transpose", ["a"], ["t"], perm=[1, 0, 2]),
            node("Reshape", ["t", "flat"], ["u"]),
            node("Concat", ["u", "b"], ["y"], axis=1),
            inputs={"a": (FLOAT, [ANY, 2, 3]), "b": (FLOAT, [ANY, 1])},
            constants={"flat": np.array([-1, 6])},
        ),
        "may put different rows together",
    ),
    "an output by columns": (
        lambda: columns(
            node("Concat", ["a", "b"], ["x"], axis=1),
            node("Transpose", ["x"], ["y"]),
            inputs={"a": (FLOAT, [ANY, ANY]), "b": (FLOAT, [ANY, ANY])},
        ),
        "output 'y' may not have one row for each input row",
    ),
    "one operator of unknown ways": (
        lambda: columns(JOIN, node("Trilu", ["x"], ["y"])),
        "Trilu node 'Trilu_1' is not known to keep rows apart",
    ),
    "turned round": (
        lambda: columns(
            JOIN,
            node("Slice", ["x", "from", "to", "axis", "step"], ["y"]),
            constants={"from": np.array([-1]), "to": np.array([-(10**6)]),
                       "axis": np.array([0]), "step": np.array([-1])},
        ),
        "combines values along the axis of rows",
    ),
    "a branch": (
        lambda: columns(
            JOIN,
            node("Shape", ["x"], ["s"], start=1),
            node("Squeeze", ["s"], ["n"]),
            node("Equal", ["n", "three"], ["is_three"]),
            node("If", ["is_three"], ["y"], then_branch=branch("Neg"),
                 else_branch=branch("Abs")),
            constants={"three": np.int64(3)},
        ),
        "is not known to keep rows apart",
    ),
    "one row for all out": (
        lambda: columns(
            JOIN,
            node("ReduceMax", ["x", "axis"], ["y"]),
            outputs={"y": (FLOAT, [1, 3])},
            constants={"axis": np.array([0])},
        ),
        "output 'y' is fixed at 1",
    ),
}  # fmt: skip


def branch(op: str) -> Any:
    out = value("o", FLOAT, None)
    return helper.make_graph([node(op, ["x"], ["o"])], op, [], [out])


@pytest.mark.parametrize("name", JOINED)
def test_inputs_that_may_have_other_numbers_of_rows_are_left_alone(
    name: str, tmp_path: Path
) -> None:
    make, reason = JOINED[name]
    decision = compile_model(make(), tmp_path / "m.popef").batch
    assert not decision.rows
    assert reason in decision.reason


def test_a_model_that_repeats_a_single_row_runs_as_it_did(tmp_path: Path) -> None:
    compile_model(JOINED["a single row for all"][0](), tmp_path / "m.popef")
    x, z = floats(4, 3), floats(1, 3)
    assert np.array_equal(Compiled(tmp_path / "m.popef").run(x=x, z=z)["y"], x + z)


def test_a_label_that_is_said_to_be_one_for_all_rows_is_one_for_each(
    tmp_path: Path,
) -> None:
    """Some converters declare it so, and ONNX Runtime gives what there is."""
    model = SEPARATE["a forest"]()
    for output in model.graph.output:
        if output.name == "label":
            output.type.tensor_type.shape.dim[0].dim_value = 1
    report = compile_model(model, tmp_path / "m.popef")
    assert report.batch.rows, report.batch.reason
    assert [str(output) for output in report.outputs] == [
        "label: S64[?]",
        "p: F32[?, 3]",
    ]
    reduced = JOINED["one row for all out"][0]()
    assert compile_model(reduced, tmp_path / "m").outputs[0].info.shape == (1, 3)


def test_what_is_known_of_a_reshape_is_so() -> None:
    """Against NumPy, on all small shapes: rows lie where it is said."""
    rows, shown = 3, 0
    sizes = ((), (1,), (2,), (4,), (2, 2), (1, 4))
    targets = [(-1,), *((a, -1) for a in (1, 2, 4)), *((-1, a) for a in (1, 2, 4))]
    targets += [(a, -1, b) for a in (1, 2) for b in (1, 2, 4)]
    named: list[Any] = [
        (Rows(0), -1),
        (-1, Rows(0)),
        (2, Rows(0), -1),
        (Rows(0, 2), -1),
    ]
    for before in sizes:
        for behind in sizes:
            for target in [*targets, *named]:
                shape = (*before, Rows(0), *behind)
                try:
                    result = reshaped(shape, target)
                except Unproven:
                    continue
                actual = numbers_of_rows(before, rows, behind)
                try:
                    actual = actual.reshape([numbered(size, rows) for size in target])
                except ValueError:
                    continue  # nor would ONNX Runtime
                assert actual.shape == tuple(numbered(size, rows) for size in result)
                axis = AbstractValue(result).axis
                assert axis is not None
                each = result[axis].each  # type: ignore[union-attr]
                wanted = np.arange(rows).repeat(each)
                tail = [1] * (len(result) - axis - 1)
                assert (actual == wanted.reshape(-1, *tail)).all()
                shown += prod(actual.shape) > rows
    assert shown > 50


def numbers_of_rows(before: Any, rows: int, behind: Any) -> Any:
    """An array of that shape: each element is the number of its row."""
    numbers = np.arange(rows).reshape(-1, *[1] * len(behind))
    return np.broadcast_to(numbers, (*before, rows, *behind))


def numbered(size: Any, rows: int) -> int:
    return rows * size.each if isinstance(size, Rows) else int(size)


def test_what_is_known_of_operators_is_so() -> None:
    """Against ONNX Runtime, on its own cases: the first axes of inputs are rows.

    Where rows are said to stay apart, nothing of a row changes when others do.
    """
    shown = sum(
        row_stays(case, arrays, place)
        for case in CASES.values()
        if (arrays := arrays_of(case))
        for place, given in enumerate(arrays)
        if given.ndim and len(given) > 1
    )
    assert shown > 60


def arrays_of(case: Case) -> list[Any]:
    if len(case.model.graph.node) > 4 or len(case.data_sets[0][0]) > 3:
        return []
    try:
        arrays = [array(given) for given in case.data_sets[0][0]]
    except (TypeError, ValueError):
        return []
    count = len(case.model.graph.input)
    return arrays if len(arrays) == count and row_mixer(case.model) is None else []


def row_stays(case: Case, arrays: list[Any], place: int) -> bool:
    """Whether anything is said about the input at `place`; fails if it is wrong."""
    model, names = case.model, [v.name for v in case.model.graph.input]
    outputs = [v.name for v in model.graph.output]
    known = {n: AbstractValue(a.shape) for n, a in zip(names, arrays, strict=True)}
    known[names[place]] = AbstractValue((Rows(0), *arrays[place].shape[1:]))
    try:
        values = traced(model, known, outputs, RowCounts(1))
    except Unproven:
        return False
    options = ort.SessionOptions()
    options.log_severity_level = 4
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
        first = session.run(None, dict(zip(names, arrays, strict=True)))
        other = [a.copy() for a in arrays]
        row = len(other[place]) // 2
        other[place] = np.roll(other[place][::-1], 1, axis=0)
        other[place][row] = arrays[place][row]
        second = session.run(None, dict(zip(names, other, strict=True)))
    except Exception:  # ONNX Runtime does not have all operators, nor all values
        return False
    rows = len(arrays[place])
    for output, one, two in zip(outputs, first, second, strict=True):
        said = values.get(output)
        if said is None:
            continue
        assert len(said.shape) == one.ndim, case.name
        for size, got in zip(said.shape, one.shape, strict=True):
            assert isinstance(size, str) or numbered(size, rows) == got, case.name
        if said.axis is not None:
            each = said.shape[said.axis].each  # type: ignore[union-attr]
            mine = range(row * each, row * each + each)
            one, two = (a.take(mine, said.axis) for a in (one, two))
        assert same(one, two), case.name
    return True
