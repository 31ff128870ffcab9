"""Operators that compute gradients, as records: they have gradients too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from popir.dtypes import Array
from popir.errors import NotYet
from popir.records import Grad, GradRule, Lower, OpCall, Record, Spec

if TYPE_CHECKING:
    from popir.builder import Builder, Value


def gradient_record(rule: GradRule) -> Record:
    """Return the record of a rule's gradient operator."""
    if not rule.records:
        rule.records.append(_made(rule))
    return rule.records[0]


def _made(rule: GradRule) -> Record:
    def infer(call: OpCall) -> list[Spec]:
        forward: OpCall = call["forward"]
        specs = [forward.inputs[index] for index in rule.gives]
        return [Spec(spec.dtype, spec.shape, spec.meta_shape) for spec in specs]

    def lower(b: Builder, call: OpCall, values: list[Value]) -> Sequence[Value]:
        named = dict(zip(rule.needs, values, strict=True))
        return rule.lower(Grad(b, call["forward"], named))

    def host(call: OpCall, arrays: list[Array]) -> Sequence[Array]:
        assert rule.host is not None
        return rule.host(call["forward"], arrays)

    def grads(call: OpCall) -> list[GradRule]:
        if rule.host is not None:
            raise NotYet(f"gradients of the NumPy function {rule.type}")
        return [_second_rule(rule, call, lower)]

    if rule.host is not None:
        return Record(rule.type, infer, None, grads, host=host, is_users=rule.is_users)
    return Record(rule.type, infer, lower, grads, is_users=rule.is_users)


def _second_rule(rule: GradRule, call: OpCall, lower: Lower) -> GradRule:
    """Return the gradient operator of a gradient operator, from its nodes."""
    count = len(call.inputs)
    gives = tuple(n for n, spec in enumerate(call.inputs) if spec.dtype.is_float)
    ups = tuple(f"g{n}" for n in range(len(call.outputs)))

    def backward(g: Grad) -> list[Value]:
        # Import here: graphs without gradients of gradients do not need it.
        from popir.onnx_gradients import pass_back, zero

        b, values = g.b, [g[f"i{n}"] for n in range(count)]
        own = [b.identity(value) for value in values]  # a value may be several inputs
        start = len(b.block.nodes)
        # A collective has no nodes to differentiate: its `exchange` raises NotYet.
        collective, b.collective = b.collective, None
        made = lower(b, g.call, list(own))
        b.collective = collective
        nodes = b.block.nodes[start:]
        arriving: dict[Value, Value] = {}
        for value, up in zip(made, ups, strict=False):
            known = arriving.get(value)
            arriving[value] = g[up] if known is None else known + g[up]
        found = pass_back(b, nodes, own, arriving)
        return [found.get(own[n]) or zero(b, own[n]) for n in gives]

    needs = (*ups, *(f"i{n}" for n in range(count)))
    return GradRule(f"{rule.type}Grad", needs, gives, backward, is_users=rule.is_users)
