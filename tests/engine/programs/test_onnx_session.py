from __future__ import annotations

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
        (MemoryError("shape"), False),
    ],
)
def test_who_is_at_fault_does_not_depend_on_the_words(
    raised: Exception, by_input: bool
) -> None:
    error = run_error(raised, None)
    assert isinstance(error, ExecutionFailed)
    assert error.callers_fault is by_input


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
        "Non-zero status code returned while running Add node. Name:'add' "
        "Status Message: axis == 1 was false. 3 by 7"
    )


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
        pytest.raises(InvalidConfig, match="cannot use its DmlExecutionProvider here"),
    ):
        session(providers=wanted)
