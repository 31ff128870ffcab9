"""Write PopEF files to try things with.

    python examples/build_popef.py --out models

writes `simple.popef`, the model of the Model Runtime guide: output = A * weights + B,
with `tensor_A` and `tensor_B` given by requests and `weights` held as tensor data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from engine.compiler import CompileOptions, compile_model

BATCH, WIDTH = 3, 4


def build_simple(folder: Path) -> Path:
    """Three rows of four numbers at a time; any multiple of three rows in a request."""
    weights = np.linspace(0.5, 2.0, WIDTH, dtype=np.float32)
    shape = [BATCH, WIDTH]
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name in ("tensor_A", "tensor_B")
    ]
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["tensor_A", "weights"], ["product"]),
            helper.make_node("Add", ["product", "tensor_B"], ["output"]),
        ],
        "simple",
        inputs,
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(weights, "weights")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    path = folder / "simple.popef"
    options = CompileOptions(batch=BATCH, weights_from=0, name="simple")
    compile_model(model, path, options)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    print(build_simple(folder))


if __name__ == "__main__":
    main()
