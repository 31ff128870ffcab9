"""Classes of operators that load and store."""

from __future__ import annotations

from popart.operators import OpView, class_called, classes_of


def __getattr__(name: str) -> type[OpView]:
    return class_called("exchange", name)


def __dir__() -> list[str]:
    return [*globals(), *classes_of("exchange")]
