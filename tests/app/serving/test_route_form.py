"""Answers of routes of models: only those that HTTP allows are sent."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import pytest

from app.codec.messages import Encoding, InferRequest
from app.codec.model import ModelCodec
from app.serving.route_form import RouteForm
from engine import PYTHON_ANSWER, ExecutionFailed, Tensor
from popef_io import DataType
from tests.app.fronts import spec


def answer(status: int, *headers: tuple[bytes, bytes]) -> Any:
    form = RouteForm({"method": "GET", "headers": []}, "", "", has_keys=False)
    pair = np.empty((1, 2), dtype=object)
    pair[0, 0] = msgpack.packb({"status": status, "headers": headers})
    pair[0, 1] = b"body"
    outputs = {PYTHON_ANSWER: Tensor.from_numpy(pair, DataType.STRING)}
    return form.encode(ModelCodec(spec()), InferRequest({}, Encoding.FILE), outputs)


@pytest.mark.parametrize("status", [200, 299, 404, 599])
def test_an_answer_has_its_status(status: int) -> None:
    assert answer(status, (b"X-A", b"b\tc")).status == status


@pytest.mark.parametrize("status", [0, 99, 100, 101, 199, 600, 1000])
def test_no_other_statuses_are_sent(status: int) -> None:
    expected = f"answered with the status {status}, expected 200 to 599"
    with pytest.raises(ExecutionFailed, match=expected):
        answer(status)


@pytest.mark.parametrize("value", [b"a\r\nb: c", b"\x00", b"\x07", b"\x7f"])
def test_no_control_characters_are_sent(value: bytes) -> None:
    with pytest.raises(ExecutionFailed, match="the route wrote the header b'x-a'"):
        answer(200, (b"x-a", value))
