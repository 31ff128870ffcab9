"""The inputs and outputs of a graph, and the requested changes to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from engine.errors import InvalidModel, counted
from engine.programs.onnx_session import OnnxSession
from engine.programs.session import Port
from popef_io import DataType, TensorInfo
from popgate_onnx.compiler.graphs import label
from popgate_onnx.compiler.options import CompileOptions, Dims
from popgate_onnx.compiler.weights import data_type_of

Dimension: TypeAlias = int | str | None
"""A number, the name of a free dimension, or None for a free one without a name."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output of a graph."""

    name: str
    data_type: DataType
    shape: tuple[Dimension, ...] | None
    """None if not even the rank is known."""

    @property
    def info(self) -> TensorInfo:
        """Return the tensor as a container describes it."""
        if self.shape is None:
            return TensorInfo(None, self.data_type)
        dims = (d if isinstance(d, int) else -1 for d in self.shape)
        return TensorInfo(tuple(dims), self.data_type)


@dataclass(frozen=True, slots=True)
class Interface:
    """Inputs and outputs of a graph, in order, each name once."""

    inputs: tuple[GraphTensor, ...]
    outputs: tuple[GraphTensor, ...]

    @classmethod
    def of(cls, model: Any, session: OnnxSession) -> Interface:
        """Return the interface of a loaded model. Its session knows facts that the file
        omits.

        Raises InvalidModel for inputs and outputs that no request could carry.
        """
        graph = model.graph
        values = {v.name: v for v in (*graph.output, *graph.input)}
        missing = [
            name
            for name, port in session.outputs.items()
            if not port.shape and not _shape_is_given(values.get(name))
        ]
        scalars = _inferred_scalars(model, missing)
        return cls(
            tuple(
                _tensor(p, values, "input", scalars) for p in session.inputs.values()
            ),
            tuple(
                _tensor(p, values, "output", scalars) for p in session.outputs.values()
            ),
        )


def check_types(model: Any) -> None:
    """Refuse inputs and outputs that are not tensors of a supported type.

    This happens before ONNX Runtime sees them, because its error would not name them.
    """
    for kind, values in (("input", model.graph.input), ("output", model.graph.output)):
        for value in values:
            which = value.type.WhichOneof("value")
            if which is None:
                continue  # missing in the file: ONNX Runtime will infer it
            if which != "tensor_type":
                what = which.removesuffix("_type").replace("_", " ")
                makers = (n for n in model.graph.node if value.name in n.output)
                of = "".join(f" of {label(node)}" for node in makers)
                raise InvalidModel(
                    f"{kind} {value.name!r}{of} is of type {what}; only tensors can be "
                    "served"
                )
            number = value.type.tensor_type.elem_type
            if number and data_type_of(number) is None:
                raise InvalidModel(
                    f"{kind} {value.name!r} has elements of type "
                    f"{_type_name(number)}, which requests cannot carry"
                )


def change(model: Any, options: CompileOptions) -> None:
    """Apply shape overrides and the fixed batch size to `model`."""
    graph = model.graph
    values = {v.name: v for v in (*graph.output, *graph.input)}
    for name, dims in options.shapes.items():
        if name not in values:
            raise InvalidModel(
                f"cannot set the shape of {name!r}: the model has no such input or "
                f"output; it has {_names(values)}"
            )
        _set_shape(values[name], dims)
    fixed = isinstance(options.batch, int)
    if isinstance(options.batch, int):
        _fix_batch(graph, options.batch)
    if options.shapes or fixed:
        # The shapes of intermediate values in the file may now be wrong.
        del graph.value_info[:]


def free_rows(model: Any, outputs: Iterable[str]) -> None:
    """Free the number of rows of some outputs."""
    for value in model.graph.output:
        if value.name in outputs:
            value.type.tensor_type.shape.dim[0].Clear()


def renamed(
    tensors: Iterable[GraphTensor], names: Mapping[str, str], kind: str
) -> dict[str, str]:
    """Return the public name of each tensor by its name in the graph."""
    result = {t.name: names.get(t.name, t.name) for t in tensors}
    for old in names:
        if old not in result:
            raise InvalidModel(
                f"cannot rename {kind} {old!r}: the model has no such {kind}; it has "
                f"{_names(result)}"
            )
    public = list(result.values())
    for name in public:
        if public.count(name) > 1:
            raise InvalidModel(f"two {kind}s would have the name {name!r}")
        if not name:
            raise InvalidModel(f"an {kind} has no name")
    return result


def _tensor(
    port: Port, values: Mapping[str, Any], kind: str, scalars: frozenset[str]
) -> GraphTensor:
    if port.data_type is None:
        raise InvalidModel(
            f"{kind} {port.name!r} is of type {port.type_name}, which requests cannot "
            "carry"
        )
    shape: tuple[Dimension, ...] | None = tuple(
        None if isinstance(d, int) and d < 0 else (d or None) if d != 0 else 0
        for d in port.shape
    )
    known = _shape_is_given(values.get(port.name)) or port.name in scalars
    if not shape and not known:
        shape = None
    return GraphTensor(port.name, port.data_type, shape)


def _shape_is_given(value: Any) -> bool:
    return value is not None and bool(value.type.tensor_type.HasField("shape"))


def _inferred_scalars(model: Any, names: list[str]) -> frozenset[str]:
    """Return the members of `names` that are scalars. ONNX Runtime does not tell them
    apart from tensors of unknown rank.
    """
    if not names:
        return frozenset()
    import onnx

    try:
        inferred = onnx.shape_inference.infer_shapes(model)
    except Exception:  # onnx raises many kinds of errors
        return frozenset()
    return frozenset(
        value.name
        for value in inferred.graph.output
        if value.name in names
        and _shape_is_given(value)
        and not value.type.tensor_type.shape.dim
    )


def _set_shape(value: Any, dims: Dims) -> None:
    tensor = value.type.tensor_type
    if tensor.HasField("shape") and len(tensor.shape.dim) != len(dims):
        raise InvalidModel(
            f"cannot set the shape of {value.name!r} to {list(dims)}: expected "
            f"{counted(len(tensor.shape.dim), 'dimension')}"
        )
    tensor.shape.ClearField("dim")
    tensor.shape.SetInParent()
    for size in dims:
        dim = tensor.shape.dim.add()
        if isinstance(size, str):
            dim.dim_param = size
        elif size >= 0:
            dim.dim_value = size


def _fix_batch(graph: Any, size: int) -> None:
    free: set[str] = set()
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        if not dims:
            raise InvalidModel(
                f"cannot set a batch of {size}: input {value.name!r} has no first "
                "dimension"
            )
        first = dims[0]
        if first.HasField("dim_value") and first.dim_value not in (size, -1):
            raise InvalidModel(
                f"cannot set a batch of {size}: the first dimension of input "
                f"{value.name!r} is fixed at {first.dim_value}"
            )
        if first.dim_param:
            free.add(first.dim_param)
        first.dim_value = size
    if not graph.input:
        raise InvalidModel(f"cannot set a batch of {size}: the model has no inputs")
    for value in (*graph.input, *graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in free:
                dim.dim_value = size


def _type_name(number: int) -> str:
    import onnx

    try:
        return str(onnx.TensorProto.DataType.Name(number))
    except ValueError:
        return f"number {number}"


def _names(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names)) or "none"
