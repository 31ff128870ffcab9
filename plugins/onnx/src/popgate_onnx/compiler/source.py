"""Read an ONNX model without its external data, and report what is wrong with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from engine.errors import InvalidModel
from popgate_onnx.compiler.graphs import all_graphs

OnnxSource: TypeAlias = str | Path | bytes | Any
"""An ONNX file, the bytes of one, or an `onnx.ModelProto`."""

IR_WITH_FREE_INITIALIZERS = 4
"""From this version on, initializers need not be inputs of the graph too."""


@dataclass(frozen=True, slots=True)
class OnnxModel:
    """A model that was read. The compiler may change it."""

    proto: Any
    folder: Path | None
    """Folder of its external data; None if the model did not come from a file."""
    name: str
    """The model's default name."""


def read_model(source: OnnxSource) -> OnnxModel:
    """Read a model. Its external data stays in its files.

    Raises InvalidModel if it is not a usable ONNX model, and OSError if the file
    cannot be read.
    """
    import onnx

    if isinstance(source, onnx.ModelProto):
        proto = onnx.ModelProto()
        proto.CopyFrom(source)
        model = OnnxModel(proto, None, "model")
    elif isinstance(source, bytes):
        model = OnnxModel(_parse(source), None, "model")
    else:
        path = Path(source)
        if path.exists() and not path.is_file():  # reading a pipe would block
            raise InvalidModel("not an ONNX model: expected a regular file")
        # Names in a container are Unicode, but names of files may be any bytes.
        name = os.fsencode(path.stem).decode(errors="replace")
        model = OnnxModel(_parse(path.read_bytes()), path.parent, name)
    _check(model.proto)
    _initializers_are_no_inputs(model.proto)
    _name_nodes(model.proto.graph)
    return model


def _parse(data: bytes) -> Any:
    import onnx

    if not data:
        raise InvalidModel("the file is empty")
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except Exception:  # the parser's own error type depends on its implementation
        raise InvalidModel(
            f"not an ONNX model, or a truncated one ({len(data)} bytes)"
        ) from None
    return proto


def _check(proto: Any) -> None:
    what = "not an ONNX model, or a truncated one"
    if not proto.HasField("graph") or not proto.ir_version:
        raise InvalidModel(f"{what}: it has no graph")
    if not proto.opset_import:
        raise InvalidModel(f"{what}: it names no operator set")
    if not proto.graph.output:
        raise InvalidModel(f"{what}: its graph has no outputs")
    for graph in all_graphs(proto.graph):
        for node in graph.node:
            if not node.op_type:
                raise InvalidModel(f"{what}: a node has no operator type")


def _initializers_are_no_inputs(proto: Any) -> None:
    """Remove weights from the inputs, where an old model lists them."""
    graph = proto.graph
    names = {tensor.name for tensor in graph.initializer}
    names |= {sparse.values.name for sparse in graph.sparse_initializer}
    inputs = [value for value in graph.input if value.name not in names]
    if len(inputs) == len(graph.input):
        return
    kept = [type(value).FromString(value.SerializeToString()) for value in inputs]
    del graph.input[:]
    graph.input.extend(kept)
    proto.ir_version = max(proto.ir_version, IR_WITH_FREE_INITIALIZERS)


def _name_nodes(graph: Any) -> None:
    """Give every node a name, so that messages can name the node that failed."""
    for inner in all_graphs(graph):
        taken = {node.name for node in inner.node if node.name}
        for number, node in enumerate(inner.node):
            if node.name:
                continue
            name = f"{node.op_type}_{number}"
            while name in taken:
                name += "_"
            taken.add(name)
            node.name = name
