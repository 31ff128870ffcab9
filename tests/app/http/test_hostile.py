"""Clients that mean harm: each gets a bounded refusal, and others are answered.

`tests/docs/attacks.toml` names the attack of docs/how-to/secure.md that each shows.
"""

from __future__ import annotations

import gzip
import os
import resource
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
import trustme

from app.config.keys import digest_of
from tests.app.http.connection.test_protocol import Wire, expected, request
from tests.app.served import Serve, ServedGateway
from tests.engine import models
from tests.support import WAIT, until

CONNECTIONS = 2000
MIB = 1 << 20
INFER = b"POST /v1/models/affine/infer HTTP/1.1\r\nHost: x\r\n"
ROW = [[1.0, 2.0, 3.0, 4.0]]


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> ServedGateway:
    options = ("--max-body-size", "64KiB", "--upload-timeout", "0.2")
    return serve(lambda root: models.affine(root / "affine.popef"), *options)


def connected(gateway: ServedGateway) -> socket.socket:
    where = urlsplit(gateway.url)
    return socket.create_connection((where.hostname, where.port), WAIT)


def answer(gateway: ServedGateway, *pieces: bytes, ends: bool = False) -> bytes:
    """All that comes until the server closes the connection."""
    with connected(gateway) as wire:
        try:
            for piece in pieces:
                wire.sendall(piece)
            if ends:
                wire.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it was refused before
        got = b""
        try:
            while piece := wire.recv(1 << 16):
                got += piece
        except ConnectionResetError:
            pass  # with bytes of ours unread
        return got


def statuses(answers: bytes) -> list[int]:
    return [int(each[:3]) for each in answers.split(b"HTTP/1.1 ")[1:]]


def descriptors(gateway: ServedGateway) -> int:
    return len(os.listdir(f"/proc/{gateway.process.pid}/fd"))


def memory(gateway: ServedGateway) -> int:
    """Bytes that the server has of its own."""
    pages = Path(f"/proc/{gateway.process.pid}/statm").read_text().split()
    return (int(pages[1]) - int(pages[2])) * resource.getpagesize()


@pytest.fixture(autouse=True)
def unharmed(gateway: ServedGateway) -> Iterator[None]:
    """Afterwards others are answered, and nothing is held."""
    before = descriptors(gateway)
    yield
    assert len(gateway.infer("affine", input=ROW)["output"]) == 4
    until(lambda: descriptors(gateway) <= before + 1)  # the client's own, kept


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (INFER + b"Content-Length: 100\r\n\r\n{}", 408),
        (INFER + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n{}", 400),
        (INFER + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n{}", 400),
        (INFER + b"Content-Length: -1\r\n\r\n{}", 400),
        (INFER + b"Content-Length: 99999999999999999999\r\n\r\n{}", 400),
        (INFER + b"Content-Length: 999999999999\r\n\r\n{}", 413),
    ],
)
def test_lengths_that_lie(gateway: ServedGateway, sent: bytes, status: int) -> None:
    """More than comes, two, one that is none, more than there may be."""
    assert statuses(answer(gateway, sent)) == [status]


def test_what_follows_too_short_a_length_is_no_request(gateway: ServedGateway) -> None:
    """Smuggling: what is behind the stated end is taken for what it is."""
    sent = INFER + b"Content-Length: 2\r\n\r\n{}garbage\r\n\r\n"
    assert statuses(answer(gateway, sent)) == [400, 400]


@pytest.mark.parametrize("ends", [True, False])
def test_half_a_connection(gateway: ServedGateway, ends: bool) -> None:
    """Its other half is closed, or nobody is there, in the middle of a body."""
    sent = INFER + b"Content-Length: 100\r\n\r\n{}"
    if ends:
        assert statuses(answer(gateway, sent, ends=True)) in ([], [408])
        return
    reset = b"\1\0\0\0\0\0\0\0"  # closing it sends nothing but a reset
    for _ in range(100):
        with connected(gateway) as wire:
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
            wire.sendall(sent)


CHUNKED = INFER + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("piece", "times", "status"),
    [
        (b"400\r\n" + b" " * 1024 + b"\r\n", 1024, 413),
        (b"1\r\n \r\n", 200_000, 413),
        (b"1;" + b"e" * 4096, 1024, 431),
        (b"FFFFFFFFFFFFFFFFF\r\n", 1, 400),
        (b"-1\r\n", 1, 400),
    ],
)
def test_chunks_without_end(
    gateway: ServedGateway, piece: bytes, times: int, status: int
) -> None:
    before = memory(gateway)
    got = statuses(answer(gateway, CHUNKED, piece * times))
    assert got in ([status], [])  # a reset may take the answer away
    assert memory(gateway) - before < 16 * MIB


def test_a_compressed_bomb(gateway: ServedGateway) -> None:
    """A thousand times of what came, of which no more than allowed is ever there."""
    bomb = gzip.compress(bytes(32 * MIB), 9)
    assert len(bomb) < 64 << 10
    before = memory(gateway)
    url = "/v1/models/affine/infer"
    headers = {"content-encoding": "gzip", "content-type": "application/json"}
    for _ in range(10):
        refused = gateway.client.post(url, content=bomb, headers=headers)
        assert refused.status_code == 413
    assert memory(gateway) - before < 16 * MIB


def test_two_thousand_connections(gateway: ServedGateway) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 500
    if hard < wanted:
        pytest.skip(f"this process may open no more than {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    before = memory(gateway)
    with ExitStack() as stack:
        held = [stack.enter_context(connected(gateway)) for _ in range(CONNECTIONS)]
        for number, wire in enumerate(held):
            if number % 2:
                wire.sendall(b"POST /v1/models/affine/in")
        until(lambda: descriptors(gateway) >= CONNECTIONS)
        assert len(gateway.infer("affine", input=ROW)["output"]) == 4
        assert memory(gateway) - before < CONNECTIONS * 64 * 1024


def test_more_connections_than_there_may_be(tmp_path: Path) -> None:
    """Those there are go on; of others, health checks and management are answered."""
    models.affine(tmp_path / "affine.popef")
    options = ("--max-connections", "4", "--api-key", "root")
    with ServedGateway(tmp_path, *options) as gateway:
        gateway.wait_ready().client.close()
        live = b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
        listing = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"
        last = listing[:-2] + b"Connection: close\r\n\r\n"
        unload = (
            b"POST /v1/models/affine/unload HTTP/1.1\r\nHost: x\r\n"
            b"X-API-Key: %b\r\nContent-Length: 0\r\n\r\n"
        )
        assert statuses(answer(gateway, last)) == [200]
        with ExitStack() as stack:
            held = [stack.enter_context(Wire(gateway)) for _ in range(4)]
            for wire in held:
                wire.send(request(1))
                assert wire.output() == expected(1)
            for sent in (INFER + b"Content-Length: 2\r\n\r\n{}", listing, live[:20]):
                got = answer(gateway, sent)
                assert statuses(got) == ([408] if sent == live[:20] else [503])
                assert (b"too_many_connections" in got) == (sent != live[:20])
            # One answer each, whatever is asked behind it; and none for silence.
            assert statuses(answer(gateway, live + live)) == [200]
            assert statuses(answer(gateway, unload % b"wrong")) == [401]
            assert answer(gateway) == b""
            crowd = [stack.enter_context(connected(gateway)) for _ in range(70)]
            until(lambda: all(_is_closed(wire) for wire in crowd))
            for wire in held:
                wire.send(request(2))
                assert wire.output() == expected(2)
            assert statuses(answer(gateway, unload % b"root")) == [200]
        until(lambda: statuses(answer(gateway, last)) == [200])


def test_wrong_keys_in_a_loop(tmp_path: Path) -> None:
    """Each is refused, none is remembered, and the right one is taken as before."""
    models.affine(tmp_path / "affine.popef")
    keys = tmp_path / "keys.toml"
    keys.write_text(f"[[key]]\nname = 'a'\nsha256 = '{digest_of(b'k').hex()}'\n")
    authority = trustme.CA()
    pem = tmp_path / "server.pem"
    issued = authority.issue_cert("127.0.0.1")
    issued.private_key_and_cert_chain_pem.write_to_path(str(pem))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    options = ("--keys", str(keys), "--tls-cert", str(pem), "--header-timeout", "0.3")
    with ServedGateway(tmp_path, *options) as gateway:
        gateway.client.close()
        gateway.client = httpx.Client(base_url=gateway.url, verify=trust, timeout=WAIT)
        gateway.wait_ready()
        right = {"x-api-key": "k"}
        url, body = "/v1/models/affine/infer", {"inputs": {"input": ROW}}
        before = memory(gateway)
        for number in range(1000):
            wrong = {"x-api-key": f"{number:0>32768}"}
            refused = gateway.client.get("/v1/models", headers=wrong)
            assert refused.status_code == 401
        assert memory(gateway) - before < 16 * MIB  # of 32
        assert gateway.client.post(url, json=body, headers=wrong).status_code == 401
        assert gateway.client.post(url, json=body, headers=right).status_code == 200
        _check_handshakes(gateway, right)


def _check_handshakes(gateway: ServedGateway, right: dict[str, str]) -> None:
    """A handshake that is not gone on with has the time of a head."""
    hello = b"\x16\x03\x01\x02\x00\x01"
    before = descriptors(gateway)
    with ExitStack() as stack:
        stalled = [stack.enter_context(connected(gateway)) for _ in range(100)]
        for number, wire in enumerate(stalled):
            wire.sendall(hello[: number % 7])
        assert gateway.client.get("/v1/models", headers=right).status_code == 200
        until(lambda: descriptors(gateway) <= before + 1)
        for wire in stalled:
            assert _is_closed(wire)
    assert gateway.client.get("/v1/models", headers=right).status_code == 200


def _is_closed(wire: socket.socket) -> bool:
    try:
        return wire.recv(100) == b""
    except ConnectionResetError:
        return True
