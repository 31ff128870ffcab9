"""Build the models that are measured: `python -m bench.cases.models DIR`.

The comparison uses S, M and L; soak and chaos use the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Floats = npt.NDArray[np.float32]
Dims = list[int | str]

OPSET = 17
#: MLP of scenario M: input, two hidden layers, output.
M_LAYERS = (784, 512, 512, 10)


def _model(
    nodes: list[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, Dims]],
    outputs: Mapping[str, tuple[int, Dims]],
    weights: Mapping[str, Floats],
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "bench",
        [helper.make_tensor_value_info(k, *v) for k, v in inputs.items()],
        [helper.make_tensor_value_info(k, *v) for k, v in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8
    )
    onnx.checker.check_model(model)
    return model


def small() -> onnx.ModelProto:
    """S: y = x * w + b on float32[n, 16]."""
    w = np.linspace(0.5, 2.0, 16, dtype=np.float32)
    b = np.linspace(-1.0, 1.0, 16, dtype=np.float32)
    return _model(
        [
            helper.make_node("Mul", ["x", "w"], ["xw"]),
            helper.make_node("Add", ["xw", "b"], ["y"]),
        ],
        {"x": (TensorProto.FLOAT, ["n", 16])},
        {"y": (TensorProto.FLOAT, ["n", 16])},
        {"w": w, "b": b},
    )


def middle() -> onnx.ModelProto:
    """M: an MLP 784-512-512-10, 2.7 MB of weights, on float32[n, 784]."""
    random = np.random.default_rng(1)
    nodes, weights, value = [], {}, "x"
    for i, (n_in, n_out) in enumerate(pairwise(M_LAYERS)):
        scale = np.float32(1 / np.sqrt(n_in))
        weights[f"w{i}"] = random.standard_normal((n_in, n_out), np.float32) * scale
        weights[f"b{i}"] = random.standard_normal(n_out, np.float32) * scale
        last = i == len(M_LAYERS) - 2
        out = "y" if last else f"h{i}"
        gemm = out if last else f"g{i}"
        nodes.append(helper.make_node("Gemm", [value, f"w{i}", f"b{i}"], [gemm]))
        if not last:
            nodes.append(helper.make_node("Relu", [gemm], [out]))
        value = out
    return _model(
        nodes,
        {"x": (TensorProto.FLOAT, ["n", M_LAYERS[0]])},
        {"y": (TensorProto.FLOAT, ["n", M_LAYERS[-1]])},
        weights,
    )


def large() -> onnx.ModelProto:
    """L: identity on float32[n, 3, 224, 224], 602 112 bytes each way a row."""
    return _model(
        [helper.make_node("Identity", ["x"], ["y"])],
        {"x": (TensorProto.FLOAT, ["n", 3, 224, 224])},
        {"y": (TensorProto.FLOAT, ["n", 3, 224, 224])},
        {},
    )


def doubled(elements: int) -> onnx.ModelProto:
    """y = x * 2 on float32[elements]: equal bytes in and out, little computation."""
    shape: Dims = [elements]
    return _model(
        [helper.make_node("Mul", ["x", "two"], ["y"])],
        {"x": (TensorProto.FLOAT, shape)},
        {"y": (TensorProto.FLOAT, shape)},
        {"two": np.array(2, np.float32)},
    )


def mixing() -> onnx.ModelProto:
    """Softmax over the first dimension: its rows depend on each other, so never batch
    it.
    """
    return _model(
        [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
        {"x": (TensorProto.FLOAT, ["n", 8])},
        {"y": (TensorProto.FLOAT, ["n", 8])},
        {},
    )


def words() -> onnx.ModelProto:
    """Make a model of strings in and out, with a count: BYTES through every
    encoding.
    """
    return _model(
        [
            helper.make_node("Identity", ["text"], ["same"]),
            helper.make_node("Size", ["text"], ["count"]),
        ],
        {"text": (TensorProto.STRING, ["n"])},
        {"same": (TensorProto.STRING, ["n"]), "count": (TensorProto.INT64, [])},
        {},
    )


def slow(size: int = 1024, rounds: int = 64) -> onnx.ModelProto:
    """Successive matrix products: a batch takes tens of milliseconds, so a kill hits
    it.

    The matrix is orthogonal, so rounding errors do not grow from product to product.
    """
    random = np.random.default_rng(2)
    w = np.linalg.qr(random.standard_normal((size, size)))[0].astype(np.float32)
    nodes, value = [], "x"
    for i in range(rounds):
        out = "y" if i == rounds - 1 else f"h{i}"
        nodes.append(helper.make_node("MatMul", [value, "w"], [out]))
        value = out
    return _model(
        nodes,
        {"x": (TensorProto.FLOAT, ["n", size])},
        {"y": (TensorProto.FLOAT, ["n", size])},
        {"w": w},
    )


def looping(size: int = 512, rounds: int = 300) -> onnx.ModelProto:
    """`slow` as a loop: loads quickly with any number of rounds."""
    random = np.random.default_rng(2)
    w = np.linalg.qr(random.standard_normal((size, size)))[0].astype(np.float32)
    state: Dims = ["n", size]
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_in"], ["go_out"]),
            helper.make_node("MatMul", ["state_in", "w"], ["state_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("round", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_in", TensorProto.FLOAT, state),
        ],
        [
            helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_out", TensorProto.FLOAT, state),
        ],
    )
    trip = helper.make_tensor("rounds", TensorProto.INT64, [], [rounds])
    return _model(
        [
            helper.make_node("Constant", [], ["rounds"], value=trip),
            helper.make_node("Loop", ["rounds", "", "x"], ["y"], body=body),
        ],
        {"x": (TensorProto.FLOAT, state)},
        {"y": (TensorProto.FLOAT, state)},
        {"w": w},
    )


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "small": small,
    "middle": middle,
    "large": large,
    "mixing": mixing,
    "words": words,
    "slow": slow,
}


def write_models(directory: Path, *names: str) -> dict[str, Path]:
    """Write `NAME.onnx` for each name (default: all); name to path."""
    directory.mkdir(parents=True, exist_ok=True)
    paths = {}
    for name in names or MODELS:
        paths[name] = directory / f"{name}.onnx"
        paths[name].write_bytes(MODELS[name]().SerializeToString())
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    for path in write_models(parser.parse_args().directory).values():
        print(path)


if __name__ == "__main__":
    main()
