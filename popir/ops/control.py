"""Operators that the lowering carries out itself: calls, streams, printing."""

from __future__ import annotations

from popir.ops.common import rule, rules, same
from popir.records import Call, Record, Spec, register


def _results(call: Call) -> list[Spec]:
    """What the called graph gives: the caller says, for graphs grow."""
    specs: list[Spec] = call["results"]
    return specs


register(Record("Call", _results, effect=True))
register(Record("Loop", _results, effect=True, refuses="a loop has no gradient"))
register(Record("If", _results, effect=True))


def _loaded(call: Call) -> list[Spec]:
    return [call.inputs[0]]


register(Record("HostLoad", _loaded, effect=True))
register(Record("HostStore", lambda _: [], effect=True))
register(
    Record(
        "PrintTensor",
        same,
        effect=True,
        grads=rules(rule("PrintTensorGrad", "g0", 0, lambda g: g["g0"])),
    )
)
register(Record("RemoteCodeLoad", lambda _: [], effect=True))
