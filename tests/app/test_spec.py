"""What models take and give, in the protocol's words."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from app.spec import DATATYPES, ModelSpec, TensorSpec, datatype_of
from engine import DataDesc
from popef_io import DataType


def test_datatypes_are_the_protocols() -> None:
    assert {name: item.item_size for name, item in DATATYPES.items()} == {
        "BOOL": 1, "UINT8": 1, "UINT16": 2, "UINT32": 4, "UINT64": 8, "INT8": 1,
        "INT16": 2, "INT32": 4, "INT64": 8, "FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8,
        "BYTES": 0,
    }  # fmt: skip


@pytest.mark.parametrize("name", DATATYPES)
def test_datatypes_go_both_ways(name: str) -> None:
    assert datatype_of(DATATYPES[name].data_type).name == name


@pytest.mark.parametrize(
    "data_type", [DataType.F8, DataType.F8143, DataType.F8152], ids=lambda d: d.name
)
def test_what_the_protocol_cannot_say(data_type: DataType) -> None:
    with pytest.raises(ValueError, match=f"{data_type.name} has no name"):
        datatype_of(data_type)


@dataclass
class Runner:
    request_inputs: tuple[DataDesc, ...]
    request_outputs: tuple[DataDesc, ...]
    max_batch_size: int
    batching_dim: int = 0


def test_from_runner() -> None:
    runner = Runner(
        (DataDesc("x", (-1, 4), DataType.F32), DataDesc("s", None, DataType.STRING)),
        (DataDesc("y", (), DataType.BF16),),
        32,
    )
    spec = ModelSpec.from_runner("m", "3", runner, max_rows=64)
    assert (spec.name, spec.version) == ("m", "3")
    assert spec.inputs == (
        TensorSpec("x", "FP32", DataType.F32, (-1, 4)),
        TensorSpec("s", "BYTES", DataType.STRING, None),
    )
    assert spec.outputs == (TensorSpec.make("y", "BF16", []),)
    assert spec.inputs_by_name["s"] is spec.inputs[1]
    assert spec.outputs_by_name["y"] is spec.outputs[0]
    assert spec.is_batched
    assert (spec.max_batch_size, spec.max_rows) == (32, 64)
    assert not spec.optional_inputs
    runner.batching_dim = 1  # the gateway counts rows in the first dimension only
    assert not ModelSpec.from_runner("m", "3", runner).is_batched


def test_two_tensors_of_one_name() -> None:
    x = TensorSpec.make("x", "FP32", [1])
    with pytest.raises(ValueError, match="two tensors of the same name"):
        ModelSpec("m", "1", (x, x), ())
    ModelSpec("m", "1", (x,), (x,))


def test_specs_are_compared_by_identity() -> None:
    first, second = ModelSpec("m", "1", (), ()), ModelSpec("m", "1", (), ())
    assert first == first
    assert first != second
    assert not first.is_batched
