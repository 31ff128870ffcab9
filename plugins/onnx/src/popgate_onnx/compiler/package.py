"""Puts graphs, weights and programs together and writes them as a container."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata as distributions
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from engine.model.anchors import OPTION_MAX_BATCH
from engine.programs.executable import (
    Executable,
    Execute,
    Graph,
    Node,
    Steps,
    StreamIn,
    StreamOut,
)
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
from popgate_onnx.compiler.interface import Interface
from popgate_onnx.compiler.options import BatchDecision
from popgate_onnx.compiler.weights import Weight

LOAD, MAIN = 0, 1
_CHUNK = 16 << 20


@dataclass(frozen=True, slots=True)
class PackagePart:
    """One graph of a container: its weights, and the public names of its tensors.

    `prefix` is put before the names of weights, to keep those of several models apart.
    """

    graph: Graph
    weights: tuple[Weight, ...]
    interface: Interface
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    prefix: str = ""

    @property
    def load_steps(self) -> tuple[Node, ...]:
        """Bring the weights to the device."""
        names = (self.prefix + w.name for w in self.weights)
        return tuple(StreamIn(input_handle(n), f"weight {n}") for n in names)

    @property
    def main(self) -> Steps:
        """Return the steps that read the input streams, execute the graph, and write
        the output streams.
        """
        return Steps(
            (
                *(
                    StreamIn(input_handle(n), f"input {n}")
                    for n in self.inputs.values()
                ),
                Execute(self.graph.name, self._connected(), self._results()),
                *(
                    StreamOut(f"output {n}", output_handle(n))
                    for n in self.outputs.values()
                ),
            )
        )

    @property
    def variables(self) -> dict[str, TensorInfo]:
        """Return the device memory of this part."""
        result = {f"weight {self.prefix}{w.name}": w.info for w in self.weights}
        for tensor in self.interface.inputs:
            result[f"input {self.inputs[tensor.name]}"] = tensor.info
        for tensor in self.interface.outputs:
            result[f"output {self.outputs[tensor.name]}"] = tensor.info
        return result

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        """Return inputs, outputs, weights."""
        found = []
        for tensor in self.interface.inputs:
            name = self.inputs[tensor.name]
            handle = input_handle(name)
            found.append(Anchor(name, handle, tensor.info, TensorType.INPUT, (MAIN,)))
        for tensor in self.interface.outputs:
            name = self.outputs[tensor.name]
            handle = output_handle(name)
            found.append(Anchor(name, handle, tensor.info, TensorType.OUTPUT, (MAIN,)))
        for weight in self.weights:
            name = self.prefix + weight.name
            handle = input_handle(name)
            found.append(Anchor(name, handle, weight.info, TensorType.INPUT, (LOAD,)))
        return tuple(found)

    def _connected(self) -> dict[str, str]:
        inputs = {k: f"input {n}" for k, n in self.inputs.items()}
        weights = {w.name: f"weight {self.prefix}{w.name}" for w in self.weights}
        return inputs | weights

    def _results(self) -> dict[str, str]:
        return {k: f"output {n}" for k, n in self.outputs.items()}


def input_handle(name: str) -> str:
    """Return the stream that brings `name` to the device."""
    return f"h2d_{name}"


def output_handle(name: str) -> str:
    """Return the stream that brings `name` back."""
    return f"d2h_{name}"


@dataclass(frozen=True, slots=True)
class Package:
    """Content of the container."""

    executable: Executable
    metadata: Metadata
    weights: Mapping[str, Weight]
    """The weights, by the name of their anchor."""

    def write(self, target: Path, progress: Callable[[float], None]) -> None:
        """Write the container beside `target`, then replace `target` with it.

        `progress` is called with the part that is written, from 0 to 1.
        """
        total = sum(weight.nbytes for weight in self.weights.values()) or 1
        written = 0
        progress(0.0)
        with Writer(target) as writer:
            writer.write(self.metadata)
            with writer.create_executable(self.metadata.executable) as blob:
                blob.write(self.executable.encode())
            for name, weight in self.weights.items():
                info = TensorDataInfo(name, weight.info)
                with writer.create_tensor_data(info) as blob:
                    for chunk in _chunks(weight.data):
                        written += blob.write(chunk)
                        progress(written / total)


class WeightStreams:
    """Streams that supply the weights of a package, for loading it in this process."""

    def __init__(self, weights: Mapping[str, Weight]) -> None:
        self._data = {input_handle(name): w.data for name, w in weights.items()}

    def read(self, handle: str) -> npt.NDArray[Any]:
        return self._data[handle]

    def output_memory(self, handle: str, shape: object, dtype: object) -> None:
        return None

    def write(self, handle: str, value: object) -> None:
        """Do nothing, because load programs write nothing."""


def make_package(
    name: str,
    parts: Sequence[PackagePart],
    main: Node,
    decision: BatchDecision,
    options: Iterable[Option] = (),
    selector: Anchor | None = None,
) -> Package:
    """Return a package of `parts`, run by the program `main`."""
    variables: dict[str, TensorInfo] = {}
    anchors: list[Anchor] = []
    weights: dict[str, Weight] = {}
    if selector is not None:
        variables[f"input {selector.name}"] = selector.tensor_info
        anchors.append(selector)
    for part in parts:
        variables |= part.variables
        anchors.extend(part.anchors)
        weights |= {part.prefix + w.name: w for w in part.weights}
    load = Steps(tuple(step for part in parts for step in part.load_steps))
    executable = Executable(
        {part.graph.name: part.graph for part in parts},
        variables,
        {LOAD: load, MAIN: main},
    )
    metadata = Metadata(
        executable=name,
        anchors=tuple(anchors),
        program_flow=ProgramFlow(load=(LOAD,), main=(MAIN,)),
        programs_map={LOAD: "load", MAIN: "main"},
        engine_options=(
            Option("popgate.batching", "rows" if decision.rows else "none"),
            Option("popgate.batch_size", str(decision.size)),
            *([Option(OPTION_MAX_BATCH, str(decision.most))] if decision.most else []),
            Option("popgate.batching_reason", decision.reason),
            Option("popgate.producer", producer()),
            *options,
        ),
    )
    return Package(executable, metadata, weights)


@cache
def producer() -> str:
    """Return the versions of PopGate and ONNX Runtime that made the container."""
    try:
        version = distributions.version("popgate")
    except distributions.PackageNotFoundError:  # PopGate runs from a checkout
        version = "(not installed)"
    return f"popgate {version}, onnxruntime {ort.__version__}"


def selector_anchor(name: str) -> Anchor:
    """Return the input that chooses among fused models."""
    info = TensorInfo((1,), DataType.S64)
    return Anchor(name, input_handle(name), info, TensorType.INPUT, (MAIN,))


def _chunks(data: npt.NDArray[Any]) -> Iterable[npt.NDArray[np.uint8]]:
    flat = data.reshape(-1).view(np.uint8)
    for start in range(0, flat.nbytes, _CHUNK):
        yield flat[start : start + _CHUNK]
