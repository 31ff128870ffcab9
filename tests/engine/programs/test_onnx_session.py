"""One session of ONNX Runtime.

Covers: engine/programs/session.py.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as ort_state

from engine.errors import (
    Cancelled,
    EngineBug,
    ExecutionFailed,
    InvalidConfig,
    InvalidModel,
    OutOfMemory,
)
from engine.programs.onnx_session import (
    OnnxSession,
    load_error,
    make_run_options,
    onnx_number,
    run_error,
)
from engine.programs.session import BoundShapeMismatch
from popef_io import DataType

value = helper.make_tensor_value_info
FLOAT = TensorProto.FLOAT
ROOT = Path(__file__).resolve().parents[3]


def session(
    op: str = "Neg", shape: Any = ("N", None, 3), **options: Any
) -> OnnxSession:
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node(op, ["x"], ["y"])],
            "g",
            [value("x", FLOAT, shape)],
            [value("y", FLOAT, shape)],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    return OnnxSession(model.SerializeToString(), **options)


def test_ports_tell_names_types_and_shapes() -> None:
    port = session().inputs["x"]
    assert port.data_type is DataType.F32
    assert port.shape == ("N", None, 3)
    assert session().outputs["y"].type_name == "tensor(float)"


def test_every_type_that_onnx_shares_has_its_number() -> None:
    for data_type in DataType:
        number = onnx_number(data_type)
        if data_type.name.startswith("F8"):
            assert number is None
        else:
            assert number is not None
            name = TensorProto.DataType.Name(number)
            assert data_type.name[-2:] in name or data_type.name in (
                "F32",
                "F64",
                "STRING",
                "BOOL",
                "S8",
                "U8",
            )


def test_a_binding_writes_where_it_is_told() -> None:
    binding = session(shape=("N",)).binding()
    for count in (0, 1, 5):
        x, y = np.arange(count, dtype=np.float32), np.zeros(count, np.float32)
        (result,) = binding.run([("x", DataType.F32, x)], [("y", DataType.F32, y)])
        assert result is y
        assert y.tolist() == (-x).tolist()
        (fresh,) = binding.run([("x", DataType.F32, x)], [("y", DataType.F32, None)])
        assert fresh.tolist() == (-x).tolist()


@pytest.mark.parametrize("op", ["Neg", "Identity"])
def test_a_binding_says_where_a_shape_does_not_fit(op: str) -> None:
    binding = session(op, ("N",)).binding()
    x, y = np.ones(4, np.float32), np.zeros(3, np.float32)
    with pytest.raises(BoundShapeMismatch):
        binding.run([("x", DataType.F32, x)], [("y", DataType.F32, y)])


@pytest.mark.parametrize(
    ("raised", "by_input"),
    [
        (ort_state.InvalidArgument("what any release may say"), True),
        (ort_state.Fail("what any release may say"), True),
        (ort_state.RuntimeException("stod"), True),
        (ort_state.EPFail("dimension mismatch"), False),
        (ort_state.NotImplemented("index out of range"), False),
    ],
)
def test_who_is_at_fault_does_not_depend_on_the_words(
    raised: Exception, by_input: bool
) -> None:
    error = run_error(raised, None)
    assert isinstance(error, ExecutionFailed)
    assert error.callers_fault is by_input


@pytest.mark.parametrize(
    "raised",
    [
        MemoryError("shape"),
        ort_state.RuntimeException("std::bad_alloc"),
        ort_state.Fail("CUDA failure 2: out of memory ; GPU=0"),
    ],
)
def test_a_lack_of_memory_is_nobodys_fault(raised: Exception) -> None:
    error = run_error(raised, None)
    assert isinstance(error, OutOfMemory)
    assert not error.callers_fault
    assert isinstance(load_error(raised), OutOfMemory)


NO_MEMORY = """
import resource, sys
import numpy as np
from engine.errors import EngineError
from engine.programs.onnx_session import OnnxSession, run_error
from tests.engine.programs.test_onnx_session import expanding

session = OnnxSession(expanding())
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
for count in (1 << 33, 1 << 45, 4):
    feed = {"x": np.ones(1, np.float32), "n": np.array([count])}
    try:
        (y,) = session.raw_run(["y"], feed, None)
        print("ok", y)
    except Exception as e:
        error = run_error(e, None)
        print(type(error).__name__, error.callers_fault)
"""


def expanding() -> bytes:
    """The highest of as many copies of x as n says."""
    nodes = [
        helper.make_node("Expand", ["x", "n"], ["many"]),
        helper.make_node("ReduceMax", ["many"], ["y"], keepdims=0),
    ]
    inputs = [value("x", FLOAT, [1]), value("n", TensorProto.INT64, [1])]
    graph = helper.make_graph(nodes, "g", inputs, [value("y", FLOAT, [])])
    opset = helper.make_opsetid("", 20)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    return model.SerializeToString()  # type: ignore[no-any-return]


def test_onnx_runtime_says_that_memory_is_out_as_it_did() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_MEMORY],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["OutOfMemory False"] * 2 + ["ok 1.0"]


def test_a_run_fails_as_cancelled_if_it_was_told_to_end() -> None:
    options = make_run_options()
    assert isinstance(run_error(RuntimeError("any"), options), ExecutionFailed)
    options.terminate = True
    assert isinstance(run_error(RuntimeError("any"), options), Cancelled)


def test_codes_and_source_paths_are_left_out() -> None:
    said = (
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running "
        "Add node. Name:'add' Status Message: "
        "/onnxruntime_src/onnxruntime/core/x.h:563 "
        "void onnxruntime::Init(ptrdiff_t, ptrdiff_t) axis == 1 was false.\n3 by 7"
    )
    assert str(run_error(RuntimeError(said), None)) == (
        "Add node. Name:'add': axis == 1 was false. 3 by 7"
    )


def test_types_that_a_device_cannot_compute_have_a_remedy() -> None:
    kind = TensorProto.BFLOAT16
    ports = [value(name, kind, [2, 2]) for name in "xy"]
    gemm = helper.make_node("Gemm", ["x", "x"], ["y"])
    graph = helper.make_graph([gemm], "g", ports[:1], ports[1:])
    imports = [helper.make_opsetid("", 20)]
    model = helper.make_model(graph, opset_imports=imports, ir_version=10)
    with pytest.raises(InvalidModel, match=r"Gemm.*export others, as FP32"):
        OnnxSession(model.SerializeToString())


def test_errors_of_ours_stay_what_they_are() -> None:
    bug = EngineBug("x")
    assert run_error(bug, None) is bug
    assert load_error(bug) is bug
    assert isinstance(load_error(RuntimeError("no")), InvalidModel)


def test_an_unknown_provider_is_refused() -> None:
    with pytest.warns(UserWarning, match="NoSuchProvider"), pytest.raises(InvalidModel):
        OnnxSession(b"no model", providers=["NoSuchProvider"])


def test_another_provider_is_no_substitute() -> None:
    wanted = ["DmlExecutionProvider:1", "CPUExecutionProvider"]
    with (
        pytest.warns(UserWarning, match="DmlExecutionProvider"),
        pytest.raises(InvalidConfig, match="cannot use DmlExecutionProvider"),
    ):
        session(providers=wanted)
