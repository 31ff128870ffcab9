"""Changes that a configuration makes to an ONNX model before it is compiled."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy.typing as npt
import orjson

from app.config.reshape import Reshape, Reshapes
from app.plugins import MODEL_FORMATS, plugins

#: The name of the first dimension of all inputs if they share no name.
ROWS = "rows"

_Dims: TypeAlias = tuple[int | str, ...]


@dataclass(frozen=True, slots=True)
class GraphChanges:
    """`repr` is complete and stable: part of a cache key.

    If `counts_rows` is true, the first dimension of every input is declared to be the
    batch, even if the file does not say so. `optional` are inputs that remain inputs
    although the file has values for them (initializers). `format` is the plugin that
    changes the graph (`app.repository.formats`), by the JSON document `recipe`.
    `ragged` are inputs whose rows may have any length, with their padding values. The
    compiler checks that.
    """

    reshapes: Reshapes = field(default_factory=Reshapes)
    counts_rows: bool = False
    optional: tuple[str, ...] = ()
    format: str = ""
    recipe: str = ""
    ragged: tuple[tuple[str, float], ...] = ()

    def to_message(self) -> dict[str, Any]:
        """Return the changes as a value for JSON."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> GraphChanges:
        """Make the object from a message of `to_message`."""
        reshapes = message["reshapes"]
        return cls(
            Reshapes(
                tuple(Reshape.from_message(one) for one in reshapes["inputs"]),
                tuple(Reshape.from_message(one) for one in reshapes["outputs"]),
                str(reshapes["label"]),
            ),
            bool(message["counts_rows"]),
            tuple(message["optional"]),
            message["format"],
            message["recipe"],
            tuple((str(name), float(pad)) for name, pad in message["ragged"]),
        )

    @property
    def are_of_the_graph(self) -> bool:
        """Return whether the model itself must be changed (`apply`)."""
        return bool(self.reshapes or self.optional or self.format)

    def row_shapes(self, model: Any) -> Mapping[str, _Dims]:
        """Return new shapes of inputs, so that their rows have one name; empty if they
        already have.

        `model` is an `onnx.ModelProto`, with or without its data.
        """
        graph = model.graph
        constants = {tensor.name for tensor in graph.initializer}
        inputs = [v for v in graph.input if v.name not in constants]
        shapes = {v.name: v.type.tensor_type.shape.dim for v in inputs}
        if not self.counts_rows or any(not dims for dims in shapes.values()):
            return {}
        firsts = {_dim(dims[0]) for dims in shapes.values()}
        if len(firsts) == 1 and firsts != {-1}:
            return {}
        if any(isinstance(first, int) and first >= 0 for first in firsts):
            return {}
        return {
            name: (ROWS, *map(_dim, dims[1:])) for name, dims in sorted(shapes.items())
        }

    def apply(self, model: Any) -> tuple[dict[str, str], dict[str, str]]:
        """Change an `onnx.ModelProto`, which has its data.

        Inputs and outputs may be renamed in the graph. Returns their outside names by
        their names in the graph. Raises ValueError for a tensor that does not exist.
        """
        if self.format:
            plugins(MODEL_FORMATS)[self.format].convert(
                model, orjson.loads(self.recipe)
            )
        graph = model.graph
        for tensor in [t for t in graph.initializer if t.name in self.optional]:
            graph.initializer.remove(tensor)
        shapes = self.row_shapes(model)
        for value in graph.input:
            if value.name in shapes:
                value.type.tensor_type.shape.dim[0].dim_param = ROWS
        if shapes:
            del graph.value_info[:]  # it may use the old names
        return self.reshapes.apply(model)


def _dim(dim: Any) -> int | str:
    if dim.dim_param:
        return str(dim.dim_param)
    return int(dim.dim_value) if dim.HasField("dim_value") else -1


def input_defaults(
    model: Any, names: Collection[str]
) -> dict[str, npt.NDArray[Any] | None]:
    """Return the defaults of the inputs `names` that a request may omit.

    Each default is the model's own value, or None if nothing in the model uses the
    input. Other inputs are left out. `model` has its data.
    """
    from onnx import numpy_helper

    graph = model.graph
    given = {tensor.name: tensor for tensor in graph.initializer}
    used = set(_names_used(graph))
    found: dict[str, npt.NDArray[Any] | None] = {}
    for value in graph.input:
        if value.name not in names:
            continue
        if value.name in given:
            found[value.name] = numpy_helper.to_array(given[value.name])
        elif value.name not in used:
            found[value.name] = None
    return found


def _names_used(graph: Any) -> Iterator[str]:
    """Yield the values that are read in a graph, or in one within it."""
    for value in graph.output:
        yield value.name
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            inner = [attribute.g] if attribute.HasField("g") else []
            for graph_within in (*inner, *attribute.graphs):
                yield from _names_used(graph_within)
