"""Operators that the lowering carries out itself: calls, streams, remote
memory, printing."""

from __future__ import annotations

from popir.ops.common import rule, rules, same
from popir.records import OpCall, Record, Spec, register


def _results(call: OpCall) -> list[Spec]:
    """Return the results of the called graph: the caller states them, because graphs
    grow.
    """
    specs: list[Spec] = call["results"]
    return specs


register(Record("Call", _results))
register(Record("Loop", _results, refuses="a loop has no gradient"))
register(Record("If", _results))


def _loaded(call: OpCall) -> list[Spec]:
    return [call.inputs[0]]


register(Record("HostLoad", _loaded))
register(Record("HostStore", lambda _: []))
register(
    Record(
        "PrintTensor",
        same,
        grads=rules(rule("PrintTensorGrad", "g0", 0, lambda g: g["g0"])),
    )
)
register(Record("RemoteCodeLoad", lambda _: []))


def _row(call: OpCall) -> list[Spec]:
    return [Spec(call.inputs[0].dtype, call.inputs[0].shape, call["meta_shape"])]


register(Record("RemoteLoad", _row))
register(Record("RemoteLoadInplace", _row, writes=True))
register(Record("RemoteStore", lambda _: []))
