"""ONNX graphs that move values between replicas, tables and host arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from engine.programs import Graph
from popef_io import DataType, TensorInfo
from popir.grouping import Collective, shard_size
from popir.lowering.assembly import IR_VERSION, ONNX_TYPES, OPSET, data_type_of

_NUMPY = {
    data_type_of(np.dtype(name)): np.dtype(name)
    for name in (
        *("bool", "float16", "float32", "float64"),
        *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
    )
}
_FOLDS = {
    "add": "Add",
    "mean": "Add",
    "mul": "Add",
    "square_add": "Add",
    "min": "Min",
    "max": "Max",
    "and": "And",
    "or": "Or",
}


@dataclass(frozen=True, slots=True)
class ReplicaShare:
    """The part of a host array that belongs to a replica."""

    group: int | None
    """The index on the first axis; None: there is no such axis."""
    count: int = 1
    """The number of shards; 1: the whole array."""
    rank: int = 0


class Moves:
    """Makes graphs, each once; `graphs` has them."""

    def __init__(self, replicas: int) -> None:
        self._replicas = range(replicas)
        self.graphs: dict[str, Graph] = {}
        self._known: dict[object, str] = {}

    def stacked(self, info: TensorInfo) -> str:
        """Make one array of those of the replicas: x0, x1, ... to y."""
        return self._of_all(("stacked", info), self._stack, info, self._replicas)

    def _stack(self, g: _Drawing, info: TensorInfo, order: Sequence[int]) -> None:
        shape = info.shape or ()
        parts = [g.reshape(g.input(f"x{r}", info), (1, *shape)) for r in order]
        made = TensorInfo((len(order), *shape), info.data_type)
        g.output("y", g.node("Concat", *parts, axis=0), made)

    def unstacked(self, info: TensorInfo) -> str:
        """Make an array for each replica of one: x to y0, y1, ..."""

        def draw(g: _Drawing) -> None:
            shape = info.shape or ()
            whole = TensorInfo((len(self._replicas), *shape), info.data_type)
            x = g.input("x", whole)
            for r in self._replicas:
                g.output(f"y{r}", g.node("Gather", x, g.number(r), axis=0), info)

        return self._graph(("unstacked", info), draw)

    def zeros(self, info: TensorInfo) -> str:
        """Make an array of zeros: y."""

        def draw(g: _Drawing) -> None:
            g.output("y", g.zeros(info.shape or (), info.data_type), info)

        return self._graph(("zeros", info), draw)

    def loaded(
        self, table: TensorInfo, offset: int | None, at: TensorInfo | None
    ) -> str:
        """Make a row of a table: table, at to y."""

        def draw(g: _Drawing) -> None:
            rows = g.input("table", table)
            place = g.place(offset, at)
            row = TensorInfo((table.shape or ())[1:], table.data_type)
            found = g.node("Gather", rows, place, axis=0)
            g.output("y", g.reshape(found, row.shape or ()), row)

        return self._graph(("loaded", table, offset, at), draw)

    def stored(
        self, table: TensorInfo, offset: int | None, at: TensorInfo | None
    ) -> str:
        """Make a table with another row: table, row, at to y."""

        def draw(g: _Drawing) -> None:
            shape = table.shape or ()
            rows = g.input("table", table)
            row = g.input("row", TensorInfo(shape[1:], table.data_type))
            place = g.reshape(g.place(offset, at), (1, 1))
            update = g.reshape(row, (1, *shape[1:]))
            g.output("y", g.node("ScatterND", rows, place, update), table)

        return self._graph(("stored", table, offset, at), draw)

    def share(self, whole: TensorInfo, share: ReplicaShare, info: TensorInfo) -> str:
        """Make a replica's part of a host array: x to y."""

        def draw(g: _Drawing) -> None:
            x = g.input("x", whole)
            shape = whole.shape or ()
            if share.group is not None:
                x, shape = g.node("Gather", x, g.number(share.group), axis=0), shape[1:]
            if share.count > 1:
                x = g.shard(x, shape, whole.data_type, share.count, share.rank)
            g.output("y", g.node("Identity", x), info)

        return self._graph(("share", whole, share), draw)

    def joined(self, whole: TensorInfo, order: Sequence[int], shards: int) -> str:
        """Make a host array of the values of `order`, one group after another: x0, x1,
        ... to y.
        """

        def draw(g: _Drawing) -> None:
            shape = whole.shape or ()
            groups = len(order) // shards
            one = shape[1:] if groups > 1 else shape
            size = (shard_size(prod(one), shards),) if shards > 1 else one
            info = TensorInfo(size, whole.data_type)
            made = []
            for group in range(groups):
                names = [f"x{n}" for n in range(group * shards, (group + 1) * shards)]
                parts = [g.input(name, info) for name in names]
                flat = g.flat(parts, prod(one)) if shards > 1 else parts[0]
                made.append(g.reshape(flat, (1, *one) if groups > 1 else one))
            total = g.node("Concat", *made, axis=0) if groups > 1 else made[0]
            g.output("y", g.node("Identity", total), whole)

        return self._graph(("joined", whole, len(order), shards), draw)

    def exchanged(self, exchange: Collective, info: TensorInfo) -> str:
        """Make the replicas' results of a collective: x0, ... to y0, ..."""

        def draw(g: _Drawing) -> None:
            values = {r: g.input(f"x{r}", info) for r in self._replicas}
            result = TensorInfo(exchange.shape, info.data_type)
            for members in exchange.groups.members:
                own = [values[r] for r in members]
                made = g.exchanged(exchange, own, info)
                for replica, value in zip(members, made, strict=True):
                    g.output(f"y{replica}", g.node("Identity", value), result)

        key = (exchange.what, exchange.op, exchange.axis, exchange.shape)
        return self._graph(("exchanged", key, exchange.groups, info), draw)

    def _of_all(
        self, key: object, draw: Any, info: TensorInfo, order: Sequence[int]
    ) -> str:
        return self._graph(key, lambda g: draw(g, info, order))

    def _graph(self, key: object, draw: Any) -> str:
        if key not in self._known:
            name = f"m{len(self._known)}"
            drawing = _Drawing(name)
            draw(drawing)
            self._known[key] = name
            self.graphs[name] = drawing.graph()
        return self._known[key]


class _Drawing:
    """A graph under construction. Values are names."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._nodes: list[Any] = []
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._constants: list[Any] = []

    def input(self, name: str, info: TensorInfo) -> str:
        self._inputs.append(_port(name, info))
        return name

    def output(self, name: str, value: str, info: TensorInfo) -> None:
        """Add an output, which is `value`."""
        self._add("Identity", [value], [name])
        self._outputs.append(_port(name, info))

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add a node of one result."""
        name = f"t{len(self._nodes)}"
        self._add(kind, list(inputs), [name], **attributes)
        return name

    def _add(
        self, kind: str, inputs: list[str], outputs: list[str], **attributes: Any
    ) -> None:
        from onnx import helper

        self._nodes.append(helper.make_node(kind, inputs, outputs, **attributes))

    def constant(self, value: Any) -> str:
        from onnx import numpy_helper

        name = f"c{len(self._constants)}"
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def number(self, value: int) -> str:
        """Add a constant index."""
        return self.constant(np.array(value, np.int64))

    def place(self, offset: int | None, at: TensorInfo | None) -> str:
        """Return the offset of a row; values below 0 are out of range, like those above
        all rows.
        """
        if offset is not None:
            return self.number(offset)
        assert at is not None
        given = self.reshape(self.input("at", at), ())
        unsigned = self.node("Cast", given, to=ONNX_TYPES["uint32"])
        return self.node("Cast", unsigned, to=ONNX_TYPES["int64"])

    def reshape(self, value: str, shape: tuple[int, ...]) -> str:
        return self.node("Reshape", value, self.constant(np.array(shape, np.int64)))

    def zeros(self, shape: tuple[int, ...], data_type: DataType) -> str:
        """Add zeros that take no bytes in the file."""
        zero = self.constant(np.zeros((), _NUMPY[data_type]))
        return self.node("Expand", zero, self.constant(np.array(shape, np.int64)))

    def flat(self, parts: Sequence[str], size: int) -> str:
        """Return the first `size` elements of shards."""
        joined = self.node("Concat", *parts, axis=0) if len(parts) > 1 else parts[0]
        return self._cut(joined, 0, size)

    def _cut(self, value: str, start: int, stop: int) -> str:
        ends = [self.constant(np.array([n], np.int64)) for n in (start, stop)]
        return self.node("Slice", value, *ends)

    def shard(
        self,
        value: str,
        shape: tuple[int, ...],
        data_type: DataType,
        count: int,
        rank: int,
    ) -> str:
        """Return the shard `rank` of `count`, padded with zeros."""
        size, total = shard_size(prod(shape), count), prod(shape)
        flat = self.reshape(value, (total,))
        if size * count > total:
            more = self.zeros((size * count - total,), data_type)
            flat = self.node("Concat", flat, more, axis=0)
        return self._cut(flat, rank * size, (rank + 1) * size)

    def exchanged(
        self, exchange: Collective, values: Sequence[str], info: TensorInfo
    ) -> list[str]:
        """Return each member's result of a collective, like popir.collectives."""
        shape, count = info.shape or (), len(values)
        match exchange.what:
            case "reduce":
                return [self._reduced(exchange.op, values, info)] * count
            case "scatter":
                total = self._reduced(exchange.op, values, info)
                return [
                    self.shard(total, shape, info.data_type, count, rank)
                    for rank in range(count)
                ]
            case "shard":
                return [
                    self.shard(value, shape, info.data_type, count, rank)
                    for rank, value in enumerate(values)
                ]
            case "gather":
                parts = [self.reshape(v, (prod(shape),)) for v in values]
                whole = self.flat(parts, prod(exchange.shape))
                return [self.reshape(whole, exchange.shape)] * count
            case "concat":
                whole = self.node("Concat", *values, axis=exchange.axis)
                return [self.reshape(whole, exchange.shape)] * count
            case "slice":
                length = shape[exchange.axis] // count
                axes = self.constant(np.array([exchange.axis], np.int64))
                blocks = []
                for rank, value in enumerate(values):
                    ends = [
                        self.constant(np.array([n * length], np.int64))
                        for n in (rank, rank + 1)
                    ]
                    block = self.node("Slice", value, *ends, axes)
                    blocks.append(self.reshape(block, exchange.shape))
                return blocks

    def _reduced(self, op: str, values: Sequence[str], info: TensorInfo) -> str:
        dtype = _NUMPY[info.data_type]
        is_half = dtype == np.float16 and _FOLDS[op] == "Add"
        given = list(values)
        if is_half:
            given = [self.node("Cast", v, to=ONNX_TYPES["float32"]) for v in given]
        if op == "square_add":
            given = [self.node("Mul", v, v) for v in given]
        total = given[0]
        for value in given[1:]:
            total = self.node(_FOLDS[op], total, value)
        if op in ("mean", "mul"):
            wide = np.dtype(np.float32) if is_half else dtype
            total = self.node("Div", total, self.constant(np.array(len(values), wide)))
        return self.node("Cast", total, to=ONNX_TYPES[dtype.name]) if is_half else total

    def graph(self) -> Graph:
        from onnx import helper

        made = helper.make_graph(
            self._nodes, self._name, self._inputs, self._outputs, self._constants
        )
        model = helper.make_model(
            made,
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="popir",
        )
        return Graph(self._name, model.SerializeToString(), opsets={"": OPSET})


def _port(name: str, info: TensorInfo) -> Any:
    from onnx import helper

    kind = ONNX_TYPES[_NUMPY[info.data_type].name]
    return helper.make_tensor_value_info(name, kind, info.shape or ())
