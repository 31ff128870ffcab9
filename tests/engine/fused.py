"""A fused model: the input `index` chooses between `sum` and `scale`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from onnx import helper

from engine.programs import executable as ex
from popef_io import (
    Anchor,
    DataType,
    Metadata,
    Option,
    ProgramFlow,
    TensorInfo,
    TensorType,
    Writer,
)
from tests.engine.models import Port


def _graph(
    name: str, nodes: Sequence[Any], inputs: Sequence[Port], output: Port
) -> ex.Graph:
    graph = helper.make_graph(
        list(nodes), name, [p.value_info() for p in inputs], [output.value_info()]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    return ex.Graph(name, model.SerializeToString())


def _branch(name: str, inputs: Sequence[Port], output: Port) -> ex.Steps:
    return ex.Steps(
        (
            *(ex.StreamIn(f"h2d_{p.name}", p.name) for p in inputs),
            ex.Execute(
                name, {p.name: p.name for p in inputs}, {output.name: output.name}
            ),
            ex.StreamOut(output.name, f"d2h_{output.name}"),
        )
    )


def write_fused(
    path: Path,
    rows: tuple[int, int] = (3, 2),
    *,
    iterations: int = 1,
    index_once: bool = False,
) -> Path:
    """0: sum/output = sum/a + sum/b, `rows[0]` x 4; 1: scale/output = scale/input * 2,
    `rows[1]` x 4. The choice is part of the iterations unless `index_once`.
    """
    index = Port("index", (1,), DataType.S64)
    first = [Port("sum/a", (rows[0], 4)), Port("sum/b", (rows[0], 4))]
    second = [Port("scale/input", (rows[1], 4))]
    outputs = [Port("sum/output", (rows[0], 4)), Port("scale/output", (rows[1], 4))]
    add = helper.make_node("Add", ["sum/a", "sum/b"], ["sum/output"])
    double = helper.make_node("Add", ["scale/input", "scale/input"], ["scale/output"])
    choose: ex.Node = ex.Switch(
        "index",
        {0: _branch("sum", first, outputs[0]), 1: _branch("scale", second, outputs[1])},
    )
    read = ex.StreamIn("h2d_index", "index")
    if index_once:
        main: ex.Node = ex.Steps((read, ex.Repeat(iterations, choose)))
    else:
        main = ex.Repeat(iterations, ex.Steps((read, choose)))
    inputs = [index, *first, *second]
    executable = ex.Executable(
        {
            "sum": _graph("sum", [add], first, outputs[0]),
            "scale": _graph("scale", [double], second, outputs[1]),
        },
        {p.name: TensorInfo(p.shape, p.data_type) for p in (*inputs, *outputs)},
        {0: ex.Steps(()), 1: main},
    )
    metadata = Metadata(
        executable="fused",
        anchors=(
            *(
                Anchor(p.name, f"h2d_{p.name}", p.info, TensorType.INPUT, (1,))
                for p in inputs
            ),
            *(
                Anchor(p.name, f"d2h_{p.name}", p.info, TensorType.OUTPUT, (1,))
                for p in outputs
            ),
        ),
        program_flow=ProgramFlow((0,), (1,), ()),
        programs_map={0: "load", 1: "main"},
        engine_options=(
            Option("popgate.batching", "none"),
            Option("popgate.fused", "0: sum, 1: scale"),
        ),
        device_iterations=iterations,
    )
    with Writer(path) as writer:
        writer.write(metadata)
        with writer.create_executable("fused") as blob:
            blob.write(executable.encode())
    return path
