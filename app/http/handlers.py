"""Every error of every route in the one form: ``{"error", "code"}``."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.errors import ErrorResponse, HttpError, InvalidRequest, RequestError
from app.http.origins import with_free_methods
from engine import EngineError

_PARAMETER = re.compile(r"\{[^}]*\}")
_CODES = {404: "not_found", 405: "method_not_allowed"}
#: What replaces the details that Starlette's router gives. A route may give its own.
_TEXTS = {
    "Not Found": "Not Found: there is nothing at {path}; {hint}",
    "Method Not Allowed": "Method Not Allowed: {path} does not take {method}; "
    "it takes {allowed}",
}
_DOCS = "/docs lists what there is"
_NO_PLUGIN = "no plugin with pages and their documentation (/docs) is installed"


#: Returns the page for an address without a route; None for clients that want no page.
NothingHere = Callable[[Request], Response | None]


def install_error_handlers(
    app: FastAPI, nothing_here: NothingHere | None = None
) -> None:
    """Make `app` answer every exception in our form.

    `nothing_here` may answer requests to addresses without a route in its own form.
    """
    hint = _NO_PLUGIN if nothing_here is None else _DOCS

    async def http_exception(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        page = None
        if error.status_code == 404 and nothing_here is not None:
            page = nothing_here(request)
        return page or await _http_exception(request, error, hint)

    app.add_exception_handler(RequestError, _answer)
    app.add_exception_handler(EngineError, _answer)
    app.add_exception_handler(HTTPException, http_exception)
    app.add_exception_handler(RequestValidationError, _validation)
    app.add_middleware(ErrorGuard)


class ErrorGuard:
    """Answers unhandled errors with a 500 that reveals no internals.

    Starlette's own handler would answer and raise the error again. The server would
    then log everything twice and close the connection.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._app(scope, receive, watched_send)
        except ClientDisconnect:
            pass  # the client left while its body was read
        except Exception as e:
            if started:
                raise
            await _response(ErrorResponse.of(e))(scope, receive, send)


def _response(error: ErrorResponse) -> Response:
    response = Response(error.body, error.status)
    response.raw_headers = list(error.headers)
    return response


async def _answer(request: Request, error: Exception) -> Response:
    return _response(ErrorResponse.of(error))


async def _http_exception(request: Request, error: Exception, hint: str) -> Response:
    assert isinstance(error, HTTPException)
    # FastAPI allows any JSON value here; `error` is always a string.
    detail: object = error.detail
    text = detail if isinstance(detail, str) else json.dumps(detail, default=str)
    given = {name.lower(): value for name, value in (error.headers or {}).items()}
    if error.status_code == 405:
        given["allow"] = _allowed(request, given.get("allow", ""))
    headers = tuple((name.encode(), value.encode()) for name, value in given.items())
    if text in _TEXTS:
        path, allowed = f"{request.url.path:.300}", given.get("allow", "")
        text = _TEXTS[text].format(
            path=path, method=request.method, allowed=allowed, hint=hint
        )
    code = _CODES.get(error.status_code, "error")
    ours = HttpError(error.status_code, text, code, headers)
    return _response(ErrorResponse.of(ours))


class AllowedMethods:
    """The methods that each documented path accepts.

    A router that refuses a method knows only the methods of one route.
    """

    def __init__(self, paths: Mapping[str, Iterable[str]]) -> None:
        # The path with the most characters of its own comes first. It is the right one
        # if several fit.
        specific = sorted(paths, key=lambda p: len(_PARAMETER.sub("", p)), reverse=True)
        self._paths = [
            (compile_path(path)[0], {method.upper() for method in paths[path]})
            for path in specific
        ]

    def of(self, path: str) -> set[str]:
        """Return the methods of a path; empty if it is not in the document."""
        for pattern, methods in self._paths:
            if pattern.match(path):
                return methods
        return set()


def _route_path(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _allowed(request: Request, known: str) -> str:
    """Return the methods of a path; `known` are those that one route has named."""
    allowed: AllowedMethods | None = getattr(request.app.state, "allowed", None)
    methods = set() if allowed is None else allowed.of(_route_path(request.scope))
    # Otherwise the path is not part of the documented interface.
    methods = methods or set(filter(None, known.replace(" ", "").split(",")))
    return with_free_methods(methods)


async def _validation(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    parts = (
        f"{'.'.join(str(p) for p in e['loc'])}: {e['msg']}" for e in error.errors()
    )
    return _response(ErrorResponse.of(InvalidRequest("; ".join(parts))))
