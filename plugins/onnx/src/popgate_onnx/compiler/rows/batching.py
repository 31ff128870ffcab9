"""Decides whether rows of different requests may share a batch (design, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from engine.errors import EngineError
from engine.model.batch_plan import DEFAULT_MAX_BATCH
from engine.programs.onnx_session import OnnxSession
from engine.programs.time_limit import TimeLimit
from engine.tensor import Array
from popgate_onnx.compiler.interface import Dimension, Interface
from popgate_onnx.compiler.options import COULD_NOT_RUN, BatchDecision, CompileOptions
from popgate_onnx.compiler.rows.batch_limit import rows_within
from popgate_onnx.compiler.rows.column_values import column_values
from popgate_onnx.compiler.rows.known_values import known_values
from popgate_onnx.compiler.rows.row_check import NOTHING_SHOWN, Dependent, RowCheck, Run
from popgate_onnx.compiler.rows.row_mixers import row_mixer
from popgate_onnx.compiler.rows.row_proof import unproven
from popgate_onnx.compiler.rows.row_trace import MAX_WEIGHTS, RowTrace
from popgate_onnx.compiler.rows.samples import Feed
from popgate_onnx.compiler.rows.varied_weights import varied
from popgate_onnx.compiler.weights import Weight


def decide(
    model: Any,
    interface: Interface,
    weights: Sequence[Weight],
    run: Run,
    options: CompileOptions,
    limit: TimeLimit,
) -> BatchDecision:
    """Return the decision on a loaded model, following `options.batch`.

    `model` does not contain the data of `weights`. `run` runs the model on arrays by
    name, and `limit` ends those runs.
    """
    batch = options.batch
    size = batch if isinstance(batch, int) else 0
    if batch == "off":
        return BatchDecision(False, 0, "batching is switched off")
    most = 0
    reason = _rows_are_missing(model, interface, size) or row_mixer(model)
    if reason is None:
        trace = RowTrace(model, weights, options.threads, limit.options)
        most = 0 if size else rows_within(model, DEFAULT_MAX_BATCH)
        check = RowCheck(
            interface,
            run,
            trace,
            size,
            options.seed,
            options.check_seconds,
            known_values(model),
            most,
            column_values(model),
        )
        reason = _rows_depend(check)
        if reason is None and size and weights:
            reason = _rows_depend_on_weights(model, interface, weights, options, limit)
        if limit.is_over:  # the check failed only because `limit` ended its runs
            reason = f"the check was stopped after {limit.seconds:g} s"
    if reason is not None:
        return BatchDecision(False, size, reason)
    return BatchDecision(
        True,
        size,
        "rows give the same answers alone and in a batch",
        most if most < DEFAULT_MAX_BATCH else 0,
    )


def _rows_are_missing(model: Any, interface: Interface, size: int) -> str | None:
    """Return why an input or output lacks a place for each row; None if all
    have one.
    """
    if not interface.inputs:
        return "the model has no inputs"
    if size == 1:
        return "a batch of one row has no other rows"
    named = (
        *((f"input {t.name!r}", t.shape) for t in interface.inputs),
        *((f"output {t.name!r}", t.shape) for t in interface.outputs),
    )
    for name, shape in named:
        if shape is None:
            return f"the rank of {name} is unknown"
        if not shape:
            return f"{name} is a scalar"
        if size and shape[0] != size:
            return f"the first dimension of {name} is not {size}"
        if not size and isinstance(shape[0], int):
            return f"the first dimension of {name} is fixed at {shape[0]}" + _remedy(
                interface
            )
    return None if size else _rows_differ(model, interface)


def _remedy(interface: Interface) -> str:
    """Return how to free the row dimension of a model that was exported with a fixed
    one.
    """
    shapes = {t.name: t.shape for t in interface.inputs if t.shape}
    if not any(isinstance(shape[0], int) for shape in shapes.values()):
        return "; export the model with its rows first in every output"
    options = []
    for name, shape in shapes.items():
        rest = ("-1" if dim is None else str(dim) for dim in shape[1:])
        options.append(f"--shape {name}={','.join(('batch', *rest))}")
    return f"; if the model can compute any number of rows, set {' '.join(options)}"


def _rows_differ(model: Any, interface: Interface) -> str | None:
    """Return why the free first dimensions may differ; None if they are the same.

    The inputs' first dimensions must share a name, or the graph must prove that it
    cannot run if they differ. The first dimensions of outputs need not share a name,
    because exporters give results new names. Running the model shows how many rows
    result.
    """
    shapes = {t.name: t.shape or () for t in interface.inputs}
    elsewhere: set[Dimension] = {d for shape in shapes.values() for d in shape[1:]}
    for output in interface.outputs:
        elsewhere.update((output.shape or ())[1:])
    for name, shape in (
        *shapes.items(),
        *((t.name, t.shape or ()) for t in interface.outputs),
    ):
        if shape[0] is not None and shape[0] in elsewhere:
            return (
                f"the first dimension of {name!r}, {shape[0]}, is also another "
                "dimension of an input or output"
            )
    first, *others = shapes.items()
    rows = first[1][0]
    for name, shape in others:
        if shape[0] is None or shape[0] != rows:
            why = unproven(model, interface)
            return why and (
                f"the first dimensions of inputs {first[0]!r} and {name!r} are "
                f"{rows or '?'} and {shape[0] or '?'}, which may differ: {why}"
            )
    return None


def _rows_depend_on_weights(
    model: Any,
    interface: Interface,
    weights: Sequence[Weight],
    options: CompileOptions,
    limit: TimeLimit,
) -> str | None:
    """Return why rows would depend on each other, or on their place in the batch, if
    the weights had other values; None if they do not.

    Weights are data that can be replaced: by frozen inputs, or from another file.
    """
    if sum(weight.nbytes for weight in weights) > MAX_WEIGHTS:
        return None
    others = varied(weights, options.seed)
    data = {w.name: (w.data, w.info.data_type) for w in others}
    try:
        session = OnnxSession(model.SerializeToString(), data, threads=options.threads)
    except EngineError:
        return None  # some weight is a shape or an axis, which cannot be replaced
    names = list(session.outputs)

    def run(feed: Feed) -> dict[str, Array]:
        try:
            results = session.raw_run(names, feed, limit.options)
        except Exception as error:  # pybind's classes share no public base
            raise session.error_of(error, limit.options) from None
        return dict(zip(names, results, strict=True))

    trace = RowTrace(model, others, options.threads, limit.options)
    size = options.batch if isinstance(options.batch, int) else 0
    check = RowCheck(interface, run, trace, size, options.seed, options.check_seconds)
    reason = _rows_depend(check)
    if reason is None or reason.startswith(COULD_NOT_RUN) or NOTHING_SHOWN in reason:
        return None  # this does not contradict the result with the true weights
    return f"with other values of its weights, {reason}"


def _rows_depend(check: RowCheck) -> str | None:
    try:
        check.check()
    except Dependent as found:
        return str(found)
    return None
