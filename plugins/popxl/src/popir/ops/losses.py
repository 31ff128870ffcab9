"""Softmax and the negative log-likelihood."""

from __future__ import annotations

import math

import numpy as np

from popir.builder import Builder, Value
from popir.dtypes import FLOAT16
from popir.errors import IrError
from popir.ops.common import axis_of, rule, rules, same, widened
from popir.records import Grad, OpCall, Record, Spec, register


def _softmax(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    """Return softmax over all axes from `axis` on together, as in operator set 11."""
    x = values[0]
    axis = axis_of(call["axis"], len(x.shape))
    rows = math.prod(x.shape[:axis])
    flat = b.reshape(x, (rows, math.prod(x.shape[axis:])))
    return [b.reshape(b.map("Softmax", flat, axis=1), x.shape)]


def _softmax_grad(g: Grad) -> Value:
    dy, y = g["g0"], g["o0"]
    axis = axis_of(g.call["axis"], len(y.shape))
    axes = list(range(axis, len(y.shape)))
    return (dy - g.b.sum(dy * y, axes, keep=True)) * y


register(
    Record(
        "Softmax", same, _softmax, rules(rule("SoftmaxGrad", "g0 o0", 0, _softmax_grad))
    )
)


def _check(call: OpCall) -> Spec:
    probs, labels = call.inputs[:2]
    if probs.shape[:-1] != labels.shape or not probs.shape:
        raise IrError(
            f"labels of shape {list(labels.shape)} do not fit probabilities of shape "
            f"{list(probs.shape)}"
        )
    shape = labels.shape if call["reduction"] == "none" else ()
    return Spec(probs.dtype, shape)


def _infer_loss(call: OpCall) -> list[Spec]:
    labels = call.inputs[1]
    if not labels.dtype.is_int:
        raise IrError(f"labels must be integers, found {labels.dtype}")
    return [_check(call)]


def _labels(b: Builder, call: OpCall, labels: Value) -> tuple[Value, Value | None]:
    """Return legal labels, and a mask of those that count; None if all count."""
    ignored = call["ignore_index"]
    at = b.cast(labels, np.int64)
    if ignored is None:
        return at, None
    counts = b.node(
        "Not", [b.compare("Equal", at, ignored)], [(np.dtype(bool), at.shape)]
    )[0]
    return b.where(counts, at, 0), counts


def _counted(b: Builder, counts: Value | None, labels: Value, dtype: object) -> Value:
    if counts is None:
        return b.constant(max(labels.size, 1), np.dtype(str(dtype)))
    numbers = b.cast(counts, np.float32)
    total = b.sum(numbers, list(range(len(counts.shape))))
    return b.cast(b.zip("Max", total, 1.0), np.dtype(str(dtype)))


def _least(call: OpCall, grad: bool) -> float:
    if call.inputs[0].dtype is FLOAT16:
        return 6.104e-5
    return 1e-10 if grad else 1e-7


def _loss(b: Builder, call: OpCall, probs: Value, labels: Value) -> Value:
    dtype, probs = probs.dtype, widened(b, probs)
    at, counts = _labels(b, call, labels)
    column = b.reshape(at, (*at.shape, 1))
    picked = b.gather_elements(probs, column, len(probs.shape) - 1)
    picked = b.reshape(picked, at.shape)
    if not call["log_prob"]:
        picked = b.map("Log", b.zip("Max", picked, _least(call, grad=False)))
    loss = -picked
    if counts is not None:
        loss = b.where(counts, loss, 0)
    if call["reduction"] != "none":
        loss = b.sum(loss, list(range(len(loss.shape))))
    if call["reduction"] == "mean":
        loss = loss / _counted(b, counts, at, loss.dtype)
    return b.cast(loss, dtype)


def _spread(b: Builder, call: OpCall, dy: Value, labels: Value) -> Value:
    """Return the loss's gradient as a column that fits the probabilities."""
    at, counts = _labels(b, call, labels)
    if call["reduction"] == "mean":
        dy = dy / _counted(b, counts, at, dy.dtype)
    shape = at.shape if call["reduction"] == "none" else [1] * len(at.shape)
    dy = b.reshape(dy, shape)
    if counts is not None:
        dy = b.where(counts, dy, 0)
    return b.reshape(dy, (*dy.shape, 1))


def _nll_grad(g: Grad) -> Value:
    b, probs = g.b, widened(g.b, g["i0"])
    at, _ = _labels(b, g.call, g["i1"])
    hot = b.one_hot(at, probs.shape[-1])
    dy = -_spread(b, g.call, b.cast(g["g0"], probs.dtype), g["i1"])
    if not g.call["log_prob"]:
        dy = dy / b.zip("Max", probs, _least(g.call, grad=True))
    return b.cast(b.where(hot, dy, 0), g["i0"].dtype)


register(
    Record(
        "Nll",
        _infer_loss,
        lambda b, call, values: [_loss(b, call, values[0], values[1])],
        rules(rule("NllGrad", "g0 i0 i1", 0, _nll_grad)),
    )
)


def _with_gradient(b: Builder, call: OpCall, values: list[Value]) -> list[Value]:
    probs, labels, scale = values
    loss = _loss(b, call, probs, labels)
    dtype, probs = probs.dtype, widened(b, probs)
    at, _ = _labels(b, call, labels)
    hot = b.cast(b.one_hot(at, probs.shape[-1]), probs.dtype)
    dy = b.cast(scale, probs.dtype)
    if call["reduction"] != "none" or dy.size == 1:
        shape = at.shape if call["reduction"] == "none" else ()
        dy = b.expand(b.reshape(dy, ()), shape)
    dx = (probs - hot) * _spread(b, call, dy, labels)
    return [loss, b.cast(dx, dtype)]


register(
    Record(
        "NlllWithSoftmaxGradDirect",
        lambda call: [_check(call), call.inputs[0]],
        _with_gradient,
    )
)
