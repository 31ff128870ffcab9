"""Both ends of a connection, as its transport knows them."""

from __future__ import annotations

import asyncio
import socket

from app.http.connection.ends import Ends, ends_of


async def connected(family: int) -> Ends:
    """Return the ends of a connection that a client made."""
    found: asyncio.Future[Ends] = asyncio.get_running_loop().create_future()

    class Accepting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            found.set_result(ends_of(transport))
            transport.close()

    loop = asyncio.get_running_loop()
    if family == socket.AF_UNIX:
        ours, theirs = socket.socketpair()
        with theirs:
            await loop.connect_accepted_socket(Accepting, ours)
            return await found
    server = await loop.create_server(Accepting, "127.0.0.1", 0)
    async with server:
        with socket.create_connection(server.sockets[0].getsockname()):
            return await found


def test_over_tcp_both_have_an_address() -> None:
    ends = asyncio.run(connected(socket.AF_INET))
    assert ends.server is not None
    assert ends.client is not None
    assert (ends.address, ends.scheme, ends.names) == ("127.0.0.1", "http", ())


def test_over_a_unix_socket_the_client_has_none() -> None:
    ends = asyncio.run(connected(socket.AF_UNIX))
    assert (ends.client, ends.address) == (None, "")
