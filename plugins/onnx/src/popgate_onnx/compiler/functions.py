"""Functions of a model, whose nodes the compiler must see."""

from __future__ import annotations

from typing import Any

from popgate_onnx.compiler.replacing import without_weights


def inline_functions(model: Any) -> None:
    """Replace calls of the model's own functions by their nodes.

    A function with operators of another version stays.
    """
    if not model.functions:
        return
    from onnx import inliner

    try:
        inlined = inliner.inline_local_functions(without_weights(model))
    except Exception:  # onnx raises many kinds of errors; ONNX Runtime names the fault
        return
    for place, made in (
        (model.graph.node, inlined.graph.node),
        (model.functions, inlined.functions),
        (model.opset_import, inlined.opset_import),
    ):
        del place[:]
        place.extend(made)
