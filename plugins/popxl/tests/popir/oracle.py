"""A plain interpreter of graphs, which lowering is compared with.

All storage is one heap; a tensor is the addresses of its elements. A view is the same
addresses in another arrangement, a write is a write to the heap. Nothing of it is
shared with the lowering.

Several replicas are several interpreters. Each is a generator that stops at a
collective; when all have come to one, each gets what the group makes of the values.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from popir import Ir, IrGraph, IrTensor, Operator

Array = np.ndarray[Any, Any]
Frame = dict[IrTensor, Array]
#: A run that stops at each collective, and goes on with its result.
Run = Generator[tuple[Operator, Array], Array, None]

_PURE: dict[str, Callable[..., Any]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Max": lambda *xs: np.maximum.reduce(xs),
    "Neg": np.negative,
    "Abs": np.abs,
    "Relu": lambda x: np.maximum(x, 0),
    "Greater": np.greater,
    "Where": np.where,
    "Identity": np.copy,
    "And": np.logical_and,
    "Or": np.logical_or,
}
_WRITES: dict[str, Callable[..., Any]] = {
    "AddLhsInplace": np.add,
    "ReluInplace": lambda x: np.maximum(x, 0),
    "CopyVarUpdate": lambda x, y: y,
    "Accumulate": np.add,
}


class Oracle:
    """Runs the main graph of an Ir, again and again; variables keep their values.

    replica: which one this is. rows: of remote buffers, by number and offset.
    """

    def __init__(
        self, ir: Ir, replica: int = 0, rows: dict[tuple[int, int], Array] | None = None
    ) -> None:
        self._ir = ir
        self._rows = {} if rows is None else rows
        self._heap: Array = np.zeros(1 << 16, np.int32)
        self._end = 0
        self._variables = {
            t: self._new(_own_data(t, replica))
            for t in ir.main.tensors.values()
            if t.kind == "variable" and t.data is not None
        }
        self._kept: Frame = dict(self._variables)
        """What lasts from run to run: variables, and what came as weights did."""
        for tensor, at in self._variables.items():
            if tensor.placement.buffer is not None:
                place = tensor.placement.buffer.number, tensor.placement.offset
                self._rows[place] = self._heap[at]
        for op in self._of_fragment("WeightsFromHostFragment"):
            for _ in self._operator(op, self._kept):
                raise AssertionError("nothing is exchanged as weights come")

    def value(self, variable: IrTensor) -> Array:
        """What a variable holds."""
        found: Array = self._heap[self._kept[variable]]
        return found

    def run(self, inputs: Mapping[IrTensor, Array]) -> dict[IrTensor, list[Array]]:
        """One run; what was stored to each stream, in order."""
        for _ in self.steps(inputs):
            raise AssertionError("one replica has nothing to exchange")
        return self.stored

    def steps(self, inputs: Mapping[IrTensor, Array]) -> Run:
        """One run, stopping at collectives; `stored` has what it stored."""
        self._inputs, self._read = inputs, Counter[IrTensor]()
        self.stored: dict[IrTensor, list[Array]] = {}
        frame = dict(self._kept)
        for op in self._of_fragment("Normal"):
            yield from self._operator(op, frame)

    def _of_fragment(self, name: str) -> list[Operator]:
        return [op for op in self._ir.main.operators if op.settings.fragment == name]

    def _new(self, values: Any) -> Array:
        array = np.asarray(values)
        at = np.arange(self._end, self._end + array.size).reshape(array.shape)
        self._end += array.size
        if self._end > len(self._heap):
            self._heap = np.concatenate([self._heap, np.zeros_like(self._heap)])
            return self._written(at, array)
        return self._written(at, array)

    def _written(self, at: Array, array: Array) -> Array:
        self._heap[at] = array
        return at

    def _graph(self, graph: IrGraph, frame: Frame) -> Run:
        for operator in graph.operators:
            yield from self._operator(operator, frame)

    def _at(self, tensor: IrTensor, frame: Frame) -> Array:
        if tensor.kind == "constant" and tensor not in frame:
            assert tensor.data is not None
            frame[tensor] = self._new(tensor.data)
        return frame[tensor]

    def _operator(self, op: Operator, frame: Frame) -> Run:  # noqa: C901 - a table
        at = [self._at(t, frame) for t in op.inputs]
        values = [self._heap[each] for each in at]
        match op.type:
            case name if name in _PURE:
                frame[op.outputs[0]] = self._new(_PURE[name](*values))
            case name if name in _WRITES:
                self._heap[at[0]] = _WRITES[name](*values)
                frame[op.outputs[0]] = at[0]
            case "ScaledAddLhsInplace":
                self._heap[at[0]] = values[0] * int(op.attributes["a"]) + values[
                    1
                ] * int(op.attributes["b"])
                frame[op.outputs[0]] = at[0]
            case "ReshapeInplace" | "Reshape":
                self._view(op, frame, at[0].reshape(op.outputs[0].shape))
            case "TransposeInplace" | "Transpose":
                self._view(op, frame, at[0].transpose(op.attributes["order"]))
            case "SliceInplace" | "Slice" | "Subsample":
                cuts: list[Any] = [slice(None)] * at[0].ndim
                for axis, *bounds in op.attributes["slices"]:
                    cuts[axis] = slice(*bounds)
                self._view(op, frame, at[0][tuple(cuts)])
            case "ConcatInplace" | "Concat":
                self._view(op, frame, np.concatenate(at, op.attributes["axis"]))
            case "Init":
                frame[op.outputs[0]] = self._new(np.zeros(op.outputs[0].shape))
            case "HostLoad":
                stream = op.attributes["stream"]
                data = self._inputs[stream]
                self._heap[at[0]] = data[self._read[stream] % len(data)]
                self._read[stream] += 1
                frame[op.outputs[0]] = at[0]
            case "HostStore":
                stream = op.attributes["stream"]
                self.stored.setdefault(stream, []).append(values[0])
            case "Call":
                made = yield from self._call(op, op.called_graphs[0], at, op.outputs)
                frame.update(made)
            case "Loop":
                yield from self._loop(op, frame, at)
            case "RemoteLoad" | "RemoteLoadInplace":
                row = self._rows.get(_row(op, values[1]))
                self._heap[at[0]] = 0 if row is None else row
                frame[op.outputs[0]] = at[0]
            case "RemoteStore":
                self._rows[_row(op, values[1])] = values[0]
            case name if name.startswith("Replicated"):
                result = yield op, values[0]
                if name.endswith("Inplace"):
                    self._heap[at[0]] = result
                    frame[op.outputs[0]] = at[0]
                else:
                    frame[op.outputs[0]] = self._new(result)
            case "If":
                then, other = op.called_graphs
                is_true = bool(values[0])
                first = 1 if is_true else 1 + len(then.inputs)
                graph = then if is_true else other
                given = at[first : first + len(graph.inputs)]
                frame.update((yield from self._call(op, graph, given, op.outputs)))
            case _:
                raise AssertionError(op.type)

    def _view(self, op: Operator, frame: Frame, at: Array) -> None:
        is_view = op.type.endswith("Inplace")
        frame[op.outputs[0]] = at if is_view else self._new(self._heap[at])

    def _call(
        self, op: Operator, graph: IrGraph, at: list[Array], outputs: list[IrTensor]
    ) -> Generator[tuple[Operator, Array], Array, Frame]:
        inner: Frame = {}
        for tensor, outer in zip(graph.inputs, at, strict=True):
            own = outer if tensor.by_reference else self._new(self._heap[outer])
            inner[tensor] = own
        yield from self._graph(graph, inner)
        results = {
            outer: self._new(self._heap[self._at(made, inner)])
            for outer, made in zip(outputs, graph.outputs, strict=True)
        }
        if op.type == "Call":
            for index in op.modified:
                self._heap[at[index]] = self._heap[inner[graph.inputs[index]]]
        return results

    def _loop(self, op: Operator, frame: Frame, at: list[Array]) -> Run:
        graph = op.called_graphs[0].operators[0].called_graphs[0]
        given = list(at)
        carried = len(graph.outputs)
        for n, tensor in enumerate(graph.inputs):
            if n < carried or not tensor.by_reference:  # they keep their value
                given[n] = self._new(self._heap[at[n]])
        for _ in range(op.attributes["count"]):
            made = yield from self._call(op, graph, given, list(op.outputs))
            given[:carried] = [made[t] for t in op.outputs]
        frame.update(zip(op.outputs, given, strict=False))


class Oracles:
    """Runs an Ir on several replicas in lockstep."""

    def __init__(self, ir: Ir, count: int) -> None:
        self._ir = ir
        self.rows: list[dict[tuple[int, int], Array]] = [{} for _ in range(count)]
        self.replicas = [Oracle(ir, r, self.rows[r]) for r in range(count)]

    def run(
        self, inputs: Mapping[IrTensor, Array]
    ) -> list[dict[IrTensor, list[Array]]]:
        """One run; what each replica stored. Arrays: transfers, replicas, data."""
        runs = [
            each.steps({t: array[:, r] for t, array in inputs.items()})
            for r, each in enumerate(self.replicas)
        ]
        results: Sequence[Array | None] = [None] * len(runs)
        while True:
            stops = [_next(run, made) for run, made in zip(runs, results, strict=True)]
            there = [stop for stop in stops if stop is not None]
            if not there:
                return [each.stored for each in self.replicas]
            assert len(there) == len(stops)
            (op,) = {op for op, _ in there}
            results = _exchanged(op, [value for _, value in there])


def _next(run: Run, made: Array | None) -> tuple[Operator, Array] | None:
    try:
        return next(run) if made is None else run.send(made)
    except StopIteration:
        return None


def _row(op: Operator, offset: Array) -> tuple[int, int]:
    return op.attributes["buffer"].number, int(offset)


def _own_data(variable: IrTensor, replica: int) -> Array:
    """What a replica has of the host's data: of its group, or its shard of that."""
    data = np.asarray(variable.data)
    at = variable.placement
    groups = at.groups
    if groups is None:
        return data
    group = groups.assignment[replica]
    if max(groups.assignment) > 0:
        data = data[group]
    if at.shards == 1:
        return data
    before = [r for r in range(replica) if groups.assignment[r] == group]
    return _part(data, at.shards, len(before) % at.shards)


def _part(data: Array, count: int, rank: int) -> Array:
    size = -(-data.size // count)
    padded = np.zeros(size * count, data.dtype)
    padded[: data.size] = data.reshape(-1)
    return padded[rank * size : (rank + 1) * size]


def _exchanged(op: Operator, values: Sequence[Array]) -> list[Array]:
    """What each replica has after a collective."""
    groups, given = op.attributes["members"], op.attributes
    results = []
    for replica, group in enumerate(groups.assignment):
        members = [r for r, g in enumerate(groups.assignment) if g == group]
        own, rank = [values[r] for r in members], members.index(replica)
        shape, count = op.outputs[0].shape, len(members)
        match op.type:
            case "ReplicatedAllReduce" | "ReplicatedAllReduceInplace":
                made = _reduced(given["op"], own)
            case "ReplicatedReduceScatter" if given["op"] == "local":
                made = _part(values[replica], count, rank)
            case "ReplicatedReduceScatter":
                made = _part(_reduced(given["op"], own), count, rank)
            case "ReplicatedSlice":
                made = np.split(values[replica], count, given["axis"])[rank]
            case "ReplicatedAllGather" if given["output"] == "meta_shape":
                flat = np.concatenate([each.reshape(-1) for each in own])
                made = flat[: int(np.prod(shape))]
            case "ReplicatedAllGather" if given["output"] == "new_axis":
                made = np.stack(own)
            case _:
                made = np.concatenate([np.atleast_1d(v) for v in own], given["axis"])
        results.append(np.asarray(made).reshape(shape))
    return results


def _reduced(op: str, values: Sequence[Array]) -> Array:
    stack = np.stack(values)
    match op:
        case "add":
            made = stack.sum(0)
        case "mean" | "mul":
            # Towards zero, in the integers that it has.
            made = np.trunc(stack.sum(0, stack.dtype) / len(stack))
        case "square_add":
            made = (stack * stack).sum(0)
        case "min":
            made = stack.min(0)
        case "max":
            made = stack.max(0)
        case "and":
            made = stack.all(0)
        case "or":
            made = stack.any(0)
        case _:
            raise AssertionError(op)
    return np.asarray(made).astype(stack.dtype)
