"""Predictions that are written in blocks say what small ones say."""

from __future__ import annotations

import json
import resource
from typing import Any

import numpy as np
import pytest

from app.codec.messages import NanPolicy
from app.give_way import AT_ONCE
from engine import Tensor
from popgate_kserve.form import encode_predict
from tests.app.codec.test_large_outputs import COUNT, codec, strings


def test_many_strings_are_split_into_instances() -> None:
    outputs = {"y": strings(COUNT)}
    rows = json.loads(encode_predict(codec("BYTES"), 2, outputs, NanPolicy.NULL))
    assert [len(row) for row in rows["predictions"]] == [COUNT // 2, COUNT // 2]
    assert rows["predictions"][0][9] == {"b64": "/w=="}


def test_many_short_strings_take_little_memory() -> None:
    """20,000 strings took 74 MiB."""
    outputs = {"y": Tensor.from_numpy(np.full(20_000, b"a", object))}
    written = codec("BYTES")
    before = _memory()
    text = encode_predict(written, 20_000, outputs, NanPolicy.NULL)
    assert _memory() - before < 32 << 20
    assert json.loads(text) == {"predictions": ["a"] * 20_000}


def _memory() -> int:
    """Return the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@pytest.mark.parametrize(
    "shape", [(2, 3, 12_000), (12_000, 3, 2), (72_000,), (1, 72_000), (72_000, 1)]
)
def test_predictions_of_large_outputs_keep_their_nesting(shape: Any) -> None:
    array = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    assert array.nbytes > AT_ONCE
    outputs = {"y": Tensor.from_numpy(array)}
    written = codec("INT32")
    text = encode_predict(written, None, outputs, NanPolicy.NULL)
    assert json.loads(text) == {"outputs": array.tolist()}
    text = encode_predict(written, shape[0], outputs, NanPolicy.NULL)
    assert json.loads(text) == {"predictions": array.tolist()}


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0), (2, 3, 0), (2, 0, 3)])
def test_predictions_without_elements_keep_their_nesting(shape: Any) -> None:
    array = np.zeros(shape, np.int32)
    text = encode_predict(
        codec("INT32"), None, {"y": Tensor.from_numpy(array)}, NanPolicy.NULL
    )
    assert json.loads(text) == {"outputs": array.tolist()}
