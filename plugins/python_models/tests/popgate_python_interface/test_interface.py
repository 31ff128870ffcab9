"""What the module of a Python model says of its tensors."""

from __future__ import annotations

from types import ModuleType
from typing import Annotated, Any, ClassVar, TypedDict

import numpy as np
import pytest

from engine import InvalidModel
from popef_io import DataType
from popgate_python_interface.interface import PythonInterface, find_model, parse_tensor
from popgate_python_interface.model import Model


def module(**contents: Any) -> ModuleType:
    found = ModuleType("model")
    for value in contents.values():
        if isinstance(value, type) and value.__module__ == __name__:
            value.__module__ = "model"
    vars(found).update(contents)
    return found


@pytest.mark.parametrize(
    ("text", "data_type", "shape"),
    [
        ("FP32[-1,3,224,224]", DataType.F32, (-1, 3, 224, 224)),
        ("BYTES[-1]", DataType.STRING, (-1,)),
        (" UINT8 [ 2 , 0 ] ", DataType.U8, (2, 0)),
        ("BF16[]", DataType.BF16, ()),
    ],
)
def test_tensors(text: str, data_type: DataType, shape: tuple[int, ...]) -> None:
    tensor = parse_tensor("x", text)
    assert (tensor.data_type, tensor.shape) == (data_type, shape)
    assert parse_tensor("x", str(tensor)) == tensor


@pytest.mark.parametrize(
    "text", ["FP32", "FP32[-2]", "FP32[1,x]", "FP32[1", "F[1]", 3, "", "FP32[1,,--2]"]
)
def test_what_is_no_tensor(text: object) -> None:
    with pytest.raises(InvalidModel, match="tensor 'x'"):
        parse_tensor("x", text)


def test_a_class_and_what_it_is_told_as() -> None:
    class Sentiment(Model):
        inputs: ClassVar = {"text": "BYTES[-1]"}
        outputs: ClassVar = {"score": "FP32[-1]"}
        batching = True

        def __call__(self, text: Any) -> Any:
            return {"score": text}

    target, interface = find_model(module(a=Sentiment, Model=np.ndarray))
    assert target is Sentiment
    assert interface.batching
    assert PythonInterface.from_message(interface.to_message()) == interface


def test_a_function_with_several_outputs() -> None:
    class Answer(TypedDict):
        score: Annotated[np.ndarray[Any, Any], "FP32[-1]"]
        label: Annotated[np.ndarray[Any, Any], "BYTES[-1]"]

    def predict(x: Annotated[np.ndarray[Any, Any], "what", "FP32[-1]"]) -> Answer:
        raise NotImplementedError

    # Hints of a function inside another cannot be looked up by name.
    predict.__annotations__ = {"x": Annotated[np.ndarray, "FP32[-1]"], "return": Answer}
    Answer.__annotations__ = {
        "score": Annotated[np.ndarray, "FP32[-1]"],
        "label": Annotated[np.ndarray, "BYTES[-1]"],
    }
    target, interface = find_model(module(predict=predict, batching=True))
    assert target is predict
    assert [t.name for t in interface.outputs] == ["score", "label"]
    assert interface.batching


def test_what_is_not_annotated() -> None:
    def predict(x: int) -> None:
        raise NotImplementedError

    with pytest.raises(InvalidModel, match="'x' of predict must be annotated"):
        find_model(module(predict=predict))


def test_a_class_without_a_call() -> None:
    class Empty(Model):
        inputs: ClassVar = {"x": "FP32[-1]"}
        outputs: ClassVar = {"y": "FP32[-1]"}

    with pytest.raises(InvalidModel, match="Empty has no __call__"):
        find_model(module(a=Empty))
