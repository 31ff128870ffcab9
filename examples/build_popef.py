"""Write PopEF files to try things with.

    python examples/build_popef.py --out models

    simple.popef       output = tensor_A * weights + tensor_B, the model of the Model
                       Runtime guide; `weights` is tensor data of the file
    fused.popef        two models, `sum` and `scale`; the input `index` chooses
    iterations.popef   output = input * 2 + 1, four device iterations in a run
    accumulator.popef  adds `increment` to a total that stays on the device; a load
                       program brings `total` in, a save program brings it back
    split_1.popef      output = tensor_A * weights + bias: everything but `bias`,
    split_2.popef      which is here; the model needs both files
    two_models.popef   two models, `double` and `triple`: say which when you load it
    feed.popef         output = tensor_A + offset, where `offset` comes from a feed of
                       five tensors in the file: the next one in each run

Tensors are F32[3, 4], those of the fused models excepted. All but the first two are
written without the compiler, from program nodes and anchors
(docs/reference/executables.md).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from engine.programs import executable as programs
from popef_io import (
    Anchor,
    DataType,
    FeedDataInfo,
    Metadata,
    Option,
    ProgramFlow,
    TensorDataInfo,
    TensorInfo,
    TensorType,
    Writer,
)

BATCH, WIDTH = 3, 4
ITERATIONS = 4
FEED_LENGTH = 5
SHAPE = (BATCH, WIDTH)
LOAD, MAIN, SAVE = 0, 1, 2
IN, OUT = TensorType.INPUT, TensorType.OUTPUT

Array: TypeAlias = npt.NDArray[np.float32]


def weights() -> Array:
    """One number for each column."""
    return np.linspace(0.5, 2.0, WIDTH, dtype=np.float32)


# -- the ONNX side


def onnx_model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[int]],
    output: str,
    constants: Mapping[str, Array] | None = None,
    output_shape: Sequence[int] = SHAPE,
) -> Any:
    """A model of floats with one output."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in inputs.items()
        ],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, output_shape)],
        [numpy_helper.from_array(a, name) for name, a in (constants or {}).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    return model


def graph_of(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[int]],
    output: str,
    constants: Mapping[str, Array] | None = None,
) -> programs.Graph:
    """The same for an executable."""
    model = onnx_model(nodes, inputs, output, constants)
    return programs.Graph("main", model.SerializeToString(), opsets={"": 20})


# -- the PopEF side


@dataclass(frozen=True, slots=True)
class Stream:
    """An anchor of floats; on the device, a variable of its name is behind it."""

    name: str
    type: TensorType
    program: int = MAIN
    shape: tuple[int, ...] = SHAPE

    @property
    def info(self) -> TensorInfo:
        return TensorInfo(self.shape, DataType.F32)

    @property
    def handle(self) -> str:
        return f"{'h2d' if self.type is IN else 'd2h'}_{self.name}"

    @property
    def anchor(self) -> Anchor:
        return Anchor(self.name, self.handle, self.info, self.type, (self.program,))

    @property
    def node(self) -> programs.Node:
        if self.type is IN:
            return programs.StreamIn(self.handle, self.name)
        return programs.StreamOut(self.name, self.handle)


def program(
    number: int, streams: Iterable[Stream], *between: programs.Node
) -> programs.Steps:
    """Inputs of the program come in, something happens, its outputs go out."""
    mine = [stream for stream in streams if stream.program == number]
    return programs.Steps(
        (
            *(stream.node for stream in mine if stream.type is IN),
            *between,
            *(stream.node for stream in mine if stream.type is OUT),
        )
    )


def executable_of(
    graph: programs.Graph,
    streams: Sequence[Stream],
    output: str = "output",
    after: Sequence[programs.Node] = (),
) -> programs.Executable:
    """Load, main and save programs; main executes the graph, and then does `after`."""
    inputs = {info.name for info in onnx.load_from_string(graph.model).graph.input}
    run = programs.Execute("main", {n: n for n in sorted(inputs)}, {output: output})
    return programs.Executable(
        {"main": graph},
        {stream.name: stream.info for stream in streams},
        {
            LOAD: program(LOAD, streams),
            MAIN: program(MAIN, streams, run, *after),
            SAVE: program(SAVE, streams),
        },
    )


def metadata_of(
    name: str,
    streams: Iterable[Stream],
    batch_size: int = 0,
    iterations: int = 1,
    save: bool = False,
) -> Metadata:
    """Metadata of an executable; rows may be mixed where there is a batch size."""
    names = {LOAD: "load", MAIN: "main"} | ({SAVE: "save"} if save else {})
    return Metadata(
        executable=name,
        anchors=tuple(stream.anchor for stream in streams),
        program_flow=ProgramFlow((LOAD,), (MAIN,), (SAVE,) if save else ()),
        programs_map=names,
        engine_options=(
            Option("popgate.batching", "rows" if batch_size else "none"),
            Option("popgate.batch_size", str(batch_size)),
        ),
        device_iterations=iterations,
    )


def add_executable(
    writer: Writer, metadata: Metadata, executable: programs.Executable
) -> None:
    writer.write(metadata)
    with writer.create_executable(metadata.executable) as blob:
        blob.write(executable.encode())


def add_data(writer: Writer, name: str, data: Array, executable: str = "") -> None:
    info = TensorInfo(data.shape, DataType.F32)
    with writer.create_tensor_data(TensorDataInfo(name, info, executable)) as blob:
        blob.write(data.tobytes())


# -- the files


def build_simple(folder: Path) -> Path:
    """Three rows of four numbers at a time; any multiple of three rows in a request."""
    model = onnx_model(
        [
            helper.make_node("Mul", ["tensor_A", "weights"], ["product"]),
            helper.make_node("Add", ["product", "tensor_B"], ["output"]),
        ],
        {"tensor_A": SHAPE, "tensor_B": SHAPE},
        "output",
        {"weights": weights()},
    )
    from popgate import CompileOptions, compile_model

    path = folder / "simple.popef"
    options = CompileOptions(batch=BATCH, weights_from=0, name="simple")
    compile_model(model, path, options)
    return path


def build_fused(folder: Path) -> Path:
    """Case 0, `sum`, reads and writes other anchors than case 1, `scale`."""
    add = onnx_model(
        [helper.make_node("Add", ["a", "b"], ["output"])],
        {"a": SHAPE, "b": SHAPE},
        "output",
    )
    shape = (2, WIDTH)
    scale = onnx_model(
        [helper.make_node("Mul", ["input", "weights"], ["output"])],
        {"input": shape},
        "output",
        {"weights": weights()},
        shape,
    )
    from popgate import CompileOptions
    from popgate_onnx.compiler import compile_fused

    path = folder / "fused.popef"
    compile_fused(
        [("sum", add), ("scale", scale)],
        path,
        selector="index",
        options=CompileOptions(weights_from=0),
    )
    return path


def build_iterations(folder: Path) -> Path:
    """One run of the main program takes four batches of three rows, one by one."""
    streams = [Stream("input", IN), Stream("output", OUT)]
    graph = graph_of(
        [
            helper.make_node("Mul", ["input", "two"], ["twice"]),
            helper.make_node("Add", ["twice", "one"], ["output"]),
        ],
        {"input": SHAPE},
        "output",
        {"two": np.full(1, 2, np.float32), "one": np.ones(1, np.float32)},
    )
    once = executable_of(graph, streams)
    repeated = programs.Repeat(ITERATIONS, once.programs[MAIN])
    executable = replace(once, programs={**once.programs, MAIN: repeated})
    path = folder / "iterations.popef"
    with Writer(path) as writer:
        add_executable(
            writer, metadata_of("iterations", streams, BATCH, ITERATIONS), executable
        )
    return path


def build_accumulator(folder: Path) -> Path:
    """As weights in PopART's files, `total` has two anchors: in (load), out (save)."""
    streams = [
        Stream("increment", IN),
        Stream("sum", OUT),
        Stream("total", IN, LOAD),
        Stream("total", OUT, SAVE),
    ]
    graph = graph_of(
        [helper.make_node("Add", ["increment", "total"], ["sum"])],
        {"increment": SHAPE, "total": SHAPE},
        "sum",
    )
    keep = programs.Copy("sum", "total")
    executable = executable_of(graph, streams, "sum", after=[keep])
    path = folder / "accumulator.popef"
    with Writer(path) as writer:
        add_executable(
            writer, metadata_of("accumulator", streams, save=True), executable
        )
        add_data(writer, "total", np.zeros(SHAPE, np.float32))
    return path


def build_split(folder: Path) -> tuple[Path, Path]:
    """As PopART's `executable.popef` and `variables.popef`."""
    streams = [
        Stream("tensor_A", IN),
        Stream("output", OUT),
        Stream("weights", IN, LOAD, (WIDTH,)),
        Stream("bias", IN, LOAD, (WIDTH,)),
    ]
    graph = graph_of(
        [
            helper.make_node("Mul", ["tensor_A", "weights"], ["product"]),
            helper.make_node("Add", ["product", "bias"], ["output"]),
        ],
        {stream.name: stream.shape for stream in streams if stream.type is IN},
        "output",
    )
    executable = executable_of(graph, streams)
    paths = folder / "split_1.popef", folder / "split_2.popef"
    with Writer(paths[0]) as writer:
        add_executable(writer, metadata_of("split", streams, BATCH), executable)
        add_data(writer, "weights", weights())
    with Writer(paths[1]) as writer:
        add_data(writer, "bias", np.arange(WIDTH, dtype=np.float32))
    return paths


def build_two_models(folder: Path) -> Path:
    """Both have an input, an output and a `factor`; the data say whose they are."""
    streams = [
        Stream("input", IN),
        Stream("output", OUT),
        Stream("factor", IN, LOAD, (1,)),
    ]
    graph = graph_of(
        [helper.make_node("Mul", ["input", "factor"], ["output"])],
        {"input": SHAPE, "factor": (1,)},
        "output",
    )
    executable = executable_of(graph, streams)
    path = folder / "two_models.popef"
    with Writer(path) as writer:
        for name, factor in (("double", 2), ("triple", 3)):
            add_executable(writer, metadata_of(name, streams, BATCH), executable)
            add_data(writer, "factor", np.full(1, factor, np.float32), name)
    return path


def build_feed(folder: Path) -> Path:
    """The first tensor of the feed is full of 0, the second full of 100, and so on."""
    streams = [Stream("tensor_A", IN), Stream("offset", IN), Stream("output", OUT)]
    graph = graph_of(
        [helper.make_node("Add", ["tensor_A", "offset"], ["output"])],
        {"tensor_A": SHAPE, "offset": SHAPE},
        "output",
    )
    executable = executable_of(graph, streams)
    path = folder / "feed.popef"
    feed = FeedDataInfo("offset", TensorInfo(SHAPE, DataType.F32), FEED_LENGTH)
    with Writer(path) as writer:
        add_executable(writer, metadata_of("feed", streams), executable)
        with writer.create_feed_data(feed) as blob:
            for number in range(FEED_LENGTH):
                blob.write(np.full(SHAPE, 100 * number, np.float32).tobytes())
    return path


def build_all(folder: Path) -> list[Path]:
    """Write every file into `folder`."""
    return [
        build_simple(folder),
        build_fused(folder),
        build_iterations(folder),
        build_accumulator(folder),
        *build_split(folder),
        build_two_models(folder),
        build_feed(folder),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="folder for the files")
    folder = parser.parse_args().out
    folder.mkdir(parents=True, exist_ok=True)
    for path in build_all(folder):
        print(path)


if __name__ == "__main__":
    main()
