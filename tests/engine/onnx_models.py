"""Small ONNX models for the compiler's tests, and a way to run what it makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, TensorProto, helper, numpy_helper

from engine.programs.executable import Executable
from engine.programs.executor import Executor
from popef_io import Model, load_model

Array = npt.NDArray[Any]
FLOAT = TensorProto.FLOAT
INT64 = TensorProto.INT64
node = helper.make_node
value = helper.make_tensor_value_info

X = value("x", FLOAT, ["N", 8])
Y = value("y", FLOAT, ["N", 8])


def floats(*shape: int, seed: int = 0) -> Array:
    random = np.random.default_rng(seed)
    return random.standard_normal(shape).astype(np.float32)


def onnx_model(
    nodes: Sequence[Any],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    constants: Mapping[str, Any] | None = None,
    opset: int = 20,
    domains: Mapping[str, int] | None = None,
) -> ModelProto:
    tensors = [
        numpy_helper.from_array(np.asarray(v), k) for k, v in (constants or {}).items()
    ]
    imports = [helper.make_opsetid("", opset)]
    imports += [helper.make_opsetid(d, v) for d, v in (domains or {}).items()]
    return helper.make_model(
        helper.make_graph(nodes, "g", inputs, outputs, tensors),
        opset_imports=imports,
        ir_version=10,
    )


def mlp(hidden: int = 64) -> ModelProto:
    """Two layers with weights that are large enough to be tensor data."""
    return onnx_model(
        [
            node("Gemm", ["x", "w1", "b1"], ["a"]),
            node("Relu", ["a"], ["b"]),
            node("Gemm", ["b", "w2"], ["y"]),
        ],
        [X],
        [value("y", FLOAT, ["N", 4])],
        {"w1": floats(8, hidden), "b1": floats(hidden), "w2": floats(hidden, 4)},
    )


class Compiled:
    """A compiled model, loaded as a device loads it."""

    def __init__(self, path: Path) -> None:
        self.model: Model = load_model(path)
        self.metadata = self.model.metadata
        content = self.model.executable.raw()
        self.executable = Executable.decode(content)
        self.executor = Executor(self.executable, self.metadata)
        weights = {
            a.handle: self.model.tensors[a.name].data()
            for a in self.metadata.anchors
            if 0 in a.programs
        }
        self.executor.run((0,), _Streams(weights))

    def run(self, **inputs: Array) -> dict[str, Array]:
        """Outputs by name; use `run(**{"odd name": array})` where names are odd."""
        streams = _Streams({f"h2d_{name}": array for name, array in inputs.items()})
        self.executor.run((1,), streams)
        return {k.removeprefix("d2h_"): v for k, v in streams.outputs.items()}

    def option(self, name: str) -> str | None:
        return self.metadata.option(name)


class _Streams:
    def __init__(self, inputs: Mapping[str, Array]) -> None:
        self.inputs = inputs
        self.outputs: dict[str, Array] = {}

    def read(self, handle: str) -> Array:
        return self.inputs[handle]

    def output_memory(self, handle: str, shape: object, dtype: object) -> Array | None:
        return None

    def write(self, handle: str, value: Array) -> None:
        self.outputs[handle] = value
