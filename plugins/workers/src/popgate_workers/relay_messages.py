"""Messages about a request that another process of the server answers (`relay`)."""

from __future__ import annotations

from collections.abc import Iterator

from app.http.answer_watch import ANSWERED_BY
from app.http.asgi import BARE, BASE, NAMES, Scope
from app.http.asgi import Message as AsgiMessage
from engine import Message, Receiver

#: The most bytes of a message, and of a body in one message.
MOST = 1 << 20
_MOST_BODY = 1 << 19


class RelayedRequest(Message, frozen=True):
    """A request: what other processes need of its ASGI scope.

    `base` and `is_bare` are the base path removed from its path, and whether the
    request was for that alone. `names` are those in the client's certificate.
    """

    method: str
    path: str
    raw_path: bytes
    query_string: bytes
    headers: tuple[tuple[bytes, bytes], ...]
    http_version: str
    scheme: str
    client: tuple[str, int] | None
    server: tuple[str, int | None] | None
    asgi: dict[str, str]
    root_path: str
    base: str
    is_bare: bool
    names: tuple[str, ...]

    @classmethod
    def of(cls, scope: Scope) -> RelayedRequest:
        """Return the request of a scope."""
        return cls(
            scope["method"],
            scope["path"],
            scope["raw_path"],
            scope["query_string"],
            tuple((name, value) for name, value in scope["headers"]),
            scope["http_version"],
            scope["scheme"],
            scope["client"],
            scope["server"],
            scope["asgi"],
            scope["root_path"],
            scope.get(BASE, ""),
            scope.get(BARE, False),
            tuple(scope.get(NAMES, ())),
        )

    def scope(self) -> Scope:
        """Return the scope of the request in this process."""
        scope: Scope = {
            "type": "http",
            "asgi": self.asgi,
            "http_version": self.http_version,
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "method": self.method,
            "root_path": self.root_path,
            "path": self.path,
            "raw_path": self.raw_path,
            "query_string": self.query_string,
            "headers": list(self.headers),
        }
        if self.base:
            scope[BASE] = self.base
        if self.is_bare:
            scope[BARE] = True
        if self.names:
            scope[NAMES] = self.names
        return scope


class BodyPart(Message, frozen=True):
    """A part of the body of a request or of an answer."""

    data: bytes
    has_more: bool


class ClientLeft(Message, frozen=True):
    """Ends a request whose client has disconnected.

    `is_whole` is true if all of the request had arrived.
    """

    is_whole: bool


class AnswerHead(Message, frozen=True):
    """The status and the headers of an answer.

    `answered_by` is the route that it is counted for; None: that of its path.
    """

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    answered_by: str | None


#: What an answer consists of.
Answer = AnswerHead | BodyPart

REQUEST = Receiver[RelayedRequest](RelayedRequest, most=MOST)
BODY = Receiver[BodyPart | ClientLeft](BodyPart, ClientLeft, most=MOST)
ANSWER = Receiver[Answer](AnswerHead, BodyPart, most=MOST)


def bodies(message: AsgiMessage) -> Iterator[BodyPart]:
    """Yield the body of an ASGI message in parts of a limited size."""
    data, has_more = message.get("body", b""), message.get("more_body", False)
    if isinstance(data, bytes) and len(data) <= _MOST_BODY:
        yield BodyPart(data, has_more)
        return
    view = memoryview(data).cast("B")
    for begin in range(0, max(1, len(view)), _MOST_BODY):
        end = begin + _MOST_BODY
        yield BodyPart(bytes(view[begin:end]), has_more or end < len(view))


def answers(message: AsgiMessage) -> Iterator[Answer]:
    """Yield an ASGI message of an answer as messages between processes."""
    if message["type"] == "http.response.start":
        headers = tuple((name, value) for name, value in message.get("headers", ()))
        yield AnswerHead(message["status"], headers, message.get(ANSWERED_BY))
    else:
        yield from bodies(message)


def asgi_of(answer: Answer) -> AsgiMessage:
    """Return a part of an answer as an ASGI message."""
    if isinstance(answer, AnswerHead):
        start: AsgiMessage = {
            "type": "http.response.start",
            "status": answer.status,
            "headers": list(answer.headers),
        }
        if answer.answered_by is not None:
            start[ANSWERED_BY] = answer.answered_by
        return start
    return {
        "type": "http.response.body",
        "body": answer.data,
        "more_body": answer.has_more,
    }
