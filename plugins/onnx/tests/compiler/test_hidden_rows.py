"""Dependences between rows that only rare values, or nested graphs, would show.

Covers: plugins/onnx/src/popgate_onnx/compiler/rows/exposure.py,
    plugins/onnx/src/popgate_onnx/compiler/rows/known_values.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from popgate_onnx.compiler import CompileOptions, compile_model
from popgate_onnx.compiler.rows.exposure import exposed, has_inside
from popgate_onnx.compiler.rows.known_values import known_values
from tests.engine.onnx_models import FLOAT, INT64, X, Y, mlp, node, onnx_model, value

BOOL = TensorProto.BOOL
ROWS = ["N", 8]
#: The square of the constant `root`: it is no constant of the model itself.
ROOT = np.float32(123.45)


def rare(source: str, target: str, *, mixing: bool = True) -> list[Any]:
    """`target` is `source`, plus one where the maximum over all rows is `ROOT` squared.

    Without `mixing` the values of each row are looked at alone.
    """
    seen = node("ReduceMax", [source], ["most"], keepdims=1)
    return [
        node("Mul", ["root", "root"], ["limit"]),
        seen if mixing else node("Identity", [source], ["most"]),
        node("Equal", ["most", "limit"], ["equal"]),
        node("Cast", ["equal"], ["extra"], to=FLOAT),
        node("Add", [source, "extra"], [target]),
    ]


def scan(*, mixing: bool = True) -> Any:
    """Over the columns; all rows of one column at a time."""
    column = ["N"]
    body = helper.make_graph(
        [node("Identity", ["state"], ["after"]), *rare("c", "o", mixing=mixing)],
        "body",
        [value("state", FLOAT, column), value("c", FLOAT, column)],
        [value("after", FLOAT, column), value("o", FLOAT, column)],
    )
    return onnx_model(
        [
            node("Gather", ["x", "zero"], ["first"], axis=1),
            node(
                "Scan", ["first", "x"], ["last", "y"], body=body, num_scan_inputs=1,
                scan_input_axes=[1], scan_output_axes=[1],
            ),
        ],
        [X],
        [Y],
        {"root": ROOT, "zero": np.int64(0)},
    )  # fmt: skip


def loop_body(nodes: list[Any], number: int) -> Any:
    count, go, on = (f"{name}{number}" for name in ("count", "go", "on"))
    source, target = f"a{number}", f"b{number}"
    return helper.make_graph(
        [*nodes, node("Identity", [go], [on])],
        f"body{number}",
        [value(count, INT64, []), value(go, BOOL, []), value(source, FLOAT, ROWS)],
        [value(on, BOOL, []), value(target, FLOAT, ROWS)],
    )


def loop(*, mixing: bool = True) -> Any:
    """A loop in a loop."""
    inner = loop_body(rare("a1", "b1", mixing=mixing), 1)
    outer = loop_body([node("Loop", ["times", "", "a0"], ["b0"], body=inner)], 0)
    return onnx_model(
        [node("Loop", ["times", "", "x"], ["y"], body=outer)],
        [X],
        [Y],
        {"root": ROOT, "times": np.int64(3)},
    )


def branch(*, mixing: bool = True) -> Any:
    """Taken for this number of columns, which is no data."""
    taken = rare("x", "z", mixing=mixing)
    other = [node("Neg", ["x"], ["w"])]
    results = value("z", FLOAT, ROWS), value("w", FLOAT, ROWS)
    return onnx_model(
        [
            node("Shape", ["x"], ["shape"], start=1),
            node("Squeeze", ["shape"], ["columns"]),
            node("Equal", ["columns", "eight"], ["is_eight"]),
            node(
                "If", ["is_eight"], ["y"],
                then_branch=helper.make_graph(taken, "t", [], [results[0]]),
                else_branch=helper.make_graph(other, "e", [], [results[1]]),
            ),
        ],
        [X],
        [Y],
        {"root": ROOT, "eight": np.int64(8)},
    )  # fmt: skip


def function(*, mixing: bool = True) -> Any:
    body = rare("x", "y", mixing=mixing)
    mine = helper.make_function(
        "local", "Mine", ["x", "root"], ["y"], body, [helper.make_opsetid("", 20)]
    )
    call = node("Mine", ["x", "root"], ["y"], domain="local")
    model = onnx_model([call], [X], [Y], {"root": ROOT}, domains={"local": 1})
    model.functions.append(mine)
    return model


def over_rows() -> Any:
    """A scan over the rows; what it carries shows at one value only."""
    body = helper.make_graph(
        [
            node("Max", ["state", "c"], ["after"]),
            node("Mul", ["root", "root"], ["limit"]),
            node("Equal", ["after", "limit"], ["equal"]),
            node("Cast", ["equal"], ["extra"], to=FLOAT),
            node("Add", ["c", "extra"], ["o"]),
        ],
        "body",
        [value("state", FLOAT, [8]), value("c", FLOAT, [8])],
        [value("after", FLOAT, [8]), value("o", FLOAT, [8])],
    )
    return onnx_model(
        [node("Scan", ["i", "x"], ["last", "y"], body=body, num_scan_inputs=1)],
        [X],
        [Y],
        {"root": ROOT, "i": np.full(8, -1e30, np.float32)},
    )


def end_token(*then: Any, **constants: Any) -> Any:
    """`f` says where tokens are the last of a text; `then` make `m` of it."""
    return onnx_model(
        [
            node("Equal", ["x", "end"], ["e"]),
            node("Cast", ["e"], ["f"], to=FLOAT),
            *then,
            node("Cast", ["x"], ["g"], to=FLOAT),
            node("Add", ["g", "m"], ["y"]),
        ],
        [value("x", INT64, ROWS)],
        [Y],
        {"end": np.int64(4711), **constants},
    )


def many_rows() -> Any:
    """Nothing but how many rows there are, from 41 on."""
    return onnx_model(
        [
            node("Shape", ["x"], ["s"], end=1),
            node("Greater", ["s", "c"], ["g"]),
            node("Cast", ["g"], ["f"], to=FLOAT),
            node("Add", ["x", "f"], ["y"]),
        ],
        [X],
        [Y],
        {"c": np.array([40], np.int64)},
    )


CHANGES = "changes when other rows do"
HIDDEN: dict[str, tuple[Callable[[], Any], str]] = {
    "in a scan": (scan, "Scan node 'Scan_1' mixes rows"),
    "in a loop": (loop, "Loop node 'Loop_0' mixes rows"),
    "in a branch": (branch, "If node 'If_3' mixes rows"),
    "in a function": (function, "mixes rows"),
    "in a scan over rows": (over_rows, "mixes rows"),
    "whether any text ends": (
        lambda: end_token(node("ReduceMax", ["f"], ["m"])),
        CHANGES,
    ),
    "whether any text ends, by way of one axis": (
        lambda: end_token(
            node("Reshape", ["f", "flat"], ["r"]),
            node("ReduceMax", ["r"], ["m"]),
            flat=np.array([-1]),
        ),
        CHANGES,
    ),
    "texts that end together": (
        lambda: end_token(
            node("Transpose", ["f"], ["t"]),
            node("MatMul", ["f", "t"], ["both"]),
            node("MatMul", ["both", "f"], ["m"]),
        ),
        CHANGES,
    ),
    "many rows": (many_rows, "differs alone and in a batch"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_hides_is_found(name: str, tmp_path: Path) -> None:
    make, reason = HIDDEN[name]
    decision = compile_model(make(), tmp_path / "m.popef", CompileOptions()).batch
    assert not decision.rows, decision.reason
    assert reason in decision.reason


@pytest.mark.parametrize("make", [scan, loop, branch, function])
def test_nested_graphs_that_keep_rows_apart_are_no_hindrance(
    make: Callable[..., Any], tmp_path: Path
) -> None:
    decision = compile_model(make(mixing=False), tmp_path / "m.popef").batch
    assert decision.rows, decision.reason


def test_nested_graphs_that_cannot_be_seen_into_are_not_trusted(tmp_path: Path) -> None:
    """A value that has another size in each step is no result of all steps."""
    body = loop_body([node("Concat", ["a0", "a0"], ["b0"], axis=1)], 0)
    for info in (body.input[2], body.output[1]):
        info.type.tensor_type.shape.dim[1].Clear()
    model = onnx_model(
        [node("Loop", ["times", "", "x"], ["y"], body=body)],
        [X],
        [value("y", FLOAT, ["N", 64])],
        {"times": np.int64(3)},
    )
    decision = compile_model(model, tmp_path / "m.popef").batch
    assert decision.reason == "the check could not read the values in its nested graphs"


def test_the_model_itself_stays_as_it_is() -> None:
    model = loop()
    before = model.SerializeToString()
    assert has_inside(model)
    shown = exposed(model)
    assert model.SerializeToString() == before
    assert len(shown.graph.node[0].output) > 1
    assert not has_inside(mlp())


def test_small_constants_are_known() -> None:
    model = end_token(
        node("Constant", [], ["c"], value_float=2.5),
        node("Mul", ["f", "c"], ["m"]),
        words=np.array(["end"], object),
        weights=np.ones(1000, np.float32),
    )
    values = known_values(model)
    assert {4711.0, 2.5, "end"} <= set(values)
    assert 1.0 not in values
