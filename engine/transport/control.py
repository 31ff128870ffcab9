"""Control messages to a device process. Tensors travel elsewhere.

A device process listens on a Unix socket of the abstract namespace. The name vanishes
with its owner, so no socket file is left behind. The socket keeps message borders
(SOCK_SEQPACKET): one message is one msgpack document, with file descriptors beside it
for shared memory or an eventfd. Tensors never travel here.

Each call opens its own connection, which costs 30 µs. So a ping is answered even while
a model of gigabytes is being loaded.
"""

from __future__ import annotations

import errno
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from engine import errors
from engine.errors import (
    DeviceLost,
    EngineBug,
    EngineError,
    InvalidModel,
    OutOfMemory,
)
from engine.transport import messages
from engine.transport.held_socket import HeldSocket
from engine.transport.messages import MAX_MESSAGE, close_all
from popef_io import PopefError

#: The most bytes of a message of a session's run.
RUN_MESSAGE = 16 * 1024
_CREDENTIALS = struct.Struct("3i")
_TIMEVAL = struct.Struct("@ll")

Message = dict[str, Any]


class Watch(NamedTuple):
    """Checks the peer while it is silent. `look` is called after each `interval`
    seconds without an answer. Its exception ends the wait.
    """

    interval: float
    look: Callable[[], object]


class Document(messages.Message, frozen=True):
    """A control message, and how many descriptors are beside it."""

    content: Message
    fds: int

    def descriptors(self) -> int:
        return self.fds


CONTROL = messages.Receiver[Document](Document)
_receivers = {
    MAX_MESSAGE: CONTROL,
    RUN_MESSAGE: messages.Receiver[Document](Document, most=RUN_MESSAGE),
}


def send(sock: socket.socket, message: Message, fds: Sequence[int] = ()) -> None:
    """Send one message. Raises as `messages.send`."""
    messages.send(sock, Document(message, len(fds)), fds)


def receive(sock: socket.socket, limit: int = MAX_MESSAGE) -> tuple[Message, list[int]]:
    """Return the next message and the descriptors beside it. The caller closes them.

    `limit` is the most bytes of the message: MAX_MESSAGE or RUN_MESSAGE. Raises as
    `Receiver.receive`.
    """
    document, fds = _receivers[limit].receive(sock)
    return document.content, fds


def call(
    address: str,
    message: Message,
    fds: Sequence[int] = (),
    timeout: float | None = None,
    watch: Watch | None = None,
) -> tuple[Message, list[int]]:
    """Ask the device process at `address` and wait for its answer.

    Raises the engine error in the answer, and DeviceLost if the peer does not exist or
    disconnects. Raises TimeoutError after `timeout` seconds (None: wait for ever, or as
    long as `watch` allows).
    """
    with connect(address, timeout, watch) as sock:
        return ask(sock, message, fds, watch)


def connect(
    address: str, timeout: float | None = None, watch: Watch | None = None
) -> socket.socket:
    """Return a connection, with this timeout, to the device process at an abstract
    address.
    """
    sock = HeldSocket()
    seconds = timeout if timeout is not None else watch.interval if watch else 0.0
    try:
        # Not Python's timeout, because with that a full backlog fails at once.
        limit_blocking(sock, socket.SO_SNDTIMEO, seconds)
        while True:
            try:
                sock.connect(f"\0{address}")
                break
            except BlockingIOError:
                if timeout is not None or watch is None:
                    raise TimeoutError(f"{address} accepts no connection") from None
                watch.look()
        sock.settimeout(timeout)
        if peer_uid(sock) not in (os.getuid(), 0):
            raise DeviceLost(f"device {address} belongs to another user")
    except (ConnectionError, FileNotFoundError) as error:
        sock.close()
        raise DeviceLost(f"no device process answers at {address}") from error
    except BaseException:
        sock.close()
        raise
    return sock


def limit_blocking(sock: socket.socket, direction: int, seconds: float) -> None:
    """Make blocking operations on a socket without a timeout raise BlockingIOError
    after this time (0: never). `direction` is SO_RCVTIMEO or SO_SNDTIMEO, which applies
    to connecting too.
    """
    whole = int(seconds)
    raw = _TIMEVAL.pack(whole, int((seconds - whole) * 1e6))
    sock.setsockopt(socket.SOL_SOCKET, direction, raw)


def ask(
    sock: socket.socket,
    message: Message,
    fds: Sequence[int] = (),
    watch: Watch | None = None,
) -> tuple[Message, list[int]]:
    """Ask one question on an open connection and return the answer. Raises the errors
    of `call`.
    """
    try:
        send(sock, message, fds)
        if watch is not None:
            _await_answer(sock, watch)
        answer, answer_fds = receive(sock)
    except (ConnectionError, EOFError) as error:
        raise DeviceLost("the device process ended") from error
    if "error" in answer:
        close_all(answer_fds)
        raise to_error(answer)
    return answer, answer_fds


def _await_answer(sock: socket.socket, watch: Watch) -> None:
    """Wait until a message or the end of the connection has come. Raises TimeoutError
    after the socket's timeout.
    """
    timeout = sock.gettimeout()
    end = None if timeout is None else time.monotonic() + timeout
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while True:
        left = watch.interval if end is None else end - time.monotonic()
        if poller.poll(max(0.0, min(watch.interval, left)) * 1000):
            return
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(f"no answer within {timeout} s")
        watch.look()


class Failed(messages.Message, frozen=True):
    """An error of the engine: the name of its class, and its text."""

    error: str
    message: str

    @classmethod
    def of(cls, error: BaseException) -> Failed:
        """Return an error as a message. An error of a PopEF file becomes InvalidModel,
        because a file's damage shows only when its content is used.
        """
        if isinstance(error, PopefError):
            error = InvalidModel(str(error))
        is_full = isinstance(error, OSError) and error.errno == errno.ENOMEM
        if is_full or isinstance(error, MemoryError):  # such as no memory to map a file
            why = f"the device does not have enough memory: {error}"
            error = OutOfMemory(why.removesuffix(": "))
        if not isinstance(error, EngineError):
            return cls("EngineBug", f"{type(error).__name__}: {error}")
        return cls(type(error).__name__, str(error)[: MAX_MESSAGE // 2])

    def to_error(self) -> EngineError:
        """Return the error that the message stands for."""
        kind = getattr(errors, self.error, None)
        if not (isinstance(kind, type) and issubclass(kind, EngineError)):
            text = f"unknown error {self.error!r} from a device: {self.message}"
            return EngineBug(text)
        if kind is EngineBug:
            return EngineBug(self.message.removesuffix("; this is a bug"))
        return kind(self.message)


def from_error(error: BaseException) -> Message:
    found = Failed.of(error)
    return {"error": found.error, "message": found.message}


def to_error(message: Message) -> EngineError:
    return Failed(str(message["error"]), str(message.get("message", ""))).to_error()


def peer_uid(sock: socket.socket) -> int:
    return _peer(sock)[1]


def peer_pid(sock: socket.socket) -> int:
    return _peer(sock)[0]


def _peer(sock: socket.socket) -> tuple[int, int, int]:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(raw)
    return pid, uid, gid
