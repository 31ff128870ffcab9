"""Cases of the onnx package's own backend tests, compiled and run in this process.

A sample that takes seconds; `bench/conformance.py` runs all of them over HTTP. What
ONNX Runtime gives for the source is what the compiled model must give, to the last bit;
and both must be what the case expects, where ONNX Runtime is right about it.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

from engine.errors import ExecutionFailed, InvalidModel
from popgate_onnx.compiler import compile_model
from tests.engine.onnx_models import Array, Compiled

_NODE = "onnx.backend.test.case.node"
# The module of If has had two names.
_IF = "if_" if find_spec(f"{_NODE}.if_") else "if"
NODE_MODULES = (
    "ai_onnx_ml.label_encoder",
    "argmax",
    "castlike",
    "compress",
    "constant",
    "constantofshape",
    "dropout",
    "dynamicquantizelinear",
    "equal",
    "eyelike",
    "gathernd",
    "gemm",
    _IF,
    "isinf",
    "loop",
    "lstm",
    "maxunpool",
    "nonmaxsuppression",
    "nonzero",
    "optionalhaselement",
    "quantizelinear",
    "rangeop",
    "reducemax",
    "reshape",
    "scan",
    "sequence_map",
    "shape",
    "split",
    "string_concat",
    "string_split",
    "stringnormalizer",
    "tfidfvectorizer",
    "topk",
    "unique",
    "where",
)
FOLDERS = ("simple", "pytorch-operator", "pytorch-converted")
EVERY = 3
"""Of the models in folders, one in so many."""
CARRIED = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13})
"""Element types of numpy's own, which ONNX Runtime's `run` takes and gives."""


@dataclass
class Case:
    name: str
    model: onnx.ModelProto
    data_sets: list[tuple[list[Any], list[Any]]]
    rtol: float
    atol: float


def node_cases() -> Iterator[Case]:
    package = importlib.import_module(_NODE)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in NODE_MODULES:
            importlib.import_module(f"{package.__name__}.{module}")
    for case in package._NodeTestCases:
        sets = [(list(i), list(o)) for i, o in case.data_sets]
        yield Case(case.name, case.model, sets, case.rtol, case.atol)


def folder_cases() -> Iterator[Case]:
    data = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for kind in FOLDERS:
        for folder in sorted((data / kind).iterdir())[::EVERY]:
            model = onnx.load(folder / "model.onnx")
            sets = [
                (_tensors(part, "input"), _tensors(part, "output"))
                for part in sorted(folder.glob("test_data_set_*"))
            ]
            yield Case(folder.name, model, sets, 1e-3, 1e-7)


def _tensors(folder: Path, kind: str) -> list[Any]:
    count = len(list(folder.glob(f"{kind}_*.pb")))
    paths = [folder / f"{kind}_{number}.pb" for number in range(count)]
    return [TensorProto.FromString(path.read_bytes()) for path in paths]


def types(model: onnx.ModelProto) -> set[int]:
    """Of all inputs and outputs; 0 (undefined) for what is no tensor."""
    values = (*model.graph.input, *model.graph.output)
    return {value.type.tensor_type.elem_type for value in values}


def carried(model: onnx.ModelProto) -> bool:
    return types(model) <= CARRIED


CASES = {
    case.name: case
    for case in (*node_cases(), *folder_cases())
    # Those are only bound, see tests/engine/programs/test_executor.py.
    if TensorProto.BFLOAT16 not in types(case.model)
}


def array(given: Any) -> Array:
    result = np.asarray(
        numpy_helper.to_array(given) if isinstance(given, TensorProto) else given
    )
    if result.dtype.kind not in "OSU":
        return result
    texts = np.empty(result.size, object)
    items = result.reshape(-1).tolist()
    texts[:] = [i.decode() if isinstance(i, bytes) else str(i) for i in items]
    return texts.reshape(result.shape)


def run_source(case: Case) -> list[list[Array]] | None:
    """What ONNX Runtime gives for each data set; None where it cannot run the case."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    names = [value.name for value in case.model.graph.input]
    try:
        session = ort.InferenceSession(case.model.SerializeToString(), options)
        return [
            session.run(None, dict(zip(names, map(array, inputs), strict=False)))
            for inputs, _ in case.data_sets
        ]
    except Exception:
        return None


def run_compiled(case: Case, target: Path) -> list[dict[str, Array]]:
    compile_model(case.model, target)
    compiled = Compiled(target)
    names = [value.name for value in case.model.graph.input]
    return [
        compiled.run(**dict(zip(names, map(array, inputs), strict=False)))
        for inputs, _ in case.data_sets
    ]


def same(one: Array, other: Array) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def close(one: Array, other: Array, case: Case) -> bool:
    if one.dtype.kind != "f":
        return same(one, other)
    return bool(np.allclose(one, other, rtol=case.rtol, atol=case.atol, equal_nan=True))


@pytest.mark.parametrize("name", CASES)
def test_compiled_cases_give_what_onnx_runtime_gives(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    if not carried(case.model):
        with pytest.raises(InvalidModel):
            compile_model(case.model, tmp_path / "m.popef")
        return
    results = run_source(case)
    outputs = [value.name for value in case.model.graph.output]
    if results is None and not any(
        # Needs a locale that the machine may lack; the compiler takes another.
        node.op_type == "StringNormalizer"
        for node in case.model.graph.node
    ):
        with pytest.raises((InvalidModel, ExecutionFailed)):
            run_compiled(case, tmp_path / "m.popef")
        return
    answers = run_compiled(case, tmp_path / "m.popef")
    if results is None:
        results = [list(map(array, expected)) for _, expected in case.data_sets]
    for (_, expected), answer, result in zip(
        case.data_sets, answers, results, strict=True
    ):
        for output, source, wanted in zip(outputs, result, expected, strict=True):
            actual = answer[output]
            assert same(actual, source)
            assert close(actual, array(wanted), case) or not close(
                source, array(wanted), case
            )


def test_the_sample_is_large_and_mixed() -> None:
    kinds = {
        value.type.tensor_type.elem_type
        for case in CASES.values()
        if carried(case.model)
        for value in (*case.model.graph.input, *case.model.graph.output)
    }
    assert len(CASES) > 100
    assert kinds >= {1, 2, 3, 6, 7, 8, 9, 10, 11}
