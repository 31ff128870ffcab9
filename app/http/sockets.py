"""Listening sockets: how they are opened, and how they stop taking connections."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import struct
from pathlib import Path

BACKLOG = 2048
# Unsent bytes of an answer that the kernel keeps for a client that reads nothing. The
# rest waits in the server, which counts it. By default the kernel keeps four times as
# many.
UNSENT = 1 << 20

_SO_ATTACH_FILTER = 26  # Linux; the socket module has no name for it


class ListenError(Exception):
    """The server cannot listen on the address; the message tells the user why."""


def listen_tcp(
    host: str, port: int, *, shared: bool = False, option: str = "--port"
) -> socket.socket:
    """Return a listening socket; port 0 chooses a free one.

    `shared` sockets listen on one port, and the kernel spreads connections among them.
    `option` sets the port. Raises `ListenError`.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as e:  # a UnicodeError for `a..b`
        why = getattr(e, "strerror", "it is not a name of a host")
        raise ListenError(f"cannot listen on host {host!r}: {why}") from e
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if shared:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        # Accepted connections inherit the option.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        free = f"stop that one or choose another with {option} (0 takes a free one)"
        why = "ports below 1024 need root"
        raise ListenError(_explain(e, f"{host}:{port}", free, why)) from e
    listener.setblocking(False)
    return listener


def listen_unix(path: Path, *, private: bool = False) -> socket.socket:
    """Return a listening Unix socket, and replace a stale one of a dead process.

    Only the user of this process can open a `private` socket (mode 0600).

    Raises `ListenError`, also if another process listens on it. Only for a process with
    one thread: it sets the mode by the umask, so the socket has the right mode from the
    start.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket():
            _remove_stale(path)
        elif path.exists():
            raise OSError(errno.ENOTSOCK, "it is not a socket; choose another path")
        before = os.umask(0o177) if private else None
        try:
            listener.bind(str(path))
        finally:
            if before is not None:
                os.umask(before)
        listener.listen(BACKLOG)
    except OSError as e:
        listener.close()
        free = "stop that one or choose another path"
        why = "its folder, or a socket there, belongs to another user"
        raise ListenError(_explain(e, str(path), free, why)) from e
    listener.setblocking(False)
    return listener


def _remove_stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        else:
            raise OSError(errno.EADDRINUSE, "another process listens on it")


def _explain(e: OSError, address: str, free: str, denied: str) -> str:
    if e.errno == errno.EADDRINUSE:
        return f"cannot listen on {address}: it is in use by another process; {free}"
    if e.errno in (errno.EACCES, errno.EPERM):
        return f"cannot listen on {address}: not permitted ({denied})"
    if e.errno == errno.EADDRNOTAVAIL:
        why = "this machine has no such address; choose another with --host"
        return f"cannot listen on {address}: {why}"
    return f"cannot listen on {address}: {e.strerror or e}"


def refuse_new_connections(listener: socket.socket) -> None:
    """Drop further connection attempts, so that the queue of accepted ones can empty.

    Closing a listening socket resets the connections that wait in its queue, whose
    clients have sent their request already. A packet filter that accepts nothing first
    stops new ones from arriving. It exists on Linux only; elsewhere this function does
    nothing.
    """
    drop_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0), 8)
    program = struct.pack("HP", 1, ctypes.addressof(drop_all))
    if listener.family != socket.AF_UNIX:
        with contextlib.suppress(OSError):
            listener.setsockopt(socket.SOL_SOCKET, _SO_ATTACH_FILTER, program)
