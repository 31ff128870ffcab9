"""ASGI over a Unix socket: a request that another process of the server answers.

Each request has its own connection. The request is sent first, then the bodies of both
sides. Each is a message (relay_messages.py) behind its length. If a side closes, it has
disconnected, like a client. The address is abstract, and only processes of the same
user are accepted. So the receiver trusts all data, including the client's address.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import secrets
import socket
import struct
from typing import TypeVar

from app.errors import ErrorResponse, HttpError
from app.http.asgi import (
    RELAYED,
    WHOLE,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
    send_error,
)
from engine import MalformedMessage, Receiver, encode_message, peer_uid
from engine import Message as ProcessMessage
from popgate_workers.relay_messages import (
    ANSWER,
    BODY,
    MOST,
    REQUEST,
    BodyPart,
    ClientLeft,
    RelayedRequest,
    answers,
    asgi_of,
    bodies,
)

logger = logging.getLogger(__name__)

_LENGTH = struct.Struct("<I")
_BACKLOG = 1024
#: Bytes of one read of data that is dropped.
_DROPPED = 1 << 16
#: Seconds between attempts to connect if the queue is full.
_QUEUE_TICK = 0.005
M = TypeVar("M", bound=ProcessMessage)


class PeerClosed(Exception):
    """The peer has closed the connection."""


async def _read(reader: asyncio.StreamReader, receiver: Receiver[M]) -> M:
    """Return the next message. Raises `PeerClosed`."""
    try:
        (size,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        if size > MOST:
            raise MalformedMessage(f"a message of {size} bytes; the limit is {MOST}")
        return receiver.decode(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, OSError):
        raise PeerClosed from None
    except MalformedMessage:
        logger.exception("a message between processes of the server")
        raise PeerClosed from None


async def _write(writer: asyncio.StreamWriter, message: ProcessMessage) -> None:
    """Send a message. Raises `PeerClosed`."""
    raw = encode_message(message, MOST)
    try:
        writer.write(_LENGTH.pack(len(raw)))
        writer.write(raw)
        await writer.drain()
    except (OSError, RuntimeError):  # uvloop raises RuntimeError
        raise PeerClosed from None


class Relay:
    """An application that relays its requests to `address`."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            sock = await _connect(self._address)
            reader, writer = await asyncio.open_unix_connection(sock=sock)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                await send_error(send, _no_descriptor())
            else:
                await send_error(send, _unreachable())
            return
        upwards = asyncio.create_task(_pass_on(scope, receive, writer))
        started = False
        try:
            while True:
                answer = await _read(reader, ANSWER)
                started = True
                await send(asgi_of(answer))
                if isinstance(answer, BodyPart) and not answer.has_more:
                    return
        except PeerClosed:
            if upwards.done() and upwards.result():
                return  # closed because the client disconnected
            if started:
                raise  # half an answer was sent: close the connection
            await send_error(send, _unreachable())
        finally:
            upwards.cancel()
            writer.close()

    def __repr__(self) -> str:
        return f"<Relay to {self._address}>"


async def _connect(address: str) -> socket.socket:
    """Connect to an abstract address, which uvloop does not support. Raises OSError."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    try:
        while True:
            try:
                sock.connect(f"\0{address}")
                return sock
            except BlockingIOError:  # the queue is full
                await asyncio.sleep(_QUEUE_TICK)
    except BaseException:
        sock.close()
        raise


def _unreachable() -> ErrorResponse:
    msg = "the process that was answering this request has ended; retry"
    return ErrorResponse.of(HttpError(503, msg, "supervisor_gone"), close=True)


def _no_descriptor() -> ErrorResponse:
    msg = "this process can open no file for the request; retry with fewer connections"
    retry = ((b"retry-after", b"1"),)
    return ErrorResponse.of(
        HttpError(503, msg, "too_many_connections", retry), close=True
    )


async def _pass_on(
    scope: Scope, receive: Receive, writer: asyncio.StreamWriter
) -> bool:
    """Send the request and its body. Return whether the client disconnected."""
    with contextlib.suppress(PeerClosed):
        await _write(writer, RelayedRequest.of(scope))
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                with contextlib.suppress(PeerClosed):
                    await _write(writer, ClientLeft(message.get(WHOLE, False)))
                writer.close()
                return True
            for body in bodies(message):
                await _write(writer, body)
    return False


class RelayServer:
    """The receiving end: `app` answers requests relayed by processes of the
    same user.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        #: The abstract address where it listens; no file exists.
        self.address = f"popgate-{os.getpid()}-{secrets.token_hex(8)}"
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(f"\0{self.address}")
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Begin to accept connections, in the running loop."""
        self._server = await asyncio.start_unix_server(
            self._serve, sock=self._listener, backlog=_BACKLOG
        )

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            sock: socket.socket = writer.get_extra_info("socket")
            if peer_uid(sock) not in (os.getuid(), 0):
                return
            scope = (await _read(reader, REQUEST)).scope()
            scope[RELAYED] = True
            receiver = _Receiver(reader)
            await self._app(scope, receiver.receive, _Sender(writer).send)
            await receiver.drop_rest()
        except (PeerClosed, OSError):
            pass  # the client has gone
        except Exception:
            logger.exception("a request that was relayed")
        finally:
            writer.close()

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self._listener.close()

    def __repr__(self) -> str:
        return f"<RelayServer at {self.address}>"


class _Receiver:
    """Passes messages of the client to an application."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader
        # A stream allows only one reading task. The task that waits for the client to
        # leave may be cancelled when the application returns, and it ends a moment
        # later.
        self._turn = asyncio.Lock()

    async def receive(self) -> Message:
        try:
            async with self._turn:
                body = await _read(self._reader, BODY)
        except PeerClosed:
            return {"type": "http.disconnect"}
        if isinstance(body, ClientLeft):
            return {"type": "http.disconnect", WHOLE: body.is_whole}
        return {"type": "http.request", "body": body.data, "more_body": body.has_more}

    async def drop_rest(self) -> None:
        """Wait until the peer has closed, which it does after it has the answer.

        Closing with unread bytes of a body would destroy the answer on its way.
        """
        async with self._turn:
            while await self._reader.read(_DROPPED):
                pass


class _Sender:
    """Sends messages to the client, and drops them after it has disconnected."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer

    async def send(self, message: Message) -> None:
        with contextlib.suppress(PeerClosed):
            for answer in answers(message):
                await _write(self._writer, answer)
