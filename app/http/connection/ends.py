"""`Ends`: both ends of a connection."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl

from app.http.tls import names_of


class Ends(NamedTuple):
    """The server's address and the client's, the scheme, and the names in the client's
    certificate.
    """

    server: tuple[str, int | None] | None
    client: tuple[str, int] | None
    scheme: str
    names: tuple[str, ...]

    @property
    def address(self) -> str:
        """Return the client's address; empty if it is unknown, as on Unix sockets."""
        return str(self.client[0]) if self.client else ""


def ends_of(transport: asyncio.Transport) -> Ends:
    """Return the ends of a new connection."""
    certificate = transport.get_extra_info("peercert")
    return Ends(
        get_local_addr(transport),
        get_remote_addr(transport),
        "https" if is_ssl(transport) else "http",
        names_of(certificate) if certificate else (),
    )


class Peer(Protocol):
    """The part of a connection (protocol.py) that the scope of a request needs."""

    base: str
    is_bare: bool
    ends: Ends

    def client_of(self, headers: Mapping[bytes, bytes]) -> str:
        """Return the address of the client that sends these headers."""
