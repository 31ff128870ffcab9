"""Inputs of calls from Python models, in the types of the called model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from app.serving.tensor_fit import checked_rows
from app.spec import ModelSpec, TensorSpec
from engine import InvalidInput, Tensor
from popgate_python_models.called_inputs import called_inputs, spec_of_call


def converted(array: Any, datatype: str) -> list[float]:
    spec = ModelSpec("m", "1", (TensorSpec.make("x", datatype, (-1,)),), (), 8)
    found = called_inputs(spec, {"x": Tensor.from_numpy(array)})["x"]
    assert found.data_type is spec.inputs[0].data_type
    values: list[float] = found.numpy().tolist()
    return values


@pytest.mark.parametrize(
    ("array", "datatype", "found"),
    [
        (np.array([-128, 127]), "INT8", [-128, 127]),
        (np.array([0, 255]), "UINT8", [0, 255]),
        (np.array([2**63 - 1], np.uint64), "INT64", [2**63 - 1]),
        (np.array([1, 2]), "FP16", [1.0, 2.0]),
        (np.array([0.5, -np.inf]), "FP16", [0.5, -np.inf]),
        (np.array([True]), "INT32", [1]),
    ],
)
def test_numbers_of_another_type(array: Any, datatype: str, found: list[float]) -> None:
    assert converted(array, datatype) == found


@pytest.mark.parametrize(
    ("array", "datatype", "words"),
    [
        (np.array([1, 300]), "INT8", "input 'x': 300 is out of range for INT8"),
        (np.array([-1]), "UINT64", "-1 is out of range for UINT64"),
        (np.array([2**63], np.uint64), "INT64", f"{2**63} is out of range for INT64"),
        (np.array([1e39, 1]), "FP32", "1e[+]39 is out of range for FP32"),
        (np.array([1.0]), "INT8", "must be INT8, got float64"),
        (np.array([1, 2]), "BYTES", "input 'x' must be BYTES, got int64"),
        (np.array([1.5]), "BYTES", "input 'x' must be BYTES, got float64"),
    ],
)
def test_numbers_that_a_type_cannot_hold(array: Any, datatype: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        converted(array, datatype)


def test_an_input_of_pictures_takes_files_or_numbers() -> None:
    pixels = TensorSpec.make("x", "FP32", (-1, 3, 2, 2))
    files = {"x": TensorSpec.make("x", "BYTES", (-1,))}
    spec = replace(ModelSpec("m", "1", (pixels,), (), 8), encoded=files)
    given = {"x": Tensor.from_numpy(np.array([b"a JPEG", b"a PNG"], dtype=object))}
    taken = spec_of_call(spec, given)
    assert called_inputs(taken, given) == given
    assert checked_rows(taken, given) == 2
    numbers = {"x": Tensor.from_numpy(np.zeros((1, 3, 2, 2)))}
    found = called_inputs(spec_of_call(spec, numbers), numbers)
    assert found["x"].data_type is pixels.data_type
