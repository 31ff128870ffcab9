"""Looks at a graph for operators that see all rows at once, without running it.

Running it on made-up data (`engine.compiler.row_check`) finds most dependences between
rows. What it may not meet: randomness, results whose size depends on data, and branches
taken on data. Those are found here. Values that depend only on shapes are not data: the
graphs that exporters write compute axes and sizes with the same operators.
"""

from __future__ import annotations

from typing import Any

from engine.compiler.graphs import all_nodes, attribute_int, graphs_of, label

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
"""Which inputs of an operator say how large its result is. Where that is data it is the
data of all rows; and made-up data could ask for any amount of memory."""
_SHAPE_ONLY = frozenset({"Shape", "Size"})


def row_mixer(model: Any) -> str | None:
    """What in `model` mixes rows for certain or may do so unseen; None if nothing.

    A clause such as `NonZero node 'n' looks at all rows at once`.
    """
    for node in (
        *all_nodes(model.graph),
        *(node for function in model.functions for node in function.node),
    ):
        if node.op_type in RANDOM:
            return f"{label(node)} gives random numbers"
    tainted = {value.name for value in model.graph.input}
    constants = {t.name: t for t in model.graph.initializer}
    bodies = {(f.domain, f.name): f for f in model.functions}
    return _look(model.graph, tainted, constants, bodies)


def _look(
    graph: Any, tainted: set[str], constants: dict[str, Any], bodies: dict[Any, Any]
) -> str | None:
    """Walk `graph` in order; `tainted` are the names that depend on data."""
    for node in graph.node:
        reads = set(node.input)
        for inner in graphs_of(node):
            reads |= {name for n in all_nodes(inner) for name in n.input}
        on_data = bool(reads & tainted)
        if on_data and (reason := _mixes(node, tainted, constants, bodies)):
            return reason
        for inner in graphs_of(node):
            known = tainted | ({v.name for v in inner.input} if on_data else set())
            if reason := _look(inner, known, constants, bodies):
                return reason
        if on_data and node.op_type not in _SHAPE_ONLY:
            tainted |= set(node.output)
    return None


def _mixes(
    node: Any, tainted: set[str], constants: dict[str, Any], bodies: dict[Any, Any]
) -> str | None:
    kind = node.op_type
    if kind in SEES_ALL_ROWS:
        return f"{label(node)} looks at all rows at once"
    if any(
        i < len(node.input) and node.input[i] in tainted for i in SIZES.get(kind, ())
    ):
        return f"{label(node)} gives as much as data says"
    if kind == "BatchNormalization" and attribute_int(node, "training_mode", 0):
        return f"{label(node)} takes its statistics from the batch"
    if kind == "Dropout" and _is_training(node, constants):
        return f"{label(node)} drops values at random"
    if kind == "If" and node.input[0] in tainted:
        return f"{label(node)} branches on data"
    if kind == "Loop" and _loops_on_data(node, tainted):
        return f"{label(node)} loops as long as data says"
    body = bodies.get((node.domain, kind))
    if body is not None:
        for inner in body.node:
            if inner.op_type in SEES_ALL_ROWS | SIZES.keys() | {"If", "Loop"}:
                return f"{label(inner)} of function {kind} may look at all rows at once"
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
