"""Decides whether rows of different requests may share a batch (design, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.compiler.interface import Dimension, Interface
from engine.compiler.options import BatchDecision, CompileOptions
from engine.compiler.row_check import Dependent, RowCheck, Run
from engine.compiler.row_mixers import row_mixer
from engine.compiler.row_trace import RowTrace
from engine.compiler.weights import Weight


def decide(
    model: Any,
    interface: Interface,
    weights: Sequence[Weight],
    run: Run,
    options: CompileOptions,
) -> BatchDecision:
    """The decision on a loaded model, as `options.batch` asks.

    `model` lacks the data of `weights`; `run` runs it on arrays by name.
    """
    batch = options.batch
    size = batch if isinstance(batch, int) else 0
    if batch == "off":
        return BatchDecision(False, 0, "batching is switched off")
    trace = RowTrace(model, weights, options.threads)
    reason = (
        _rows_are_missing(interface, size)
        or row_mixer(model)
        or _rows_depend(interface, run, trace, size, options)
    )
    if reason is not None:
        return BatchDecision(False, size, reason)
    return BatchDecision(True, size, "made-up rows gave the same alone and together")


def _rows_are_missing(interface: Interface, size: int) -> str | None:
    """Why not every input and output has one row for each row; None if they do."""
    if not interface.inputs:
        return "there are no inputs"
    if size == 1:
        return "in a batch of one row there is nothing to mix"
    first = interface.inputs[0]
    for kind, tensors in (("input", interface.inputs), ("output", interface.outputs)):
        for tensor in tensors:
            name = f"{kind} {tensor.name!r}"
            if tensor.shape is None:
                return f"the rank of {name} is not known"
            if not tensor.shape:
                return f"{name} is a scalar"
            if reason := _other_rows(tensor.shape[0], first, name, size):
                return reason
    if not size:
        rows = (first.shape or (None,))[0]
        for tensor in (*interface.inputs, *interface.outputs):
            if rows is not None and rows in (tensor.shape or ())[1:]:
                return f"dimension {rows!r} of {tensor.name!r} is not only the first"
    return None


def _other_rows(rows: Dimension, first: Any, name: str, size: int) -> str | None:
    if size:
        return None if rows == size else f"the first dimension of {name} is not {size}"
    if isinstance(rows, int):
        return f"the first dimension of {name} is fixed at {rows}"
    expected = first.shape[0]
    if rows == expected and (rows is not None or name.startswith("output")):
        return None
    if name == f"input {first.name!r}":
        return None
    if rows is None:
        # An output that nothing is known of may still have a row for each row.
        return (
            None
            if name.startswith("output")
            else (f"the first dimension of {name} has no name that others share")
        )
    return (
        f"the first dimension of {name}, {rows!r}, is not that of input "
        f"{first.name!r}, {expected!r}"
    )


def _rows_depend(
    interface: Interface, run: Run, trace: RowTrace, size: int, options: CompileOptions
) -> str | None:
    seconds = options.check_seconds
    check = RowCheck(interface, run, trace, size, options.seed, seconds)
    try:
        check.check()
    except Dependent as found:
        return str(found)
    return None
