"""Classes of operators over windows whose position is known only at run time."""

from __future__ import annotations

from popart.operators import OpView, class_called, classes_of


def __getattr__(name: str) -> type[OpView]:
    return class_called("dynamic", name)


def __dir__() -> list[str]:
    return [*globals(), *classes_of("dynamic")]
