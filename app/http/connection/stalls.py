"""Stalls of a connection: request bodies that stop, answers that the client leaves.

A TLS transport does not count bytes that it has handed to the transport below. It
closes only after the client has agreed, and a client that reads nothing never agrees.
The kernel counts the bytes it holds for the client, and those acknowledged.
"""

from __future__ import annotations

import asyncio
import fcntl
import socket
import struct
import termios
from typing import Any, Final

# In Linux's `struct tcp_info`: bytes that were acknowledged.
_ACKED_AT: Final = 120
_ACKED = struct.Struct("=Q")
_HELD = struct.Struct("i")


class Stall:
    """Progress of the body that a connection receives, checked every few seconds.

    The receiver counts the bytes anyway, so the check costs a request nothing.
    """

    __slots__ = ("_arrived", "_request", "_since")

    def __init__(self) -> None:
        self._request: object = None
        self._arrived = 0
        self._since = 0.0

    def stands_still(self, request: object, arrived: int, now: float) -> float:
        """Seconds for which no byte of this request's body has come, as far as seen.

        `arrived` is any number that changes when bytes come.
        """
        if request is not self._request or arrived != self._arrived:
            self._request, self._arrived, self._since = request, arrived, now
        return now - self._since

    def forget(self) -> None:
        """No body is being received."""
        self._request = None

    def __repr__(self) -> str:
        return f"<Stall, {self._arrived} when last seen>"


def is_all_taken(transport: asyncio.Transport) -> bool:
    """Returns whether nothing is left that was written before this turn of the loop."""
    return not transport.get_write_buffer_size() and not _held(_socket_of(transport))


def acknowledged(transport: asyncio.Transport) -> int:
    """A number that changes when the client takes something."""
    sock = _socket_of(transport)
    if sock is None:
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        found: int = _ACKED.unpack_from(info, _ACKED_AT)[0]
    except (OSError, ValueError, struct.error):  # a Unix socket, or an old kernel
        return _held(sock) + transport.get_write_buffer_size()
    return found


def _held(sock: Any) -> int:
    """Bytes that the kernel holds for the other end."""
    if sock is None:
        return 0
    try:
        held = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(_HELD.size))
    except (OSError, ValueError):  # it has gone
        return 0
    found: int = _HELD.unpack(held)[0]
    return found


def _socket_of(transport: asyncio.Transport) -> Any:
    """The socket below a transport, None once that has gone; uvloop has one of its own,
    which is like it."""
    return transport.get_extra_info("socket")
