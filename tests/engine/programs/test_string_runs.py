from __future__ import annotations

import random
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from engine.errors import ExecutionFailed
from engine.programs import string_runs
from engine.programs.string_runs import MANY, run_strings
from engine.tensor import Array

value = helper.make_tensor_value_info
TEXTS = ["", "a", "words and words", "é€", "日本", "\0", "\x00\x01", "ÿ", " "]


def session(**inputs: int) -> Any:
    """Return a session that returns each input, as `<name>_out`."""
    names = [*inputs]
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Identity", [n], [f"{n}_out"]) for n in names],
            "g",
            [value(name, kind, None) for name, kind in inputs.items()],
            [value(f"{name}_out", kind, None) for name, kind in inputs.items()],
        ),
        opset_imports=[helper.make_opsetid("", 20)],
        ir_version=10,
    )
    return ort.InferenceSession(model.SerializeToString())._sess


class WithoutRun:
    """A session whose `run`, which keeps the interpreter's lock, must not be called."""

    def __init__(self, real: Any) -> None:
        self.run_with_ort_values = real.run_with_ort_values


TEXT = session(x=TensorProto.STRING)


def strings(shape: tuple[int, ...], seed: int, how: str) -> tuple[Array, Array]:
    """Return random strings, as they come and as `str`."""
    chosen, kinds = random.Random(seed), random.Random(seed)
    given, wanted = np.empty(shape, object), np.empty(shape, object)
    for place in np.ndindex(shape):
        text = chosen.choice(TEXTS)
        is_text = how == "str" or (how == "mixed" and kinds.random() < 0.5)
        given[place] = text if is_text else text.encode()
        wanted[place] = text
    return given, wanted


@pytest.mark.parametrize("how", ["bytes", "str", "mixed"])
@pytest.mark.parametrize(
    "shape", [(), (0,), (1,), (5, 0), (3, 4), (MANY - 1,), (MANY,), (300, 2, 123)]
)
def test_strings_come_as_they_went(shape: tuple[int, ...], how: str) -> None:
    given, wanted = strings(shape, 1, how)
    (got,) = run_strings(TEXT, ["x_out"], {"x": given}, None)
    assert got.dtype == object
    assert got.shape == shape
    assert got.tolist() == wanted.tolist()


@pytest.mark.parametrize("other", [(), (0,), (1,), (7,), (2 * MANY,)])
def test_many_strings_never_go_in_as_objects(other: tuple[int, ...]) -> None:
    kinds = {"x": TensorProto.STRING, "more": TensorProto.STRING}
    real = session(**kinds, number=TensorProto.FLOAT)
    numbers = np.arange(12, dtype=np.float32).reshape(3, 4).T
    feed = {
        "x": strings((MANY + 1,), 2, "bytes")[0],
        "more": strings(other, 3, "mixed")[0],
        "number": numbers,
    }
    wanted = {
        "x": strings((MANY + 1,), 2, "str")[1],
        "more": strings(other, 3, "str")[1],
    }
    names = ["number_out", "more_out", "x_out"]
    number, more, x = run_strings(WithoutRun(real), names, feed, None)
    assert not feed  # so that its strings could be freed
    assert number.tolist() == numbers.tolist()
    assert more.tolist() == wanted["more"].tolist()
    assert x.tolist() == wanted["x"].tolist()


def test_an_empty_text_stays_one() -> None:
    given = np.full(MANY, b"", object)
    (got,) = run_strings(TEXT, ["x_out"], {"x": given}, None)
    assert got.tolist() == [""] * MANY


def test_strings_too_long_for_a_model_go_in_as_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(string_runs, "_LONGEST", MANY)
    given, wanted = strings((MANY,), 4, "bytes")
    (got,) = run_strings(TEXT, ["x_out"], {"x": given}, None)
    assert got.tolist() == wanted.tolist()
    with pytest.raises(AttributeError):
        run_strings(WithoutRun(TEXT), ["x_out"], {"x": given}, None)


@pytest.mark.parametrize("count", [2, MANY])
@pytest.mark.parametrize("pair", [(b"\xc3", b"\xa9"), (b"\xff", b"a")])
def test_each_string_must_be_utf_8_alone(count: int, pair: tuple[bytes, bytes]) -> None:
    given = np.full(count, b"a", object)
    given[-2:] = pair
    with pytest.raises(ExecutionFailed, match="'x' is not UTF-8") as caught:
        run_strings(TEXT, ["x_out"], {"x": given}, None)
    assert caught.value.callers_fault
