"""Connections over TLS that the server closes, and clients that say nothing to it.

Covers: app/http/connection/ending.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from app.http.connection.clocks import Patience
from app.http.connection.protocol import GatewayProtocol
from app.http.tls import Certificate
from tests.app.http.test_server import WAIT, Running, running
from tests.support import until


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@contextlib.contextmanager
def over_tls(authority: trustme.CA, folder: Path) -> Iterator[Running]:
    path = folder / "server.pem"
    issued = authority.issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(str(path))
    with running(certificate=Certificate(path)) as server:
        yield server


def connected(server: Running, authority: trustme.CA) -> ssl.SSLSocket:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    plain = socket.create_connection(("127.0.0.1", server.port), WAIT)
    return context.wrap_socket(plain, server_hostname="localhost")


def test_an_idle_connection_does_not_hold_up_the_end(
    authority: trustme.CA, tmp_path: Path
) -> None:
    with over_tls(authority, tmp_path) as server:
        with (
            connected(server, authority) as used,
            connected(server, authority) as unused,
        ):
            used.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            answer = b""
            while not answer.endswith(b"ok"):
                answer += used.recv(4096)
            server.signal()
            server.join()  # they have closed nothing, and are told so in form
            assert used.recv(1) == unused.recv(1) == b""
        assert server.server.exit_code == 0


def test_what_was_refused_is_logged_once(
    authority: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with over_tls(authority, tmp_path) as server:
        with connected(server, authority) as refused:
            server.server._header_timeout = -1.0  # which any head is too slow for
            refused.sendall(b"GARBAGE\r\n\r\n")
            assert refused.recv(1 << 16).startswith(b"HTTP/1.1 400")
            # The client keeps its end, and is let go.
            until(lambda: not server.server.server_state.connections)
        failed = [one.code for one in server.app.service.journal.failed]
    assert failed == ["bad_http"]
    assert not [m for m in caplog.messages if "SSL" in m]


def test_a_last_answer_is_waited_for_while_it_is_taken(
    authority: trustme.CA, tmp_path: Path
) -> None:
    """However often it is looked at meanwhile; not of who takes nothing of it."""
    size = 24 << 20
    look = (-1.0, 30.0, 30.0, 1e9)
    with over_tls(authority, tmp_path) as server:
        server.app.body = bytes(size)
        for takes in (True, False):
            with connected(server, authority) as slow:
                slow.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                began = len(slow.recv(1000))
                (connection,) = server.server.server_state.connections
                assert isinstance(connection, GatewayProtocol)
                until(connection.transport.is_closing)

                async def look_after(*patience: float) -> None:
                    for now in range(3):
                        connection.look_after(float(now * 100), Patience(*patience))  # noqa: B023

                def looked(*patience: float) -> None:
                    assert server.app.loop is not None
                    asyncio.run_coroutine_threadsafe(
                        look_after(*patience), server.app.loop
                    ).result(WAIT)

                looked(*look[1:])
                if takes:
                    got = began
                    while part := slow.recv(1 << 20):
                        got += len(part)
                    assert got > size
                else:
                    looked(30.0, 30.0, 99.0)
                    until(lambda: not server.server.server_state.connections)
