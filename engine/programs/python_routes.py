"""Routes that a Python model declares beside its tensors: addresses of its own.

`popgate.route` marks functions of the class. A request to such an address is a run of
the model that has the input `ROUTE` and no other, and answers with the output `ANSWER`
and no other; so it is queued, limited, cancelled and counted as any request. Each row
of both is a pair of strings: a msgpack document, and a body.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Protocol

import msgpack

#: The input and the output of a request to a route; neither may be a model's own.
ROUTE = "popgate.request"
ANSWER = "popgate.answer"
#: The metadata option of a model with routes: a JSON document with the `routes`, pairs
#: of method and address, and the `paths` and `components` of OpenAPI.
OPTION_ROUTES = "popgate.routes"
#: The attribute that a marked function has: a list of `RouteMark`.
MARKS = "__popgate_routes__"
MAX_ROUTES = 1000


class RouteApp(Protocol):
    """The routes of one class, and of a model of it if there is one."""

    #: As of `OPTION_ROUTES`.
    document: str

    async def answer(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Return the head and the body of the answer. Raises what the author raises."""


class RouteMark(Protocol):
    """A mark at a function (popgate/routes.py), which knows how routes are run."""

    def make_app(
        self, target: type[Any], functions: Mapping[str, Any], model: Any
    ) -> RouteApp:
        """Return the routes of all marked `functions` of a class. Without `model` they
        are described only. Raises InvalidModel.
        """


def find_routes(target: object, model: Any = None) -> RouteApp | None:
    """Return the routes that a class declares; None if there are none. Raises
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
    """Return the answer that says how a route has failed."""
    return msgpack.packb({"error": words}), b""
