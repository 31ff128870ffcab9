"""Control messages to a device process. Tensors travel elsewhere.

A device process listens on a Unix socket of the abstract namespace. The name vanishes
with its owner, so no socket file is left behind. The socket keeps message borders
(SOCK_SEQPACKET). engine/transport/device_messages.py has the kinds of messages, and the
descriptors beside them. Tensors never travel here.

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
from functools import cache
from typing import NamedTuple, TypeVar

from engine.errors import DeviceLost
from engine.transport import messages
from engine.transport.error_report import ErrorReport
from engine.transport.held_socket import HeldSocket
from engine.transport.messages import DescriptorsLost, Message, Receiver, close_all

_CREDENTIALS = struct.Struct("3i")
_TIMEVAL = struct.Struct("@ll")

A = TypeVar("A", bound=Message)


class LivenessCheck(NamedTuple):
    """Checks the peer while it is silent. `check` is called after each `interval`
    seconds without an answer. Its exception ends the wait.
    """

    interval: float
    check: Callable[[], object]


@cache
def answers_of(kind: type[A]) -> Receiver[A | ErrorReport]:
    """Return the receiver of answers of this kind, or of an error."""
    return Receiver[A | ErrorReport](kind, ErrorReport)


def call(
    address: str,
    message: Message,
    kind: type[A],
    fds: Sequence[int] = (),
    timeout: float | None = None,
    liveness: LivenessCheck | None = None,
) -> tuple[A, list[int]]:
    """Ask the device process at `address` and wait for its answer, which is a `kind`.

    Raises the engine error in the answer, and DeviceLost if the peer does not exist or
    disconnects. Raises TimeoutError after `timeout` seconds (None: wait for ever, or as
    long as `liveness` allows).
    """
    with connect(address, timeout, liveness) as sock:
        return ask(sock, message, kind, fds, liveness)


def connect(
    address: str, timeout: float | None = None, liveness: LivenessCheck | None = None
) -> socket.socket:
    """Return a connection, with this timeout, to the device process at an abstract
    address.
    """
    if timeout is not None:  # 0 would be no timeout
        timeout = min(1e9, max(1e-6, timeout))
    sock = HeldSocket()
    seconds = timeout if timeout is not None else liveness.interval if liveness else 0.0
    try:
        # Not Python's timeout, because with that a full backlog fails at once.
        limit_blocking(sock, socket.SO_SNDTIMEO, seconds)
        while True:
            try:
                sock.connect(f"\0{address}")
                break
            except BlockingIOError:
                if timeout is not None or liveness is None:
                    raise TimeoutError(f"{address} accepts no connection") from None
                liveness.check()
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
    kind: type[A],
    fds: Sequence[int] = (),
    liveness: LivenessCheck | None = None,
) -> tuple[A, list[int]]:
    """Ask one question on an open connection and return the answer, which is a `kind`.
    Raises the errors of `call`.
    """
    try:
        messages.send(sock, message, fds)
        if liveness is not None:
            _await_answer(sock, liveness)
        answer, answer_fds = answers_of(kind).receive(sock)
    except (ConnectionError, EOFError) as error:
        raise DeviceLost("the device process ended") from error
    except DescriptorsLost as lost:
        raise OSError(errno.EMFILE, str(lost)) from None
    if isinstance(answer, ErrorReport):
        close_all(answer_fds)
        raise answer.to_error()
    return answer, answer_fds


def _await_answer(sock: socket.socket, liveness: LivenessCheck) -> None:
    """Wait until a message or the end of the connection has come. Raises TimeoutError
    after the socket's timeout.
    """
    timeout = sock.gettimeout()
    end = None if timeout is None else time.monotonic() + timeout
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    while True:
        left = liveness.interval if end is None else end - time.monotonic()
        if poller.poll(max(0.0, min(liveness.interval, left)) * 1000):
            return
        if end is not None and time.monotonic() >= end:
            raise TimeoutError(f"no answer within {timeout} s")
        liveness.check()


def peer_uid(sock: socket.socket) -> int:
    return _peer(sock)[1]


def peer_pid(sock: socket.socket) -> int:
    return _peer(sock)[0]


def _peer(sock: socket.socket) -> tuple[int, ...]:
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return _CREDENTIALS.unpack(raw)
