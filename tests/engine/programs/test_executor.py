"""Programs run on this machine: what each kind of node does, and how runs end.

Covers: engine/programs/assembler.py, engine/programs/graph_call.py,
engine/programs/output_binding.py, engine/programs/streams.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine.errors import Cancelled, ExecutionFailed, InvalidModel, RunnerClosed
from engine.programs.executable import (
    Copy,
    Executable,
    Execute,
    Graph,
    Node,
    ProgramCall,
    Repeat,
    Steps,
    StreamIn,
    StreamOut,
    Switch,
)
from engine.programs.executor import Executor
from popef_io import DataType, Metadata, ProgramFlow, TensorInfo

Array = np.ndarray[Any, Any]
FLOAT = TensorProto.FLOAT
F32 = TensorInfo(None, DataType.F32)
S64 = TensorInfo(None, DataType.S64)
value = helper.make_tensor_value_info


class Arrays:
    """Streams over arrays in this process; lists are taken one at a time."""

    def __init__(self, **inputs: Any) -> None:
        self.inputs = inputs
        self.reads: list[str] = []
        self.memory: dict[str, Array] = {}
        self.asked: list[tuple[str, tuple[int, ...], str]] = []
        self.outputs: dict[str, list[Array]] = {}

    def read(self, handle: str) -> Array:
        self.reads.append(handle)
        data = self.inputs[handle]
        result: Array = data.pop(0) if isinstance(data, list) else data
        return result

    def output_memory(
        self, handle: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        self.asked.append((handle, shape, dtype.name))
        return self.memory.get(handle)

    def write(self, handle: str, value: Array) -> None:
        self.outputs.setdefault(handle, []).append(value)


def graph(
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    constants: Mapping[str, Array] | None = None,
    outside: tuple[str, ...] = (),
) -> Graph:
    """A graph; constants named in `outside` are weights given from variables."""
    inits = [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()]
    for tensor in inits:
        if tensor.name in outside:
            size = len(tensor.raw_data)
            tensor.ClearField("raw_data")
            tensor.data_location = TensorProto.EXTERNAL
            entries = {"location": tensor.name, "offset": "0", "length": str(size)}
            for key, text in entries.items():
                entry = tensor.external_data.add()
                entry.key, entry.value = key, text
    model = helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, inits),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    return Graph("main", model.SerializeToString(), weights=outside)


def executor(
    graphs: Graph | Mapping[str, Graph],
    programs: Mapping[int, Node] | Node,
    variables: Mapping[str, TensorInfo] | None = None,
    **options: Any,
) -> Executor:
    """Program 0 loads, 1 is main; variables default to float."""
    given = {"main": graphs} if isinstance(graphs, Graph) else graphs
    named = {name: replace(g, name=name) for name, g in given.items()}
    trees = programs if isinstance(programs, Mapping) else {1: programs}
    names = set("xyzwbistk") | {"x2", "y2"}
    table = dict.fromkeys(names, F32) | dict(variables or {})
    executable = Executable(named, table, trees)
    flow = ProgramFlow(load=(0,) if 0 in trees else (), main=(1,))
    metadata = Metadata("executable", program_flow=flow)
    return Executor(Executable.decode(executable.encode()), metadata, **options)


def affine(rows: object = "N", width: int = 4) -> Graph:
    """y = x * 2 + 1"""
    return graph(
        [
            helper.make_node("Mul", ["x", "two"], ["t"]),
            helper.make_node("Add", ["t", "one"], ["y"]),
        ],
        [value("x", FLOAT, [rows, width])],
        [value("y", FLOAT, [rows, width])],
        {"two": np.array(2, np.float32), "one": np.array(1, np.float32)},
    )


def unary(op: str, shape: object = None, kind: int = FLOAT, **attributes: Any) -> Graph:
    return graph(
        [helper.make_node(op, ["x"], ["y"], **attributes)],
        [value("x", kind, shape)],
        [value("y", kind, shape)],
    )


RUN_X_TO_Y = Execute("main", {"x": "x"}, {"y": "y"})
ORDINARY = Steps((StreamIn("in", "x"), RUN_X_TO_Y, StreamOut("y", "out")))


def once(engine: Executor, **inputs: Any) -> Array:
    streams = Arrays(**inputs)
    engine.run((1,), streams)
    (result,) = streams.outputs["out"]
    return result


@pytest.mark.parametrize("rows", [0, 1, 2, 1000])
def test_an_ordinary_program_computes(rows: int) -> None:
    x = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
    assert np.array_equal(once(executor(affine(), ORDINARY), **{"in": x}), x * 2 + 1)


def test_a_scalar_stays_one() -> None:
    result = once(executor(unary("Neg", []), ORDINARY), **{"in": np.array(3.0, "f4")})
    assert result.shape == ()
    assert result == -3


def test_a_graph_without_inputs_runs() -> None:
    constant = graph(
        [helper.make_node("Constant", [], ["y"], value_ints=[5, 6])],
        [],
        [value("y", TensorProto.INT64, [2])],
    )
    program = Steps((Execute("main", {}, {"y": "y"}), StreamOut("y", "out")))
    engine = executor(constant, program, {"y": S64})
    assert once(engine).tolist() == [5, 6]


def test_two_outputs_reach_their_streams() -> None:
    split = graph(
        [helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])],
        [value("x", FLOAT, ["N"])],
        [value("y", FLOAT, ["N"]), value("z", FLOAT, ["N"])],
    )
    program = Steps(
        (
            StreamIn("in", "x"),
            Execute("main", {"x": "x"}, {"y": "y", "z": "z"}),
            StreamOut("z", "abs"),
            StreamOut("y", "neg"),
        )
    )
    streams = Arrays(**{"in": np.array([1, -2], "f4")})
    executor(split, program).run((1,), streams)
    assert streams.outputs["neg"][0].tolist() == [-1, 2]
    assert streams.outputs["abs"][0].tolist() == [1, 2]


@pytest.mark.parametrize("item", ["é", "é".encode()])
def test_strings_come_as_text_or_bytes_and_leave_as_text(item: str | bytes) -> None:
    info = {v: TensorInfo(None, DataType.STRING) for v in "xy"}
    engine = executor(unary("Identity", None, TensorProto.STRING), ORDINARY, info)
    x = np.array([[item], [item[:0]]], dtype=object)
    result = once(engine, **{"in": x})
    assert result.tolist() == [["é"], [""]]
    assert once(engine, **{"in": np.empty((0, 3), object)}).shape == (0, 3)
    assert once(engine, **{"in": np.array("a\0b", object)}).tolist() == "a\0b"


def test_a_string_that_is_not_utf8_is_the_callers_fault() -> None:
    info = {v: TensorInfo(None, DataType.STRING) for v in "xy"}
    engine = executor(unary("Identity", None, TensorProto.STRING), ORDINARY, info)
    with pytest.raises(ExecutionFailed, match="'x' is not UTF-8") as caught:
        once(engine, **{"in": np.array([b"ok", b"\xff"], object)})
    assert caught.value.callers_fault


@pytest.mark.parametrize("shape", [(), (0,), (3,), (70_000, 1)])
def test_bf16_travels_as_bits(shape: tuple[int, ...]) -> None:
    kind = TensorProto.BFLOAT16
    double = graph(
        [
            helper.make_node("Cast", ["x"], ["f"], to=FLOAT),
            helper.make_node("Add", ["f", "f"], ["g"]),
            helper.make_node("Cast", ["g"], ["y"], to=kind),
        ],
        [value("x", kind, ["N" + str(i) for i, _ in enumerate(shape)])],
        [value("y", kind, ["N" + str(i) for i, _ in enumerate(shape)])],
    )
    info = {v: TensorInfo(None, DataType.BF16) for v in "xy"}
    engine = executor(double, ORDINARY, info)
    result = once(engine, **{"in": np.full(shape, 0x3F80, np.uint16)})
    assert result.dtype == np.uint16
    assert np.array_equal(result, np.full(shape, 0x4000, np.uint16))


LARGE = 40_000


def test_a_large_output_is_computed_into_the_memory_of_its_stream() -> None:
    engine = executor(affine(), ORDINARY)
    x = np.arange(LARGE, dtype=np.float32).reshape(-1, 4)
    streams = Arrays(**{"in": x})
    streams.memory["out"] = np.zeros_like(x)
    for _ in range(2):
        engine.run((1,), streams)
        result = streams.outputs["out"].pop()
        assert result is streams.memory["out"]
        assert np.array_equal(result, x * 2 + 1)
    assert streams.asked == [("out", (LARGE // 4, 4), "float32")] * 2


def test_streams_may_have_no_memory_to_offer() -> None:
    engine = executor(affine(), ORDINARY)
    x = np.arange(LARGE, dtype=np.float32).reshape(-1, 4)
    streams = Arrays(**{"in": x})
    engine.run((1,), streams)
    assert len(streams.asked) == 1
    assert np.array_equal(streams.outputs["out"][0], x * 2 + 1)


def test_no_memory_is_asked_for_small_outputs() -> None:
    for rows in ("N", 3):
        streams = Arrays(**{"in": np.ones((3, 4), "f4")})
        executor(affine(rows), ORDINARY).run((1,), streams)
        assert streams.asked == []


def test_memory_is_asked_for_where_several_dimensions_are_free() -> None:
    transpose = graph(
        [helper.make_node("Transpose", ["x"], ["y"])],
        [value("x", FLOAT, ["A", "B"])],
        [value("y", FLOAT, ["B", "A"])],
    )
    engine = executor(transpose, ORDINARY)
    x = np.arange(LARGE, dtype=np.float32).reshape(-1, 8)
    streams = Arrays(**{"in": x})
    streams.memory["out"] = np.zeros((8, LARGE // 8), np.float32)
    engine.run((1,), streams)
    assert streams.outputs["out"][0] is streams.memory["out"]
    assert np.array_equal(streams.memory["out"], x.T)


def test_no_memory_is_asked_where_the_shape_cannot_be_told() -> None:
    unknown = graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        [value("x", FLOAT, ["A", 4])],
        [value("y", FLOAT, ["B", 4])],
    )
    x = np.ones((LARGE, 4), np.float32)
    streams = Arrays(**{"in": x})
    executor(unknown, ORDINARY).run((1,), streams)
    assert streams.outputs["out"][0].shape == x.shape


def test_a_model_that_lies_about_its_shape_still_answers() -> None:
    # The same symbol for two inputs: nothing checks that they are equal at run time.
    broadcast = graph(
        [helper.make_node("Add", ["x", "x2"], ["y"])],
        [value("x", FLOAT, ["A", 4]), value("x2", FLOAT, ["A", 4])],
        [value("y", FLOAT, ["A", 4])],
    )
    program = Steps(
        (
            StreamIn("in", "x"),
            StreamIn("in2", "x2"),
            Execute("main", {"x": "x", "x2": "x2"}, {"y": "y"}),
            StreamOut("y", "out"),
        )
    )
    large, one = np.ones((LARGE, 4), np.float32), np.ones((1, 4), np.float32)
    engine = executor(broadcast, program)
    for x, x2 in ((large, one), (one, large)):
        streams = Arrays(**{"in": x, "in2": x2})
        streams.memory["out"] = np.zeros_like(x)
        engine.run((1,), streams)
        assert np.array_equal(streams.outputs["out"][0], large * 2)


def test_an_input_that_is_an_output_is_passed_through() -> None:
    through = graph(
        [helper.make_node("Neg", ["x"], ["y"])],
        [value("x", FLOAT, ["N"])],
        [value("x", FLOAT, ["N"]), value("y", FLOAT, ["N"])],
    )
    program = Steps(
        (
            StreamIn("in", "x"),
            Execute("main", {"x": "x"}, {"x": "z", "y": "y"}),
            StreamOut("z", "same"),
            StreamOut("y", "out"),
        )
    )
    x = np.arange(LARGE, dtype=np.float32)
    streams = Arrays(**{"in": x})
    streams.memory = {"same": np.zeros_like(x), "out": np.zeros_like(x)}
    executor(through, program).run((1,), streams)
    assert np.array_equal(streams.outputs["same"][0], x)
    assert np.array_equal(streams.outputs["out"][0], -x)


def test_inputs_need_not_be_contiguous() -> None:
    x = np.arange(LARGE, dtype=np.float32).reshape(4, -1).T
    streams = Arrays(**{"in": x})
    streams.memory["out"] = np.zeros(x.shape, np.float32)
    executor(affine(), ORDINARY).run((1,), streams)
    assert np.array_equal(streams.outputs["out"][0], x * 2 + 1)


def weighted(shape: tuple[int, ...] = (4,)) -> Graph:
    """y = x * w, w from outside"""
    return graph(
        [helper.make_node("Mul", ["x", "w"], ["y"])],
        [value("x", FLOAT, ["N", 4])],
        [value("y", FLOAT, ["N", 4])],
        {"w": np.zeros(shape, np.float32)},
        outside=("w",),
    )


WITH_WEIGHT: dict[int, Node] = {
    0: StreamIn("weight", "w"),
    1: Steps(
        (
            StreamIn("in", "x"),
            Execute("main", {"x": "x", "w": "w"}, {"y": "y"}),
            StreamOut("y", "out"),
        )
    ),
}


@pytest.mark.parametrize("shape", [(4,), (), (1, 1)])
def test_weights_are_loaded_and_loaded_again(shape: tuple[int, ...]) -> None:
    engine = executor(weighted(shape), WITH_WEIGHT)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for factor in (3, 5):
        weight = np.full(shape, factor, np.float32)
        weight.flags.writeable = False  # as memory mapped from a file
        engine.run((0,), Arrays(weight=weight))
        assert np.array_equal(once(engine, **{"in": x}), x * factor)


def test_load_and_main_in_one_run() -> None:
    engine = executor(weighted(), WITH_WEIGHT)
    x = np.ones((1, 4), np.float32)
    streams = Arrays(**{"in": x, "weight": np.arange(4, dtype=np.float32)})
    engine.run((0, 1), streams)
    assert streams.outputs["out"][0].tolist() == [[0, 1, 2, 3]]


def test_without_its_weights_a_graph_does_not_run() -> None:
    with pytest.raises(ExecutionFailed, match="before its weights are loaded"):
        once(executor(weighted(), WITH_WEIGHT), **{"in": np.ones((1, 4), "f4")})


def test_weights_of_the_wrong_shape_are_refused() -> None:
    engine = executor(weighted(), WITH_WEIGHT)
    with pytest.raises(InvalidModel, match="graph 'main'"):
        engine.run((0,), Arrays(weight=np.ones(5, np.float32)))


def test_a_weight_that_a_main_program_writes_is_refused() -> None:
    programs = {**WITH_WEIGHT, 2: Copy("x", "w")}
    with pytest.raises(InvalidModel, match="weight 'w' of graph 'main' must be"):
        executor(weighted(), programs)
    programs = {**WITH_WEIGHT, 2: ProgramCall(0)}
    with pytest.raises(InvalidModel, match="weight 'w' of graph 'main' must be"):
        executor(weighted(), programs)


def test_one_graph_may_run_with_two_weight_sets() -> None:
    def use(weight: str, out: str) -> Steps:
        run = Execute("main", {"x": "x", "w": weight}, {"y": "y"})
        return Steps((StreamIn("in", "x"), run, StreamOut("y", out)))

    programs: dict[int, Node] = {
        0: Steps((StreamIn("a", "w"), StreamIn("b", "b"))),
        1: Steps((use("w", "first"), use("b", "second"))),
    }
    streams = Arrays(
        a=np.full(4, 2, "f4"), b=np.full(4, 3, "f4"), **{"in": np.ones((1, 4), "f4")}
    )
    executor(weighted(), programs).run((0, 1), streams)
    assert streams.outputs["first"][0].tolist() == [[2] * 4]
    assert streams.outputs["second"][0].tolist() == [[3] * 4]


def test_a_weight_may_also_be_an_ordinary_input() -> None:
    add = graph(
        [helper.make_node("Add", ["x", "b"], ["y"])],
        [value("x", FLOAT, ["N"]), value("b", FLOAT, ["N"])],
        [value("y", FLOAT, ["N"])],
    )
    run = Execute("main", {"x": "x", "b": "b"}, {"y": "y"})
    programs: dict[int, Node] = {
        0: StreamIn("bias", "b"),
        1: Steps((StreamIn("in", "x"), run, StreamOut("y", "out"))),
    }
    engine = executor(add, programs)
    bias = np.array([10], np.float32)
    engine.run((0,), Arrays(bias=bias))
    assert once(engine, **{"in": np.array([1], "f4")}).tolist() == [11]


def test_state_lives_across_runs_and_can_be_saved() -> None:
    add = graph(
        [helper.make_node("Add", ["s", "x"], ["t"])],
        [value("s", FLOAT, [2]), value("x", FLOAT, [2])],
        [value("t", FLOAT, [2])],
    )
    programs: dict[int, Node] = {
        0: StreamIn("start", "s"),
        1: Steps(
            (StreamIn("in", "x"), Execute("main", {"s": "s", "x": "x"}, {"t": "s"}))
        ),
        2: StreamOut("s", "saved"),
    }
    engine = executor(add, programs)
    start = np.array([1, 2], np.float32)
    streams = Arrays(start=start, **{"in": np.array([10, 20], "f4")})
    engine.run((0,), streams)
    start[:] = -99  # what a stream lent is not ours after the run
    engine.run((1, 1, 2), streams)
    assert streams.outputs["saved"][0].tolist() == [21, 42]


def test_a_repeat_streams_in_and_out_at_each_turn() -> None:
    engine = executor(affine(), Repeat(3, ORDINARY))
    rows = [np.full((1, 4), n, np.float32) for n in range(3)]
    streams = Arrays(**{"in": list(rows)})
    engine.run((1,), streams)
    assert [r[0, 0] for r in streams.outputs["out"]] == [1, 3, 5]
    engine = executor(affine(), Repeat(0, ORDINARY))
    engine.run((1,), streams)
    assert len(streams.outputs["out"]) == 3


def test_a_repeat_feeds_itself() -> None:
    program = Steps(
        (
            StreamIn("in", "x"),
            Repeat(4, Steps((RUN_X_TO_Y, Copy("y", "x")))),
            StreamOut("x", "out"),
        )
    )
    x = np.ones((1, 4), np.float32)
    assert once(executor(affine(), program), **{"in": x}).tolist() == [[31] * 4]


def switch(default: Node | None = None) -> Steps:
    def case(graph_name: str, stream: str) -> Steps:
        run = Execute(graph_name, {"x": "x"}, {"y": "y"})
        return Steps((StreamIn(stream, "x"), run, StreamOut("y", "out")))

    cases: dict[int, Node] = {0: case("neg", "a"), 1: case("abs", "b")}
    return Steps((StreamIn("which", "i"), Switch("i", cases, default)))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", ["i8", "i4", "u1", "?"])
def test_a_switch_reads_only_the_streams_of_its_case(
    shape: tuple[int, ...], dtype: str
) -> None:
    graphs = {"neg": unary("Neg", ["N"]), "abs": unary("Abs", ["N"])}
    engine = executor(graphs, switch(), {"i": S64})
    for which, expected in ((0, 3), (1, 3)):
        stream = "ab"[which]
        x = np.array([-3 if which == 0 else 3], np.float32)
        streams = Arrays(which=np.full(shape, which, dtype), **{stream: x})
        engine.run((1,), streams)
        assert streams.reads == ["which", stream]
        assert streams.outputs["out"][0].tolist() == [expected]


@pytest.mark.parametrize(
    "selector",
    [np.array(2), np.array(-1), np.array([0, 1]), np.array(0.0), np.array([], "i8")],
)
def test_a_selector_that_selects_nothing_is_the_callers_fault(selector: Array) -> None:
    graphs = {"neg": unary("Neg", ["N"]), "abs": unary("Abs", ["N"])}
    engine = executor(graphs, switch(), {"i": S64})
    with pytest.raises(ExecutionFailed, match="'i'") as caught:
        engine.run((1,), Arrays(which=selector))
    assert caught.value.callers_fault


def test_a_switch_may_have_a_default() -> None:
    graphs = {"neg": unary("Neg", ["N"]), "abs": unary("Abs", ["N"])}
    fallback = Steps((StreamIn("c", "x"), StreamOut("x", "out")))
    engine = executor(graphs, switch(fallback), {"i": S64})
    streams = Arrays(which=np.array(9), c=np.array([7], "f4"))
    engine.run((1,), streams)
    assert streams.outputs["out"][0].tolist() == [7]


def test_a_call_runs_the_other_program() -> None:
    programs: dict[int, Node] = {
        1: Steps((StreamIn("in", "x"), ProgramCall(5), StreamOut("y", "out"))),
        5: RUN_X_TO_Y,
    }
    engine = executor(affine(), programs)
    assert once(engine, **{"in": np.ones((1, 4), "f4")}).tolist() == [[3] * 4]


def test_a_variable_that_was_never_written_is_named() -> None:
    programs: dict[int, Node] = {1: RUN_X_TO_Y, 2: StreamOut("z", "out")}
    programs[3] = Copy("z", "x")
    engine = executor(affine(), programs)
    for number, name in ((1, "x"), (2, "z"), (3, "z")):
        with pytest.raises(ExecutionFailed, match=f"variable '{name}' is read before"):
            engine.run((number,), Arrays())


def test_a_program_that_does_not_exist_is_named() -> None:
    with pytest.raises(InvalidModel, match=r"no program 4; the programs are \[1\]"):
        executor(affine(), ORDINARY).run((4,), Arrays())


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({}, {"y": "y"}, "without its input 'x'"),
        ({"x": "x", "q": "x"}, {"y": "y"}, "no input 'q'"),
        ({"x": "x"}, {"q": "y"}, "no output 'q'"),
        ({"x": "x"}, {}, "without reading any of its outputs"),
    ],
)
def test_connections_that_do_not_fit_the_graph_are_refused(
    inputs: dict[str, str], outputs: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidModel, match=message):
        executor(affine(), Execute("main", inputs, outputs))


def test_what_cannot_be_loaded_names_graph_and_node() -> None:
    with pytest.raises(InvalidModel, match=r"graph 'main': .*protobuf"):
        executor(Graph("main", b"no protobuf"), RUN_X_TO_Y)
    bad = graph(
        [helper.make_node("NoSuchOperator", ["x"], ["y"], name="the node")],
        [value("x", FLOAT, [1])],
        [value("y", FLOAT, [1])],
    )
    with pytest.raises(InvalidModel, match=r"the node.*NoSuchOperator"):
        executor(bad, RUN_X_TO_Y)


def test_a_graph_that_takes_no_tensor_is_refused() -> None:
    sequence = helper.make_tensor_sequence_value_info("x", FLOAT, None)
    length = graph(
        [helper.make_node("SequenceLength", ["x"], ["y"])],
        [sequence],
        [value("y", TensorProto.INT64, [])],
    )
    with pytest.raises(InvalidModel, match=r"'x' is of type seq\(tensor\(float\)\)"):
        executor(length, RUN_X_TO_Y)


@pytest.mark.parametrize(
    "x",
    [
        np.ones((1, 5), np.float32),
        np.ones(4, np.float32),
        np.ones((1, 4), np.float64),
        np.ones((LARGE, 5), np.float32),
        np.ones((LARGE, 4), np.float64),
    ],
)
def test_an_input_that_does_not_fit_is_the_callers_fault(x: Array) -> None:
    streams = Arrays(**{"in": x})
    streams.memory["out"] = np.zeros((LARGE, 4), np.float32)
    with pytest.raises(ExecutionFailed, match="x") as caught:
        executor(affine(), ORDINARY).run((1,), streams)
    assert caught.value.callers_fault
    assert "onnxruntime_src" not in str(caught.value)


def test_an_index_out_of_range_is_the_callers_fault_and_harms_nobody() -> None:
    gather = graph(
        [helper.make_node("Gather", ["table", "x"], ["y"])],
        [value("x", TensorProto.INT64, ["N"])],
        [value("y", FLOAT, ["N"])],
        {"table": np.arange(10, dtype=np.float32)},
    )
    engine = executor(gather, ORDINARY, {"x": S64})
    with pytest.raises(ExecutionFailed, match="out of data bounds") as caught:
        once(engine, **{"in": np.array([10])})
    assert caught.value.callers_fault
    assert once(engine, **{"in": np.array([9])}).tolist() == [9]


def test_what_streams_raise_passes_through() -> None:
    with pytest.raises(KeyError, match="in"):
        executor(affine(), ORDINARY).run((1,), Arrays())


def test_a_run_can_be_terminated_from_another_thread() -> None:
    loop = helper.make_graph(
        [
            helper.make_node("Identity", ["go"], ["go_on"]),
            helper.make_node("Add", ["a", "a"], ["b"]),
        ],
        "body",
        [
            value("i", TensorProto.INT64, []),
            value("go", TensorProto.BOOL, []),
            value("a", FLOAT, [1]),
        ],
        [value("go_on", TensorProto.BOOL, []), value("b", FLOAT, [1])],
    )
    endless = graph(
        [helper.make_node("Loop", ["", "true", "x"], ["y"], body=loop)],
        [value("x", FLOAT, [1])],
        [value("y", FLOAT, [1])],
        {"true": np.array(True)},
    )
    engine = executor(endless, ORDINARY)
    options = ort.RunOptions()
    streams = Arrays(**{"in": np.zeros(1, "f4")})
    started = threading.Event()
    read = streams.read

    def reading(handle: str) -> Array:
        started.set()
        return read(handle)

    streams.read = reading  # type: ignore[method-assign]

    def stop() -> None:
        started.wait()
        options.terminate = True

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(Cancelled):
        engine.run((1,), streams, options)
    stopper.join()


def test_a_clone_has_variables_of_its_own() -> None:
    programs: dict[int, Node] = {**WITH_WEIGHT, 2: StreamIn("in", "s")}
    programs[3] = StreamOut("s", "out")
    first = executor(weighted(), programs)
    first.run((0, 2), Arrays(weight=np.full(4, 2, "f4"), **{"in": np.ones(1, "f4")}))
    second = first.clone()
    x = np.ones((1, 4), np.float32)
    assert once(second, **{"in": x}).tolist() == [[2] * 4]
    second.run((2,), Arrays(**{"in": np.zeros(1, "f4")}))
    second.run((0,), Arrays(weight=np.full(4, 7, "f4")))
    streams = Arrays()
    first.run((3,), streams)
    second.run((3,), streams)
    assert [float(v[0]) for v in streams.outputs["out"]] == [1, 0]
    assert once(first, **{"in": x}).tolist() == [[2] * 4]
    assert once(second, **{"in": x}).tolist() == [[7] * 4]
    first.close()
    assert once(second, **{"in": x}).tolist() == [[7] * 4]


def test_clones_run_at_the_same_time() -> None:
    first = executor(affine(), ORDINARY)
    engines = [first, *(first.clone() for _ in range(3))]
    failures: list[int] = []

    def work(engine: Executor, number: int) -> None:
        x = np.full((LARGE // 4, 4), number, np.float32)
        streams = Arrays(**{"in": x})
        streams.memory["out"] = np.zeros_like(x)
        for _ in range(50):
            engine.run((1,), streams)
            if not np.array_equal(streams.outputs["out"].pop(), x * 2 + 1):
                failures.append(number)

    threads = [
        threading.Thread(target=work, args=(e, n)) for n, e in enumerate(engines)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_after_close_nothing_runs() -> None:
    engine = executor(affine(), ORDINARY)
    engine.close()
    engine.close()
    with pytest.raises(RunnerClosed):
        engine.run((1,), Arrays())
    with pytest.raises(RunnerClosed):
        engine.clone()
    assert "closed" in repr(engine)


def test_threads_are_made_only_where_asked_for() -> None:
    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    before = threads()  # those of earlier tests may be ending: only new ones count
    one = [executor(affine(), ORDINARY) for _ in range(5)]
    assert threads() - before == set()
    two = executor(affine(), ORDINARY, threads=2)
    assert len(threads() - before) == 1
    x = np.ones((1, 4), np.float32)
    assert all(once(e, **{"in": x}).tolist() == [[3] * 4] for e in (*one, two))


def test_onnx_is_not_imported_to_run() -> None:
    assert onnx.__name__ == "onnx"  # here it is; what counts is a process without it
    code = "import engine.programs.executor, sys; sys.exit('onnx' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
