"""The exclusive claim on a device, by a lock that the kernel frees.

A claim is a Unix socket bound to an abstract name. Binding the same name twice fails.
The name is free again when the last process that holds the socket has ended in any way.
Forked children do not hold it. Nothing is left in the file system. The name contains
the user, so users do not lock each other out, and the pool (`POPGATE_POOL`, default
"default").
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from pathlib import Path

from engine.transport.held_socket import HeldSocket

#: Devices outside the pool. They are not claimed.
MODEL_KIND = "model"
#: Processes of Python models. They are units of the pool if it has units of this kind,
#: else they are outside the pool.
PYTHON_KIND = "python"


def address_of(unit: str) -> str:
    """Return the abstract address of a unit ("cpu:0") in this user's pool."""
    pool = os.environ.get("POPGATE_POOL", "default")
    return f"popgate/{os.getuid()}/{pool[:40]}/{unit}"


def try_claim(unit: str) -> socket.socket | None:
    """Claim a unit. Return None if another process holds it."""
    sock = HeldSocket()
    try:
        sock.bind(f"\0{address_of(unit)}/lock")
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return sock


def claimed_units(units: Sequence[str]) -> frozenset[str]:
    """Return the `units` that some process holds now. Claims none of them."""
    names = _bound_names()
    return frozenset(u for u in units if f"{address_of(u)}/lock" in names)


def model_devices() -> int:
    """Return the number of devices outside the pool that any process has."""
    kinds = tuple(address_of(f"{kind}:") for kind in (MODEL_KIND, PYTHON_KIND))
    names = (name for name in _bound_names() if not name.endswith("/lock"))
    return sum(name.startswith(kinds) for name in names)


def _bound_names() -> frozenset[str]:
    """Return the abstract names in use; empty if the kernel does not show them."""
    try:
        table = Path("/proc/net/unix").read_text()
    except OSError:
        return frozenset()
    lines = table.splitlines()
    return frozenset(line.rpartition("@")[2] for line in lines if "@" in line)
