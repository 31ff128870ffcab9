"""`Exchange`: a call on a connection, which is answered without ASGI."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final, Protocol

from uvicorn.server import ServerState

from app.codec.chunks import JOIN_BELOW
from app.codec.messages import Header, Refusal, Response
from app.errors import error_body
from app.http.connection.ends import Ends
from app.http.connection.response_framing import CLOSE_HEADER, STATUS_LINE
from app.observe.answers import GONE
from app.serving.call import Call
from app.serving.service import Service
from app.serving.transfer_memory import Share
from engine import Buffer

#: The answer if memory is missing for a better one.
_BODY: Final = error_body(
    "the server has no memory left for this answer", "internal_error"
)
_NO_ANSWER: Final = (
    b"HTTP/1.1 500 Internal Server Error\r\ncontent-type: application/json\r\n"
    b"connection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
)


class CommonHead:
    """The headers of every answer, as bytes; uvicorn renews them every second."""

    __slots__ = ("headers", "lines")

    def __init__(self) -> None:
        self.headers: list[Header] | None = None
        self.lines = b""

    def renew(self, headers: list[Header]) -> None:
        self.headers = headers
        self.lines = b"".join(b"%b: %b\r\n" % header for header in headers)


class ExchangeConnection(Protocol):
    """The part of a connection (protocol.py) that an exchange uses."""

    transport: asyncio.Transport
    server_state: ServerState
    common: CommonHead
    base: str
    ends: Ends
    held: Share

    def client_of(self, headers: Mapping[bytes, bytes]) -> str: ...
    def on_exchange_complete(self) -> None: ...


class Exchange(Call):
    """A call that writes its answer to the connection of its request."""

    __slots__ = ("connection", "keep_alive")

    def __init__(
        self,
        service: Service,
        path: str,
        url_path: str,
        headers: Mapping[bytes, bytes],
        connection: ExchangeConnection,
        keep_alive: bool,
    ) -> None:
        # `super` would make one more object for every request.
        Call.__init__(self, service, path, headers, None, url_path)
        self.connection = connection
        self.keep_alive = keep_alive

    def client(self) -> str:
        return self.connection.client_of(self.headers)

    def wire(self) -> tuple[str, str]:
        return self.connection.ends.scheme, "1.1"

    def count_body(self, size: int) -> None:
        self.connection.held.add(size)

    def be_last(self) -> None:
        """Close the connection after this answer."""
        self.keep_alive = False

    def drop(self) -> None:
        """Drop the request: its body is incomplete, and it has been answered."""
        self.body = []
        self.response_complete = True

    def respond(self, response: Response | None) -> None:
        connection = self.connection
        transport = connection.transport
        if transport.is_closing():
            self._count(GONE, "cancelled")
        else:
            if response is not None and response.status == 200:
                answers, key = self.service.answers, self.key
                cell = answers.succeeded.get(key)
                if cell is None:
                    cell = answers.of_success(key)
                answers.cells[cell] += 1
            elif isinstance(response, Refusal):
                self._count(response.status, response.code)
            else:
                self._count(500, "internal_error")
            common, headers = connection.common, connection.server_state.default_headers
            if headers is not common.headers:
                common.renew(headers)
            if response is None:
                transport.write(_NO_ANSWER)
                transport.close()
                return
            says_close = not self.keep_alive and CLOSE_HEADER not in headers
            try:
                pieces: list[Buffer] = [
                    STATUS_LINE[response.status],
                    common.lines,
                    response.lines,
                    b"connection: close\r\n" if says_close else b"",
                    b"x-request-id: ",
                    self.request_id,
                    b"\r\n\r\n",
                ]
                if response.nbytes <= JOIN_BELOW:
                    pieces += response.parts
                    transport.write(b"".join(pieces))
                else:
                    # One system call sends all parts. A small write of its own would
                    # wake the client early.
                    transport.writelines([b"".join(pieces), *response.parts])
                if not self.keep_alive:
                    transport.close()
                connection.on_exchange_complete()
            except Exception:
                # An unknown part of the answer has been sent.
                transport.abort()
                raise
        if self.sampled is not None:
            self.sent()

    def _count(self, status: int, code: str) -> None:
        answers = self.service.answers
        answers.count("infer", status, code, answers.name_of(self.key))
