"""The onnx package's backend tests as a list of cases with inputs and answers.

A case is one model with one or more data sets. This module answers three questions
without PopGate: what the case is, whether the Open Inference Protocol can carry its
types, and whether ONNX Runtime passes it in process. The comparison is that of
`onnx.backend.test.runner`, with its tolerances.
"""

from __future__ import annotations

import ctypes
import importlib
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from onnx.backend.test.case import node
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.runner import Runner

FOLDERS = ("simple", "pytorch-operator", "pytorch-converted")

#: ONNX element type to the datatype that the Open Inference Protocol calls it.
OIP_DATATYPES: Mapping[int, str] = {
    onnx.TensorProto.BOOL: "BOOL",
    onnx.TensorProto.UINT8: "UINT8",
    onnx.TensorProto.UINT16: "UINT16",
    onnx.TensorProto.UINT32: "UINT32",
    onnx.TensorProto.UINT64: "UINT64",
    onnx.TensorProto.INT8: "INT8",
    onnx.TensorProto.INT16: "INT16",
    onnx.TensorProto.INT32: "INT32",
    onnx.TensorProto.INT64: "INT64",
    onnx.TensorProto.FLOAT16: "FP16",
    onnx.TensorProto.FLOAT: "FP32",
    onnx.TensorProto.DOUBLE: "FP64",
    onnx.TensorProto.STRING: "BYTES",
    onnx.TensorProto.BFLOAT16: "BF16",
}


@dataclass(frozen=True, slots=True)
class DataSet:
    """Named inputs and the outputs that the suite expects for them."""

    inputs: Mapping[str, np.ndarray]
    outputs: Mapping[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Case:
    """One backend test. `name` is unique over all of them."""

    name: str
    kind: str
    model: onnx.ModelProto
    data_sets: tuple[DataSet, ...]
    rtol: float
    atol: float

    def __repr__(self) -> str:
        return f"Case({self.kind}/{self.name}, {len(self.data_sets)} data sets)"

    @property
    def datatypes(self) -> frozenset[str]:
        """Protocol datatypes of all inputs and outputs of the model."""
        graph = self.model.graph
        return frozenset(
            OIP_DATATYPES[value.type.tensor_type.elem_type]
            for value in (*graph_inputs(graph), *graph.output)
        )


@dataclass(frozen=True, slots=True)
class NotCarriable:
    """A case that no Open Inference Protocol request can express, and why."""

    name: str
    reason: str


def graph_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller gives: all except initializers."""
    weights = {tensor.name for tensor in graph.initializer}
    weights |= {tensor.values.name for tensor in graph.sparse_initializer}
    return [value for value in graph.input if value.name not in weights]


def load_cases(operators: Sequence[str] = ()) -> tuple[list[Case], list[NotCarriable]]:
    """Return the cases that the protocol can carry, and the others.

    `operators` are modules of `onnx.backend.test.case.node`: node cases are then only
    those of imported modules, including these. Making the cases of every operator takes
    a minute on a busy machine.
    """
    found = [*_node_cases(operators), *_folder_cases()]
    repeated = [name for name, n in Counter(c.name for c in found).items() if n > 1]
    assert not repeated, f"case names are not unique: {repeated}"
    cases = [case for case in found if isinstance(case, Case)]
    return cases, [case for case in found if isinstance(case, NotCarriable)]


def _node_cases(operators: Sequence[str]) -> Iterable[Case | NotCarriable]:
    np.random.seed(0)  # the generators draw their inputs from numpy's global state
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for operator in operators:
            importlib.import_module(f"{node.__name__}.{operator}")
        generated = list(node._NodeTestCases if operators else node.collect_testcases())
    for case in generated:
        yield _case(case.name, "node", case.model, case.data_sets, case.rtol, case.atol)


def _folder_cases() -> Iterable[Case | NotCarriable]:
    for folder in FOLDERS:
        for case in sorted(load_model_tests(kind=folder), key=lambda each: each.name):
            home = Path(case.model_dir)
            model = onnx.load(home / "model.onnx")
            reason = _why_not_carriable(model.graph)
            if reason:
                yield NotCarriable(case.name, reason)
                continue
            data = [_read_data_set(each) for each in sorted(home.glob("test_data_*"))]
            yield _case(case.name, folder, model, data, case.rtol, case.atol)


def _read_data_set(home: Path) -> tuple[list[Any], list[Any]]:
    def read(kind: str) -> list[Any]:
        count = len(list(home.glob(f"{kind}_*.pb")))
        return [onnx.load_tensor(home / f"{kind}_{i}.pb") for i in range(count)]

    return read("input"), read("output")


def _case(
    name: str, kind: str, model: onnx.ModelProto, data: Any, rtol: float, atol: float
) -> Case | NotCarriable:
    reason = _why_not_carriable(model.graph)
    if reason:
        return NotCarriable(name, reason)
    inputs = [value.name for value in graph_inputs(model.graph)]
    outputs = [value.name for value in model.graph.output]
    data_sets = tuple(
        DataSet(_named(inputs, given), _named(outputs, expected))
        for given, expected in data
    )
    return Case(name, kind, model, data_sets, rtol, atol)


def _named(names: Sequence[str], values: Sequence[Any]) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(
            onnx.numpy_helper.to_array(value)
            if isinstance(value, onnx.TensorProto)
            else value
        )
        for name, value in zip(names, values, strict=False)
    }


def _why_not_carriable(graph: onnx.GraphProto) -> str:
    """Return why the protocol cannot carry the model; empty if it can."""
    for value in (*graph_inputs(graph), *graph.output):
        kind = value.type.WhichOneof("value")
        if kind != "tensor_type":
            return f"{kind.removesuffix('_type')} values"
        elem_type = value.type.tensor_type.elem_type
        if elem_type not in OIP_DATATYPES:
            return f"{onnx.TensorProto.DataType.Name(elem_type)} tensors"
    return ""


def assert_similar(
    case: Case, expected: DataSet, outputs: Mapping[str, np.ndarray]
) -> None:
    """Compare as the suite does: count, shapes, types, values within tolerances.

    Raises:
        AssertionError: with the suite's message.
    """
    names = list(expected.outputs)
    assert set(names) <= set(outputs), f"outputs {sorted(outputs)} instead of {names}"
    Runner.assert_similar_outputs(
        [_comparable(expected.outputs[name]) for name in names],
        [_comparable(outputs[name]) for name in names],
        rtol=case.rtol,
        atol=case.atol,
    )


def _comparable(array: np.ndarray) -> np.ndarray:
    """Return strings as an object array of str, from any form."""
    if array.dtype.kind not in "OSU":
        return array
    texts = [
        each.decode("utf-8", "surrogateescape") if isinstance(each, bytes) else each
        for each in array.reshape(-1).tolist()
    ]
    return np.array(texts, dtype=object).reshape(array.shape)


def run_in_process(case: Case) -> None:
    """Run every data set in ONNX Runtime and compare, as onnx's runner would.

    Raises: Exception: any error of ONNX Runtime or of the comparison.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        case.model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    for data_set in case.data_sets:
        assert_similar(case, data_set, _run(session, case, data_set.inputs))


def _run(
    session: onnxruntime.InferenceSession, case: Case, inputs: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    names = [each.name for each in session.get_outputs()]
    if "BF16" not in case.datatypes:
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    feeds = {name: _to_ort(array) for name, array in inputs.items()}
    values = session.run_with_ort_values(names, feeds)
    return {name: _from_ort(each) for name, each in zip(names, values, strict=True)}


def _to_ort(array: np.ndarray) -> onnxruntime.OrtValue:
    if array.dtype != ml_dtypes.bfloat16:
        return onnxruntime.OrtValue.ortvalue_from_numpy(array)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
        np.ascontiguousarray(array).view(np.uint16), onnx.TensorProto.BFLOAT16
    )


def _from_ort(value: onnxruntime.OrtValue) -> np.ndarray:
    if value.element_type() != onnx.TensorProto.BFLOAT16:
        return np.asarray(value.numpy())
    # ONNX Runtime's Python API has no numpy type for it: read its memory.
    shape = value.shape()
    size = int(np.prod(shape)) * 2
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return np.frombuffer(raw, dtype=ml_dtypes.bfloat16).reshape(shape)
