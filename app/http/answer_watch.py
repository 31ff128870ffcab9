"""Count the answers of applications (ASGI). Exchanges count their own answers.

The route of a request is its group (app/http/access.py), `health`, or `none` if the
request could not be parsed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import orjson

from app.http.access import Access, key_group
from app.http.asgi import CONNECTION, Message, Scope
from app.observe.answers import GONE, Answers

#: The key of the route in an answer's first message, if the request's path does not
#: give it.
ANSWERED_BY = "popgate.route"
#: The beginning of the only error page for browsers (of a plugin's pages).
_PAGE = b"<!doctype html>"
#: The number of paths whose routes are remembered, and the longest such path in
#: characters.
_MOST_PATHS = 1024
_LONGEST_PATH = 300
#: The text for a browser whose page may not make a request (`origins.for_origins`).
_NOT_ALLOWED = b"Disallowed CORS "


def route_of(url: str, method: str) -> str:
    """Return the route of a request, given its path with or without a query."""
    if not url.startswith("/"):
        return "none"
    path = url.partition("?")[0]
    known = _route_of if len(path) <= _LONGEST_PATH else _route_of.__wrapped__
    return known(path, method)


@lru_cache(_MOST_PATHS)
def _route_of(path: str, method: str) -> str:
    return key_group(path, method) or "health"


def read_error(text: bytes) -> tuple[str, str]:
    """Return the code and the message of an error's body; empty if it has none.

    The body may have the form of OpenAI (all in `error`), Cohere (`message`) or
    text-embeddings-inference (`error_type`, no code).
    """
    if text.startswith(_PAGE):
        return "not_found", (
            "Not Found: the browser received the page for missing addresses"
        )
    try:
        body = orjson.loads(text)
        found = body["error"] if isinstance(body.get("error"), dict) else body
        code = found["code"] if "code" in found else found["error_type"]
        why = found["message"] if "message" in found else found["error"]
        return str(code), str(why)
    except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError):
        why = text.decode() if text.startswith(_NOT_ALLOWED) else ""
        return "", why.replace("origin", "origin (--allow-origin)")


class AnswerWatch:
    """Counts the answer to one request when the first part of its body is sent."""

    __slots__ = (
        "_access", "_answers", "_connection", "_is_counted", "_names", "_route",
        "_scope", "_status",
    )  # fmt: skip

    def __init__(
        self, scope: Scope, answers: Answers, access: Access, names: Sequence[str] = ()
    ) -> None:
        self._scope = scope
        self._answers = answers
        self._access = access
        self._names = names
        self._connection: Any = scope.get(CONNECTION)
        self._status = 0
        self._route: str | None = None
        self._is_counted = False

    def see(self, message: Message) -> None:
        """Record a message of the application before it is sent."""
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._route = message.get(ANSWERED_BY)
        elif not self._is_counted:
            self._count(self._status, message.get("body", b""))

    def finish(self) -> None:
        """Record that the application has returned or raised an exception."""
        if self._is_counted:
            return
        if self._status:
            self._count(self._status, b"")
            return
        connection = self._connection
        if connection is None or not connection.is_ending:  # otherwise it was answered
            self._count(GONE, b"")

    def _count(self, status: int, body: bytes) -> None:
        self._is_counted = True
        scope, code = self._scope, ""
        if status == GONE:
            code = "cancelled"
        elif status >= 400:
            code = read_error(bytes(body))[0]
        path: str = scope["path"].removeprefix(scope.get("root_path", ""))
        key = self._access.label(dict(scope["headers"]), self._names)
        route = self._route or self._access.groups.get(path)
        route = route or route_of(path, scope["method"])
        self._answers.count(route, status, code, key)
