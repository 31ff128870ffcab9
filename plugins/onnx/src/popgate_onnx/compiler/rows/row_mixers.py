"""Search a graph for operators that see all rows at once, without running it.

Running it on synthetic data (`row_check`) finds most dependences between rows. Runs
can miss randomness, results whose size depends on data, and branches on data. This
module finds them. Values that depend only on shapes are not data: the
graphs that exporters write compute axes and sizes with the same operators.
"""

from __future__ import annotations

from typing import Any

from popgate_onnx.compiler.graphs import (
    MAX_NESTING,
    all_nodes,
    attribute_int,
    graphs_of,
    label,
)

RANDOM = frozenset(
    {
        "Bernoulli",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)
SEES_ALL_ROWS = frozenset(
    {
        "Compress",
        "DynamicQuantizeLSTM",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "NonMaxSuppression",
        "NonZero",
        "Unique",
    }
)
SIZES = {
    "BlackmanWindow": (0,),
    "CenterCropPad": (1,),
    "Col2Im": (1, 2),
    "ConstantOfShape": (0,),
    "Expand": (1,),
    "HammingWindow": (0,),
    "HannWindow": (0,),
    "OneHot": (1,),
    "Pad": (1,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (2, 3),
    "Slice": (1, 2, 4),
    "Split": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Upsample": (1,),
}
"""Inputs of an operator that set the size of its result.

If such an input is data, it depends on the data of all rows, and synthetic data could
request any amount of memory.
"""
_SHAPE_ONLY = frozenset({"Shape", "Size"})


def row_mixer(model: Any) -> str | None:
    """Return the node in `model` that mixes rows, or that may mix them unnoticed by the
    runs. Return None if there is no such node.

    The result is a clause such as `NonZero node 'n' looks at all rows at once`.
    """
    for node in (
        *all_nodes(model.graph),
        *(node for function in model.functions for node in function.node),
    ):
        if node.op_type in RANDOM:
            return f"{label(node)} returns random numbers"
    constants = {t.name: t for t in model.graph.initializer}
    functions = {(f.domain, f.name): f for f in model.functions}
    tainted = {value.name for value in model.graph.input}
    return _Look(constants, functions).at(model.graph.node, tainted, 0)


class _Look:
    """A walk through nodes in order, keeping the names that depend on data."""

    def __init__(self, constants: dict[str, Any], functions: dict[Any, Any]) -> None:
        self._constants = constants
        self._functions = functions

    def at(self, nodes: Any, tainted: set[str], depth: int) -> str | None:
        if depth > MAX_NESTING:
            return f"functions are nested more than {MAX_NESTING} deep"
        for node in nodes:
            reads = set(node.input)
            for inner in graphs_of(node):
                reads |= {name for n in all_nodes(inner) for name in n.input}
            on_data = bool(reads & tainted)
            if on_data and (reason := self._mixes(node, tainted)):
                return reason
            for inner in graphs_of(node):
                own = {v.name for v in inner.input} if on_data else set()
                if reason := self.at(inner.node, tainted | own, depth + 1):
                    return reason
            body = self._functions.get((node.domain, node.op_type))
            if body is not None:
                pairs = zip(body.input, node.input, strict=False)
                own = {name for name, given in pairs if given in tainted}
                if reason := self.at(body.node, own, depth + 1):
                    return f"{reason} (in function {node.op_type})"
            if on_data and node.op_type not in _SHAPE_ONLY:
                tainted |= set(node.output)
        return None

    def _mixes(self, node: Any, tainted: set[str]) -> str | None:
        kind = node.op_type
        if kind in SEES_ALL_ROWS:
            return f"{label(node)} reads all rows at once"
        size = [node.input[i] for i in SIZES.get(kind, ()) if i < len(node.input)]
        if any(name in tainted for name in size):
            return f"{label(node)} has a result whose size depends on data"
        if kind == "BatchNormalization" and attribute_int(node, "training_mode", 0):
            return f"{label(node)} takes its statistics from the batch"
        if kind == "Dropout" and _is_training(node, self._constants):
            return f"{label(node)} drops values at random"
        if kind == "If" and node.input[0] in tainted:
            return f"{label(node)} branches on data"
        if kind == "Loop" and _loops_on_data(node, tainted):
            return f"{label(node)} repeats a number of times that depends on data"
        return None


def _is_training(node: Any, constants: dict[str, Any]) -> bool:
    if len(node.input) < 3 or not node.input[2]:
        return False
    mode = constants.get(node.input[2])
    if mode is None:
        return True  # decided at run time
    return bool(any(mode.raw_data) or any(mode.int32_data))


def _loops_on_data(node: Any, tainted: set[str]) -> bool:
    if any(name in tainted for name in node.input[:2]):
        return True
    for body in graphs_of(node):
        inputs = {value.name for value in body.input}
        makers = {name: n for n in body.node for name in n.output}
        condition = body.output[0].name if body.output else ""
        while (maker := makers.get(condition)) and maker.op_type == "Identity":
            condition = maker.input[0]
        maker = makers.get(condition)
        if maker is not None and maker.op_type != "Constant":
            return True
        if maker is None and condition not in inputs:
            continue  # a constant from outside
    return False
