"""Types of ASGI applications, and answers as ASGI messages."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from app.codec.chunks import JOIN_BELOW
from app.codec.messages import Response
from app.errors import ErrorResponse

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
ASGIApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

#: The key of a scope for its `ThrottledConnection` (front.py), if it came through our
#: own protocol.
CONNECTION = "popgate.connection"
#: The key of a scope for the base path removed from its path, and whether the request
#: was for the base path alone, without a slash at the end.
BASE = "popgate.base"
BARE = "popgate.bare"
#: The key of a scope for the names in its client's certificate
#: (`app.http.tls.names_of`).
NAMES = "popgate.certificate"
#: A mark in a scope: another process of the server writes the answer.
RELAYED = "popgate.relayed"
#: A mark in the message that a client has disconnected: its request was complete.
WHOLE = "popgate.whole"
#: The key of a scope for the `Key` that admitted its request.
HOLDER = "popgate.key"


class ClientGone(Exception):
    """The client has disconnected, so the answer is dropped.

    `is_whole` is true if its request was complete.
    """

    def __init__(self, *, is_whole: bool = False) -> None:
        super().__init__()
        self.is_whole = is_whole


async def send_head(send: Send, answer: Response | ErrorResponse) -> None:
    head = {"status": answer.status, "headers": answer.headers}
    await send({"type": "http.response.start", **head})


async def send_response(send: Send, response: Response) -> None:
    await send_head(send, response)
    parts = (response.body,) if response.nbytes <= JOIN_BELOW else response.parts
    for part in parts[:-1]:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": parts[-1]})


async def send_error(send: Send, error: ErrorResponse) -> None:
    await send_head(send, error)
    await send({"type": "http.response.body", "body": error.body})
