"""Routes that a Python model declares in addition to its tensors: its own HTTP
addresses.

`popgate.route` marks functions of the class. A request to such an address is a run of
the model with the single input `ROUTE` and the single output `ANSWER`. So it is queued,
limited, cancelled and counted as any other request. Each row of both is a pair of
strings: a msgpack document and a body.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Protocol

import msgpack

#: The attribute of a marked function, which is a list of `RouteMark`.
MARKS = "__popgate_routes__"
MAX_ROUTES = 1000


class RouteApp(Protocol):
    """The routes of a model's class, and of the loaded model if there is one."""

    #: The document of `OPTION_ROUTES`.
    document: str

    async def answer(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Return the head and the body of the answer. Exceptions of the author's code
        pass through.
        """


class RouteMark(Protocol):
    """A mark on a function (route.py). It makes the object that runs the
    routes.
    """

    def make_app(
        self, target: type[Any], functions: Mapping[str, Any], model: Any
    ) -> RouteApp:
        """Return the routes of all marked `functions` of a class. Without `model` it
        only describes them. Raises InvalidModel.
        """


def find_routes(target: object, model: Any = None) -> RouteApp | None:
    """Return the routes that a class declares; None if it declares none. Raises
    InvalidModel.
    """
    if not isinstance(target, type):
        return None
    functions = {
        name: value
        for name, value in inspect.getmembers_static(target)
        if inspect.isfunction(value) and getattr(value, MARKS, None)
    }
    if not functions:
        return None
    mark: RouteMark = getattr(next(iter(functions.values())), MARKS)[0]
    return mark.make_app(target, functions, model)


def failed_answer(words: str) -> tuple[bytes, bytes]:
    """Return the answer that reports how a route has failed."""
    return msgpack.packb({"error": words}, unicode_errors="replace"), b""
