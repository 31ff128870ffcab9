"""What programs that use `popxl` ask of `popart`: for now its exceptions.

Everything else of it (devices, sessions, views of graphs) is not there yet.
"""

# ruff: noqa: N801 - the names are the original's
from __future__ import annotations

from typing import Any

from popir import IrError

popart_exception = IrError


class popart_internal_exception(popart_exception):
    """A mistake of the library's own."""


class popart_runtime_error(popart_exception):
    """Something went wrong while it ran."""


class poplar_exception(Exception):
    """Something below the graphs went wrong."""


class poplar_runtime_error(poplar_exception):
    """Something below the graphs went wrong while it ran."""


class poplar_application_runtime_error(poplar_runtime_error):
    """The program's own values were at fault."""


exception = error = popart_exception
__all__ = (
    "error",
    "exception",
    "popart_exception",
    "popart_internal_exception",
    "popart_runtime_error",
    "poplar_application_runtime_error",
    "poplar_exception",
    "poplar_runtime_error",
)


def __getattr__(name: str) -> Any:
    raise AttributeError(
        f"popart.{name} is not there: of popart only the exceptions are, so far"
    )
