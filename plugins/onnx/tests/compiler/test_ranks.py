"""Inputs with too few dimensions end no process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from engine import ModelRunner
from engine.errors import EngineError
from popgate_onnx.compiler import compile_model
from popgate_onnx.compiler.ranks import guard_ranks

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
LENGTHS = np.array([2, 2])


def model(
    kind: str, types: tuple[int, ...], shape: list[str] | None = None, **attributes: Any
) -> Any:
    """One node, whose first input has this shape or none that is stated."""
    names = [f"x{n}" for n in range(len(types))]
    node = helper.make_node(kind, names, ["y"], **attributes)
    values = [
        helper.make_tensor_value_info(name, kind, None if n else shape)
        for n, (name, kind) in enumerate(zip(names, types, strict=True))
    ]
    output = helper.make_tensor_value_info(
        "y", TensorProto.INT32 if kind == "Multinomial" else FLOAT, None
    )
    graph = helper.make_graph([node], "g", values, [output])
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9
    )


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, np.float32)


REVERSED = {"time_axis": 0, "batch_axis": 1}
REGIONS = np.array([[0, 0, 1, 1]], np.float32)


@pytest.mark.parametrize(
    ("kind", "types", "attributes", "wrong", "right"),
    [
        ("ReverseSequence", (FLOAT, INT64), REVERSED,
         [(ones(2), LENGTHS), (ones(), LENGTHS)], (ones(2, 2, 0), LENGTHS)),
        ("RoiAlign", (FLOAT, FLOAT, INT64), {},
         [(ones(4), REGIONS, LENGTHS[:1]), (ones(1, 1, 2, 2), ones(4), LENGTHS[:1])],
         (ones(3, 1, 2, 2), REGIONS, LENGTHS[:1])),
        ("DFT", (FLOAT,), {}, [(ones(),)], (ones(1, 2, 1),)),
        ("GridSample", (FLOAT, FLOAT), {}, [(ones(), ones())],
         (ones(1, 1, 2, 2), ones(1, 2, 2, 2))),
        ("Multinomial", (FLOAT,), {}, [(ones(2),)], (ones(1, 2),)),
    ],
)  # fmt: skip
def test_too_few_dimensions_are_an_error_and_the_device_lives(
    tmp_path: Path,
    kind: str,
    types: tuple[int, ...],
    attributes: dict[str, Any],
    wrong: list[tuple[np.ndarray[Any, Any], ...]],
    right: tuple[np.ndarray[Any, Any], ...],
) -> None:
    compile_model(model(kind, types, **attributes), target := tmp_path / "m.popef")
    with ModelRunner(target) as runner:
        for values in wrong:
            with pytest.raises(EngineError, match=f"fewer than . dimensions of {kind}"):
                runner.execute({f"x{n}": value for n, value in enumerate(values)})
        runner.execute({f"x{n}": value for n, value in enumerate(right)})


def test_what_is_left_as_it_is() -> None:
    stated = model("ReverseSequence", (FLOAT, INT64), ["time", "n"], **REVERSED)
    short = model("ReverseSequence", (FLOAT, INT64), ["time"], **REVERSED)
    other = model("Relu", (FLOAT,))
    for graph, count in (stated, 1), (short, 2), (other, 1):
        guard_ranks(graph)
        assert len(graph.graph.node) == count


def test_names_that_are_taken() -> None:
    twice = model("STFT", (FLOAT, INT64, FLOAT))
    guard_ranks(twice)
    guard_ranks(twice)
    names = [name for node in twice.graph.node for name in node.output]
    assert len(names) == len({*names}) == 5
