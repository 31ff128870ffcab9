"""Stalls of a connection: request bodies that stop, and answers the client does not
read.

A TLS transport does not count bytes that it has handed to the transport below. It
closes only after the client has agreed, and a client that reads nothing never agrees.
The kernel counts the bytes that it holds for the client and the acknowledged ones.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Any, Final

# The offset of the acknowledged bytes in Linux's `struct tcp_info`.
_ACKED_AT: Final = 120
_ACKED = struct.Struct("=Q")
_COUNT = struct.Struct("i")


class Stall:
    """Progress of the body that a connection receives, checked every few seconds.

    The receiver counts the bytes anyway, so the check costs a request nothing.
    """

    __slots__ = ("_arrived", "_request", "_since")

    def __init__(self) -> None:
        self._request: object = None
        self._arrived = 0
        self._since = 0.0

    def stalled_for(self, request: object, arrived: int, now: float) -> float:
        """Return the seconds since a byte of this request's body last arrived.

        `arrived` is any number that changes when bytes arrive.
        """
        if request is not self._request or arrived != self._arrived:
            self._request, self._arrived, self._since = request, arrived, now
        return now - self._since

    def forget(self) -> None:
        """Note that no body is being received."""
        self._request = None

    def __repr__(self) -> str:
        return f"<Stall, {self._arrived} when last seen>"


def is_all_taken(transport: asyncio.Transport) -> bool:
    """Return whether all bytes written before this turn of the loop have left."""
    return not transport.get_write_buffer_size() and not _held(_socket_of(transport))


def acknowledged(transport: asyncio.Transport) -> int:
    """Return a number that changes when the client reads something."""
    sock = _socket_of(transport)
    if sock is None:
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        found: int = _ACKED.unpack_from(info, _ACKED_AT)[0]
    except (OSError, ValueError, struct.error):  # a Unix socket, or an old kernel
        return _held(sock) + transport.get_write_buffer_size()
    return found


def has_unread(transport: asyncio.Transport) -> bool:
    """Return whether the client has sent bytes that the server has not read.

    A server checks its clocks even while it has paused reading. A client is not to
    blame for what the server has not read.
    """
    return bool(_waiting(_socket_of(transport), termios.FIONREAD))


def _held(sock: Any) -> int:
    """Return the number of bytes that the kernel holds for the peer."""
    return _waiting(sock, termios.TIOCOUTQ)


def _waiting(sock: Any, request: int) -> int:
    """Return the number of bytes that an `ioctl` request finds in a socket's buffer."""
    if sock is None:
        return 0
    try:
        count = fcntl.ioctl(sock.fileno(), request, bytes(_COUNT.size))
    except (OSError, ValueError):  # the socket is closed
        return 0
    found: int = _COUNT.unpack(count)[0]
    return found


def _socket_of(transport: asyncio.Transport) -> Any:
    """Return the socket below a transport; None after it has closed. uvloop has its own
    kind of socket object.
    """
    return transport.get_extra_info("socket")
