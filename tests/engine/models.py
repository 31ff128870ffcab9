"""Small real models, written as PopEF files without the compiler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from engine.programs import executable as ex
from popef_io import (
    Anchor,
    DataType,
    Metadata,
    Option,
    ProgramFlow,
    TensorDataInfo,
    TensorInfo,
    TensorType,
    Writer,
)

ONNX_TYPES = {
    DataType.F32: onnx.TensorProto.FLOAT,
    DataType.F16: onnx.TensorProto.FLOAT16,
    DataType.BF16: onnx.TensorProto.BFLOAT16,
    DataType.F64: onnx.TensorProto.DOUBLE,
    DataType.S64: onnx.TensorProto.INT64,
    DataType.U64: onnx.TensorProto.UINT64,
    DataType.STRING: onnx.TensorProto.STRING,
    DataType.BOOL: onnx.TensorProto.BOOL,
}


@dataclass(frozen=True)
class Port:
    name: str
    shape: tuple[int, ...]
    data_type: DataType = DataType.F32

    @property
    def info(self) -> TensorInfo:
        return TensorInfo(self.shape, self.data_type)

    def value_info(self) -> Any:
        dims = [f"{self.name}_{i}" if d < 0 else d for i, d in enumerate(self.shape)]
        return helper.make_tensor_value_info(
            self.name, ONNX_TYPES[self.data_type], dims
        )


def write_model(
    path: Path,
    nodes: Sequence[Any],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    constants: dict[str, np.ndarray[Any, Any]] | None = None,
    weights: dict[str, np.ndarray[Any, Any]] | None = None,
    batching: str = "none",
    batch_size: int = 0,
    digest: str = "",
    iterations: int = 1,
    announced_iterations: int = 0,
    name: str = "model",
) -> Path:
    """Write a model of one graph; `weights` become tensor data, `constants` stay in.

    The main program repeats `iterations` times (device iterations), and the metadata
    say so, or else.
    """
    weights = weights or {}
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [
            *(port.value_info() for port in inputs),
            *(
                helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, w.shape)
                for name, w in weights.items()
            ),
        ],
        [port.value_info() for port in outputs],
        [numpy_helper.from_array(v, k) for k, v in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    loaded = {
        name: TensorInfo(w.shape, DataType.from_numpy(w.dtype))
        for name, w in weights.items()
    }
    variables = {port.name: port.info for port in (*inputs, *outputs)} | loaded
    names_in = [port.name for port in inputs] + list(weights)
    once = ex.Steps(
        (
            *(ex.StreamIn(f"h2d_{p.name}", p.name) for p in inputs),
            ex.Execute(
                "main", {n: n for n in names_in}, {p.name: p.name for p in outputs}
            ),
            *(ex.StreamOut(p.name, f"d2h_{p.name}") for p in outputs),
        )
    )
    executable = ex.Executable(
        {"main": ex.Graph("main", model.SerializeToString(), digest)},
        variables,
        {
            0: ex.Steps(tuple(ex.StreamIn(f"h2d_{n}", n) for n in weights)),
            1: once if iterations == 1 else ex.Repeat(iterations, once),
        },
    )
    anchors = (
        *(
            Anchor(p.name, f"h2d_{p.name}", p.info, TensorType.INPUT, (1,))
            for p in inputs
        ),
        *(
            Anchor(p.name, f"d2h_{p.name}", p.info, TensorType.OUTPUT, (1,))
            for p in outputs
        ),
        *(
            Anchor(name, f"h2d_{name}", info, TensorType.INPUT, (0,))
            for name, info in loaded.items()
        ),
    )
    metadata = Metadata(
        executable=name,
        anchors=anchors,
        program_flow=ProgramFlow((0,), (1,), ()),
        programs_map={0: "load", 1: "main"},
        engine_options=(
            Option("popgate.batching", batching),
            Option("popgate.batch_size", str(batch_size)),
        ),
        device_iterations=announced_iterations or iterations,
    )
    with Writer(path) as writer:
        writer.write(metadata)
        with writer.create_executable(name) as blob:
            blob.write(executable.encode())
        for name, array in weights.items():
            with writer.create_tensor_data(TensorDataInfo(name, loaded[name])) as blob:
                blob.write(np.ascontiguousarray(array).tobytes())
    return path


def affine(
    path: Path, *, batch_size: int = 0, width: int = 4, wrong_digest: bool = False
) -> Path:
    """output = input * 2 + 1, row by row; rows may be mixed."""
    rows = batch_size or -1
    two = np.full(width, 2, np.float32)
    return write_model(
        path,
        [
            helper.make_node("Mul", ["input", "two"], ["twice"]),
            helper.make_node("Add", ["twice", "one"], ["output"]),
        ],
        [Port("input", (rows, width))],
        [Port("output", (rows, width))],
        {"two": two, "one": np.ones(width, np.float32)},
        batching="rows",
        batch_size=batch_size,
        digest="0" * 64 if wrong_digest else "",
    )


def quotient(path: Path, divided: int | None = None) -> Path:
    """output = -(2**63) / -input: for 1 there is no such whole number of 64 bits, which
    ends the process that works it out (SIGFPE, on x86).

    Where `divided` is given, that is the divisor, and is worked out at load.
    """
    constants = {"lowest": np.array([-(2**63)])}
    nodes = [
        helper.make_node("Neg", ["input"], ["negative"]),
        helper.make_node("Div", ["lowest", "negative"], ["output"]),
    ]
    if divided is not None:
        constants["divided"] = np.array([-divided])
        nodes = [
            helper.make_node("Div", ["lowest", "divided"], ["share"]),
            helper.make_node("Add", ["input", "share"], ["output"]),
        ]
    return write_model(
        path,
        nodes,
        [Port("input", (-1, 1), DataType.S64)],
        [Port("output", (-1, 1), DataType.S64)],
        constants,
        batching="rows",
    )


def regular(
    path: Path,
    shape: tuple[int, ...],
    *,
    iterations: int = 1,
    announced_iterations: int = 0,
    batching: str = "none",
) -> Path:
    """output = input * 2 + 1 for a fixed (or partly free) shape."""
    return write_model(
        path,
        [
            helper.make_node("Mul", ["input", "two"], ["twice"]),
            helper.make_node("Add", ["twice", "one"], ["output"]),
        ],
        [Port("input", shape)],
        [Port("output", shape)],
        {"two": np.array(2, np.float32), "one": np.array(1, np.float32)},
        batching=batching,
        batch_size=max(0, shape[0]) if batching == "rows" else 0,
        iterations=iterations,
        announced_iterations=announced_iterations,
    )


def weighted(path: Path) -> Path:
    """output = A * weights + B, the weights as tensor data (the guide's model)."""
    return write_model(
        path,
        [
            helper.make_node("Mul", ["A", "weights"], ["product"]),
            helper.make_node("Add", ["product", "B"], ["output"]),
        ],
        [Port("A", (2, 3)), Port("B", (2, 3))],
        [Port("output", (2, 3))],
        weights={"weights": np.arange(6, dtype=np.float32).reshape(2, 3)},
    )


def simple(folder: Path) -> Path:
    """Write simple.popef of `examples/build_popef.py` without the compiler."""
    three_rows = (3, 4)
    return write_model(
        folder / "simple.popef",
        [
            helper.make_node("Mul", ["tensor_A", "weights"], ["product"]),
            helper.make_node("Add", ["product", "tensor_B"], ["output"]),
        ],
        [Port("tensor_A", three_rows), Port("tensor_B", three_rows)],
        [Port("output", three_rows)],
        weights={"weights": np.linspace(0.5, 2.0, 4, dtype=np.float32)},
        batching="rows",
        batch_size=3,
        name="simple",
    )


def write_graph(
    path: Path, model: Any, batching: str = "none", options: Sequence[Option] = ()
) -> Path:
    """Write an `onnx.ModelProto`, whose weights stay in its graph."""
    graph = model.graph
    inputs, outputs = map(_infos, (graph.input, graph.output))
    given = {name: name for name in inputs}
    given_back = {name: name for name in outputs}
    steps: tuple[ex.Node, ...] = (
        *(ex.StreamIn(f"h2d_{name}", name) for name in inputs),
        ex.Execute("main", given, given_back),
        *(ex.StreamOut(name, f"d2h_{name}") for name in outputs),
    )
    executable = ex.Executable(
        {"main": ex.Graph("main", model.SerializeToString())},
        inputs | outputs,
        {0: ex.Steps(()), 1: ex.Steps(steps)},
    )
    metadata = Metadata(
        executable="model",
        anchors=(
            *(
                Anchor(name, f"h2d_{name}", info, TensorType.INPUT, (1,))
                for name, info in inputs.items()
            ),
            *(
                Anchor(name, f"d2h_{name}", info, TensorType.OUTPUT, (1,))
                for name, info in outputs.items()
            ),
        ),
        program_flow=ProgramFlow((0,), (1,), ()),
        programs_map={0: "load", 1: "main"},
        engine_options=(
            Option("popgate.batching", batching),
            Option("popgate.batch_size", "0"),
            *options,
        ),
    )
    with Writer(path) as writer:
        writer.write(metadata)
        with writer.create_executable("model") as blob:
            blob.write(executable.encode())
    return path


def _infos(values: Sequence[Any]) -> dict[str, TensorInfo]:
    types = {number: data_type for data_type, number in ONNX_TYPES.items()}
    infos = {}
    for value in values:
        tensor = value.type.tensor_type
        dims = tensor.shape.dim
        shape = tuple(d.dim_value if d.HasField("dim_value") else -1 for d in dims)
        infos[value.name] = TensorInfo(shape, types[tensor.elem_type])
    return infos


def mean_over_rows(path: Path) -> Path:
    """output = input - mean over dimension 0: rows depend on each other."""
    return write_model(
        path,
        [
            helper.make_node("ReduceMean", ["input", "axes"], ["mean"], keepdims=1),
            helper.make_node("Sub", ["input", "mean"], ["output"]),
        ],
        [Port("input", (-1, 4))],
        [Port("output", (-1, 4))],
        {"axes": np.array([0], np.int64)},
    )


def text(path: Path) -> Path:
    """A string tensor of any length, concatenated with a suffix."""
    return write_model(
        path,
        [helper.make_node("StringConcat", ["input", "suffix"], ["output"])],
        [Port("input", (-1,), DataType.STRING)],
        [Port("output", (-1,), DataType.STRING)],
        {"suffix": np.array(["!"], dtype=object)},
        batching="rows",
    )


def gather(path: Path, *, batch_size: int = 0, iterations: int = 1) -> Path:
    """output = table[index]; an index out of range makes the graph fail."""
    rows = batch_size or -1
    return write_model(
        path,
        [helper.make_node("Gather", ["table", "index"], ["output"])],
        [Port("index", (rows,), DataType.S64)],
        [Port("output", (rows, 2))],
        {"table": np.arange(20, dtype=np.float32).reshape(10, 2)},
        batching="rows",
        batch_size=batch_size,
        iterations=iterations,
    )


def never(path: Path) -> Path:
    """The signature of `affine`, and a graph that fails whatever it is given."""
    return write_model(
        path,
        [
            helper.make_node("Gather", ["input", "far"], ["row"], axis=1),
            helper.make_node("Add", ["row", "input"], ["output"]),
        ],
        [Port("input", (-1, 4))],
        [Port("output", (-1, 4))],
        {"far": np.array([99])},
        batching="rows",
    )


def slow(path: Path) -> Path:
    """A loop of `count` matrix products: how long it runs is the caller's choice."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_in"], ["go_out"]),
            helper.make_node("MatMul", ["state_in", "matrix"], ["state_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info(
                "state_in", onnx.TensorProto.FLOAT, [128, 128]
            ),
        ],
        [
            helper.make_tensor_value_info("go_out", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info(
                "state_out", onnx.TensorProto.FLOAT, [128, 128]
            ),
        ],
    )
    eye = np.eye(128, dtype=np.float32)
    return write_model(
        path,
        [helper.make_node("Loop", ["count", "", "start"], ["output"], body=body)],
        [Port("count", (), DataType.S64)],
        [Port("output", (128, 128))],
        {"matrix": eye, "start": eye},
    )


def slow_rows(path: Path) -> Path:
    """output = count, row by row, after max(count) matrix products for the batch."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_in"], ["go_out"]),
            helper.make_node("MatMul", ["state_in", "matrix"], ["state_out"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []),
            helper.make_tensor_value_info("go_in", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info("state_in", onnx.TensorProto.FLOAT, [64, 64]),
        ],
        [
            helper.make_tensor_value_info("go_out", onnx.TensorProto.BOOL, []),
            helper.make_tensor_value_info(
                "state_out", onnx.TensorProto.FLOAT, [64, 64]
            ),
        ],
    )
    return write_model(
        path,
        [
            helper.make_node("ReduceMax", ["count"], ["most"], keepdims=0),
            helper.make_node("Loop", ["most", "", "start"], ["end"], body=body),
            helper.make_node("ReduceMin", ["end"], ["least"], keepdims=0),
            helper.make_node("Cast", ["least"], ["zero"], to=onnx.TensorProto.INT64),
            helper.make_node("Add", ["count", "zero"], ["output"]),
        ],
        [Port("count", (-1, 1), DataType.S64)],
        [Port("output", (-1, 1), DataType.S64)],
        {"matrix": np.eye(64, dtype="f4"), "start": np.eye(64, dtype="f4")},
        batching="rows",
    )
