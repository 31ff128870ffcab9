"""Pages of other origins (CORS), and methods that every path has.

A browser lets a page read answers of another origin only if those answers allow it.
Before it sends JSON, it asks with OPTIONS. HEAD is GET without the body. OPTIONS lists
the methods of a path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from starlette.middleware.cors import CORSMiddleware

from app.http.asgi import ASGIApp, Message, Receive, Scope, Send

_METHODS = ("GET", "HEAD", "POST", "OPTIONS")
#: Pages with relative links. Their trailing slash is not removed.
_OWN_SLASH = frozenset({"/", "/docs/"})


class AnyMethod:
    """Adds HEAD, OPTIONS and trailing slashes to every path of `app`.

    `methods_of` returns the methods of a path, without these two.
    """

    def __init__(self, app: ASGIApp, methods_of: Callable[[str], set[str]]) -> None:
        self._app = app
        self._methods_of = methods_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        if path.endswith("/") and path not in _OWN_SLASH:
            path = path.rstrip("/") or "/"
            scope = {**scope, "path": path}
        if scope["method"] == "OPTIONS":
            methods = self._methods_of(path)
            if methods:
                await _send_options(send, with_free_methods(methods))
                return
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _without_body(send)
        await self._app(scope, receive, send)


def with_free_methods(methods: set[str]) -> str:
    """Return the header Allow for these methods, with HEAD and OPTIONS added."""
    more = {"OPTIONS", "HEAD"} if "GET" in methods else {"OPTIONS"}
    return ", ".join(sorted(methods | more))


def for_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Return `app`, open to pages of these origins too; ``*`` means all."""
    middleware: Any = CORSMiddleware(
        app,
        allow_origins=list(origins),
        allow_methods=_METHODS,
        allow_headers=["*"],
        expose_headers=["*"],
    )
    return middleware  # type: ignore[no-any-return]


async def _send_options(send: Send, allowed: str) -> None:
    headers = [(b"allow", allowed.encode())]
    await send({"type": "http.response.start", "status": 204, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _without_body(send: Send) -> Send:
    async def headers_only(message: Message) -> None:
        if message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await send(message)

    return headers_only
