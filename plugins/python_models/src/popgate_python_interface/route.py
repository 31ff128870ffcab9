"""Routes of a Python model, in the manner of FastAPI.

    from pydantic import BaseModel
    from popgate import route

    class Text(BaseModel):
        text: str

    class Model:
        inputs = {"text": "BYTES[-1]"}
        outputs = {"length": "INT64[-1]"}

        def __call__(self, text): ...

        @route.post("/v1/summaries")
        def summary(self, body: Text) -> Text:
            return Text(text=body.text[:100])

FastAPI reads the parameters, checks the body, and writes the answer and the OpenAPI
document. It runs in the process of the model, and the functions run in the thread that
calls the model. The server answers at the address, and passes the requests to the
model (`popgate_python_interface.routes`).
"""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import msgpack

from engine.errors import InvalidModel
from popgate_python_interface.routes import MARKS, MAX_ROUTES, RouteApp

if TYPE_CHECKING:
    from fastapi import FastAPI

Function = TypeVar("Function", bound=Callable[..., Any])

#: An address. Its parts are letters, digits and signs, or parameters in braces.
_ADDRESS = re.compile(r"(?:/(?:\{\w+(?::\w+)?\}|[\w.~!$&'()*+,;=:@-])+)+", re.ASCII)
_LONGEST = 300
#: Headers that the server writes itself.
_OF_SERVER = frozenset((b"connection", b"date", b"server", b"transfer-encoding"))


@dataclass(frozen=True, slots=True)
class Mark:
    """A method and an address at which a function answers; `options` are FastAPI's."""

    method: str
    path: str
    options: Mapping[str, Any] = field(default_factory=dict)

    def make_app(
        self, target: type[Any], functions: Mapping[str, Any], model: Any
    ) -> RouteApp:
        return ModelRoutes(target, functions, model)


class Route:
    """Decorators of functions that answer at an address of their own.

    Options are those of FastAPI's decorators: `status_code`, `response_model`,
    `summary`, `tags` and so on.
    """

    def get(self, path: str, **options: Any) -> Callable[[Function], Function]:
        """Answer GET at `path`."""
        return self._mark("GET", path, options)

    def post(self, path: str, **options: Any) -> Callable[[Function], Function]:
        """Answer POST at `path`."""
        return self._mark("POST", path, options)

    def put(self, path: str, **options: Any) -> Callable[[Function], Function]:
        """Answer PUT at `path`."""
        return self._mark("PUT", path, options)

    def patch(self, path: str, **options: Any) -> Callable[[Function], Function]:
        """Answer PATCH at `path`."""
        return self._mark("PATCH", path, options)

    def delete(self, path: str, **options: Any) -> Callable[[Function], Function]:
        """Answer DELETE at `path`."""
        return self._mark("DELETE", path, options)

    def _mark(
        self, method: str, path: str, options: Mapping[str, Any]
    ) -> Callable[[Function], Function]:
        def mark(function: Function) -> Function:
            if not inspect.isfunction(function):
                raise TypeError(f"a route is a function of a class, not {function!r}")
            marks = [*getattr(function, MARKS, ()), Mark(method, path, options)]
            setattr(function, MARKS, marks)
            return function

        return mark

    def __repr__(self) -> str:
        return "<Route>"


#: Marks functions of a Python model: ``@route.post("/v1/summaries")``.
route = Route()


class ModelRoutes:
    """The routes of a class, and of `model` if there is one. Raises InvalidModel."""

    def __init__(
        self, target: type[Any], functions: Mapping[str, Any], model: Any
    ) -> None:
        self._model = model
        self._app = app = _application()
        marks = [(name, f, one) for name, f in functions.items() for one in _marks(f)]
        if len(marks) > MAX_ROUTES:
            raise InvalidModel(f"{target.__name__} has more than {MAX_ROUTES} routes")
        for name, function, mark in marks:
            label = f"{target.__name__}.{name}"
            if len(mark.path) > _LONGEST or not _ADDRESS.fullmatch(mark.path):
                raise InvalidModel(
                    f"the route of {label} is {mark.path!r:.400}; expected an address "
                    'as in "/v1/summaries/{name}"'
                )
            try:
                app.add_api_route(
                    mark.path,
                    self._endpoint(function),
                    methods=[mark.method],
                    **mark.options,
                )
            except Exception as error:  # raised by FastAPI or by annotations
                words = f"{type(error).__name__}: {error}"
                raise InvalidModel(f"the route of {label}: {words:.1000}") from None
        self.document = _document(app, [[m.method, m.path] for _, _, m in marks])

    def _endpoint(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function` as a coroutine, because FastAPI runs other functions in a
        thread.
        """
        signature = inspect.signature(function, eval_str=True)
        _self, *parameters = signature.parameters.values()

        async def endpoint(**given: Any) -> Any:
            result = function(self._model, **given)
            return await result if inspect.isawaitable(result) else result

        made: Any = endpoint
        made.__name__, made.__doc__ = function.__name__, function.__doc__
        made.__signature__ = signature.replace(parameters=parameters)
        return endpoint

    async def answer(self, head: bytes, body: bytes) -> tuple[bytes, bytes]:
        """Return the head and the body of the answer.

        Raises the author's exceptions.
        """
        scope = _scope(msgpack.unpackb(head))
        messages = iter([{"type": "http.request", "body": body, "more_body": False}])
        started: MutableMapping[str, Any] = {}
        parts: list[bytes] = []

        async def receive() -> MutableMapping[str, Any]:
            for message in messages:
                return message
            await asyncio.Future()  # the server ends the run if the client disconnects
            raise AssertionError

        async def send(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        await self._app(scope, receive, send)
        headers = [
            [bytes(name), bytes(value)]
            for name, value in started["headers"]
            if name.lower() not in _OF_SERVER
        ]
        answered = {"status": int(started["status"]), "headers": headers}
        return msgpack.packb(answered), b"".join(parts)

    def __repr__(self) -> str:
        return f"<ModelRoutes of {self._model!r}>"


def _marks(function: Any) -> Iterator[Mark]:
    yield from getattr(function, MARKS)


def _application() -> FastAPI:
    """Return an application without routes. Raises InvalidModel."""
    try:
        from fastapi import FastAPI
    except ImportError as error:
        raise InvalidModel(
            f"routes of a model need fastapi, which {sys.executable} has not: {error}"
        ) from None
    # The server has pages of its own.
    return FastAPI(openapi_url=None, docs_url=None, redoc_url=None)


def _document(app: FastAPI, routes: list[list[str]]) -> str:
    from fastapi.openapi.utils import get_openapi

    try:
        made = get_openapi(title="", version="", routes=app.routes)
    except Exception as error:  # the type has no schema
        words = f"{type(error).__name__}: {error}"
        raise InvalidModel(f"the routes cannot be described: {words:.1000}") from None
    kept = {key: made[key] for key in ("paths", "components") if key in made}
    return json.dumps({"routes": routes, **kept})


def _scope(head: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ASGI scope of a request."""
    path = str(head["path"])
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": str(head["method"]),
        "scheme": str(head["scheme"]),
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": bytes(head["query"]),
        "headers": [(bytes(name), bytes(value)) for name, value in head["headers"]],
        "client": (str(head["client"]), 0) if head["client"] else None,
        "server": None,
    }
