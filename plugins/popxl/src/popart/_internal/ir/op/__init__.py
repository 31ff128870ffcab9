"""Classes of operators, made from the table of operators."""

from __future__ import annotations

from popart._internal.ir.op import collectives, dynamic, exchange
from popart.enums import MatMulPartialsType
from popart.operators import OpView, class_called, classes_of

__all__ = ("MatMulPartialsType", "collectives", "dynamic", "exchange")


def __getattr__(name: str) -> type[OpView]:
    return class_called("", name)


def __dir__() -> list[str]:
    return [*globals(), *classes_of("")]
