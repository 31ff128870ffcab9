"""A plain interpreter of graphs, which lowering is compared with.

All storage is one heap; a tensor is the addresses of its elements. A view is the same
addresses in another arrangement, a write is a write to the heap. Nothing of it is
shared with the lowering.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from popir import Graph, Ir, Operator, Tensor

Array = np.ndarray[Any, Any]
Frame = dict[Tensor, Array]

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
}
_WRITES: dict[str, Callable[..., Any]] = {
    "AddLhsInplace": np.add,
    "ReluInplace": lambda x: np.maximum(x, 0),
    "CopyVarUpdate": lambda x, y: y,
    "Accumulate": np.add,
}


class Oracle:
    """Runs the main graph of an Ir, again and again; variables keep their values."""

    def __init__(self, ir: Ir) -> None:
        self._ir = ir
        self._heap: Array = np.zeros(1 << 16, np.int32)
        self._end = 0
        self._variables = {
            t: self._new(t.data)
            for t in ir.main.tensors.values()
            if t.kind == "variable" and t.data is not None
        }

    def value(self, variable: Tensor) -> Array:
        """What a variable holds."""
        found: Array = self._heap[self._variables[variable]]
        return found

    def run(self, inputs: Mapping[Tensor, Array]) -> dict[Tensor, list[Array]]:
        """One run; what was stored to each stream, in order."""
        self._inputs, self._read = inputs, Counter[Tensor]()
        self._stored: dict[Tensor, list[Array]] = {}
        self._graph(self._ir.main, dict(self._variables))
        return self._stored

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

    def _graph(self, graph: Graph, frame: Frame) -> None:
        for operator in graph.operators:
            self._operator(operator, frame)

    def _at(self, tensor: Tensor, frame: Frame) -> Array:
        if tensor.kind == "constant" and tensor not in frame:
            assert tensor.data is not None
            frame[tensor] = self._new(tensor.data)
        return frame[tensor]

    def _operator(self, op: Operator, frame: Frame) -> None:  # noqa: C901 - a table
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
                self._stored.setdefault(stream, []).append(values[0])
            case "Call":
                frame.update(self._call(op, op.called_graphs[0], at, op.outputs))
            case "Loop":
                self._loop(op, frame, at)
            case "If":
                then, other = op.called_graphs
                is_true = bool(values[0])
                first = 1 if is_true else 1 + len(then.inputs)
                graph = then if is_true else other
                given = at[first : first + len(graph.inputs)]
                frame.update(self._call(op, graph, given, op.outputs))
            case _:
                raise AssertionError(op.type)

    def _view(self, op: Operator, frame: Frame, at: Array) -> None:
        is_view = op.type.endswith("Inplace")
        frame[op.outputs[0]] = at if is_view else self._new(self._heap[at])

    def _call(
        self, op: Operator, graph: Graph, at: list[Array], outputs: list[Tensor]
    ) -> Frame:
        inner: Frame = {}
        for tensor, outer in zip(graph.inputs, at, strict=True):
            own = outer if tensor.by_reference else self._new(self._heap[outer])
            inner[tensor] = own
        self._graph(graph, inner)
        results = {
            outer: self._new(self._heap[self._at(made, inner)])
            for outer, made in zip(outputs, graph.outputs, strict=True)
        }
        if op.type == "Call":
            for index in op.modified:
                self._heap[at[index]] = self._heap[inner[graph.inputs[index]]]
        return results

    def _loop(self, op: Operator, frame: Frame, at: list[Array]) -> None:
        graph = op.called_graphs[0].operators[0].called_graphs[0]
        given = list(at)
        carried = len(graph.outputs)
        for n, tensor in enumerate(graph.inputs):
            if n < carried or not tensor.by_reference:  # they keep their value
                given[n] = self._new(self._heap[at[n]])
        for _ in range(op.attributes["count"]):
            made = self._call(op, graph, given, list(op.outputs))
            given[:carried] = [made[t] for t in op.outputs]
        frame.update(zip(op.outputs, given, strict=False))
