"""Nodes that change the shape of inputs and outputs, put into an `onnx.ModelProto`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from app.config.reshape import Reshape, Reshapes

_GIVEN = "__given"
_WANTED = "__wanted"
_SHAPE = "__shape"


def apply_reshapes(
    reshapes: Reshapes, model: Any
) -> tuple[dict[str, str], dict[str, str]]:
    """Put the nodes into an `onnx.ModelProto`.

    The inputs and outputs are renamed in the graph. Returns their outside names by
    their names in the graph. Raises ValueError for a tensor that does not exist.
    """
    try:
        return _applied(reshapes, model.graph)
    except ValueError as e:
        raise ValueError(f"{reshapes.label}: {e}") from None


def _applied(reshapes: Reshapes, graph: Any) -> tuple[dict[str, str], dict[str, str]]:
    for reshape in reshapes.inputs:
        info = _find(graph.input, reshape.name, "input")
        _add_node(graph, f"{info.name}{_GIVEN}", info.name, reshape.shape, reshape)
        _set_shape(info, reshape)
        info.name += _GIVEN
    for reshape in reshapes.outputs:
        info = _find(graph.output, reshape.name, "output")
        wanted = f"{info.name}{_WANTED}"
        _add_node(graph, info.name, wanted, reshape.dims, reshape, last=True)
        _set_shape(info, reshape)
        info.name = wanted
    return (
        {f"{r.name}{_GIVEN}": r.name for r in reshapes.inputs},
        {f"{r.name}{_WANTED}": r.name for r in reshapes.outputs},
    )


def _find(infos: Iterable[Any], name: str, kind: str) -> Any:
    for info in infos:
        if info.name == name:
            return info
    raise ValueError(f"the model has no {kind} '{name}'")


def _add_node(
    graph: Any,
    source: str,
    target: str,
    dims: tuple[int, ...],
    reshape: Reshape,
    *,
    last: bool = False,
) -> None:
    from onnx import TensorProto, helper

    shape, name = [0, *dims] if reshape.batched else list(dims), f"{source}{_SHAPE}"
    graph.initializer.append(
        helper.make_tensor(name, TensorProto.INT64, [len(shape)], shape)
    )
    node = helper.make_node("Reshape", [source, name], [target], name=f"{name}_node")
    graph.node.insert(len(graph.node) if last else 0, node)


def _set_shape(info: Any, reshape: Reshape) -> None:
    """Declare the shape that clients see; the batch dimension is unchanged."""
    shape = info.type.tensor_type.shape
    batch = list(shape.dim[:1]) if reshape.batched else []
    if reshape.batched and not batch:
        raise ValueError(f"'{reshape.name}' has no batch dimension in the model")
    kept = [type(dim)() for dim in batch]
    for new, old in zip(kept, batch, strict=True):
        new.CopyFrom(old)
    del shape.dim[:]
    for dim in kept:
        shape.dim.add().CopyFrom(dim)
    for index, size in enumerate(reshape.dims):
        dim = shape.dim.add()
        if size < 0:
            dim.dim_param = f"{reshape.name}_{index}"
        else:
            dim.dim_value = size
