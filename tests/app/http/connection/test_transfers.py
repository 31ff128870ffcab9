"""Clients that do not take their answers, or send more than there is room for."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from app.errors import TransferMemoryFull
from app.serving.transfer_memory import Share, TransferMemory, half_of_memory
from tests.app.fixtures import serving
from tests.app.http.connection.test_protocol import WAIT, Wire, expected, request, slow
from tests.app.served import Serve, ServedGateway, memory_of
from tests.engine import models

MIB = 1 << 20
ROWS = 64  # of 256 KiB


def fill(root: Path) -> None:
    models.affine(root / "affine.popef")
    models.affine(root / "wide.popef", width=65536)
    models.slow(root / "slow.popef")


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Gateways that end with the test."""
    with serving(tmp_path_factory) as start:
        yield start


class Deaf(Wire):
    """A client that reads little: its kernel takes hardly anything for it."""

    def __init__(self, gateway: ServedGateway) -> None:
        url = gateway.client.base_url
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(WAIT)
        self.socket.connect((url.host, url.port))
        self.stream = self.socket.makefile("rb")

    def rest(self) -> int:
        """Bytes of an answer that are still to be had."""
        size = 0
        with contextlib.suppress(ConnectionError):
            while piece := self.stream.read1(MIB):
                size += len(piece)
        return size


def open_files(gateway: ServedGateway) -> int:
    return len(os.listdir(f"/proc/{gateway.process.pid}/fd"))


def big(*extra: str, path: str = "/v2/models/wide/infer") -> bytes:
    body = np.ones((ROWS, 65536), np.float32).tobytes()
    item: dict[str, object] = {
        "name": "input",
        "shape": [ROWS, 65536],
        "datatype": "FP32",
    }
    item |= {"parameters": {"binary_data_size": len(body)}}
    asked = {"inputs": [item], "parameters": {"binary_data_output": True}}
    header = json.dumps(asked).encode()
    head = [
        f"POST {path} HTTP/1.1",
        "Host: x",
        f"Inference-Header-Content-Length: {len(header)}",
        f"Content-Length: {len(header) + len(body)}",
        *extra,
    ]
    return "\r\n".join([*head, "", ""]).encode() + header + body


def test_who_takes_nothing_of_an_answer_is_disconnected(serve: Serve) -> None:
    gateway = serve(fill, "--send-timeout", "0.5")
    assert gateway.infer("affine", input=[[1.0] * 4])
    before = open_files(gateway)  # that connection is one of them, and stays
    with Deaf(gateway) as short, Deaf(gateway) as asgi, Wire(gateway) as honest:
        short.send(big())
        asgi.send(big("Accept-Encoding: gzip;q=0.0, identity"))
        honest.send(big())
        status, _, body = honest.answer()
        assert status == 200
        assert len(body) > ROWS * 65536 * 4
        honest.send(request(1))
        assert honest.output() == expected(1)
        for deaf in (short, asgi):
            assert b" 200 " in deaf.stream.readline()
        end = time.monotonic() + WAIT
        while open_files(gateway) > before + 1:
            assert time.monotonic() < end, "they are still connected"
        for deaf in (short, asgi):
            assert deaf.rest() < len(body)


def test_all_answers_that_nobody_reads_have_a_bound(serve: Serve) -> None:
    limit = 48 * MIB
    gateway = serve(fill, "--send-timeout", "0", "--transfer-memory", str(limit))
    with Wire(gateway) as wire:  # so that the rings are there
        wire.send(big())
        assert wire.answer()[0] == 200
    before = memory_of(gateway)
    deaf = [Deaf(gateway) for _ in range(12)]
    refused = 0
    for client in deaf:
        client.send(big())
        refused += b" 503 " in client.stream.readline()
    assert 0 < refused < len(deaf)
    assert memory_of(gateway) - before < 4 * limit
    with Wire(gateway) as wire:
        wire.send(request(1))  # a small one has its place
        assert wire.output() == expected(1)
        wire.send(big())
        status, headers, body = wire.answer()
        assert (status, json.loads(body)["code"]) == (503, "transfer_memory_full")
        assert headers["retry-after"] == "1"
    for client in deaf:
        client.__exit__()
    served(gateway)


def served(gateway: ServedGateway) -> None:
    """A large request is answered, as soon as there is room again."""
    for _ in range(1000):
        with Wire(gateway) as wire:
            wire.send(big())
            if wire.answer()[0] == 200:
                return
    raise AssertionError("there is no room again")


@pytest.mark.parametrize("framing", ["sized", "chunked"])
def test_all_bodies_that_do_not_end_have_a_bound(serve: Serve, framing: str) -> None:
    gateway = serve(fill, "--transfer-memory", "48MiB")
    part = bytes(20 * MIB)
    before = memory_of(gateway)
    head = b"POST /v2/models/wide/infer HTTP/1.1\r\nHost: x\r\n"
    if framing == "sized":
        head += b"Content-Length: %d\r\n\r\n" % (200 * MIB)
    else:
        head += b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % (200 * MIB)
    senders = [Wire(gateway) for _ in range(8)]
    for sender in senders:
        # The rest of a refused body is read for a second. On a busy machine that ends
        # while the client still sends. Its answer has come by then.
        with contextlib.suppress(ConnectionError):
            sender.send(head, part)
    for _ in range(5):  # at least five of them cannot have a place
        ready = select.select([s.socket for s in senders], [], [], WAIT)[0]
        assert ready
        answered = next(s for s in senders if s.socket in ready)
        status, headers, body = answered.answer()
        assert (status, json.loads(body)["code"]) == (503, "transfer_memory_full")
        assert headers["connection"] == "close"
        assert answered.is_closed()
        senders.remove(answered)
        answered.__exit__()
    assert memory_of(gateway) - before < 150 * MIB
    with Wire(gateway) as wire:
        wire.send(request(1))
        assert wire.output() == expected(1)
    for sender in senders:
        sender.__exit__()
    served(gateway)


def test_a_request_cannot_ask_for_more_time_than_there_is(serve: Serve) -> None:
    gateway = serve(fill, "--request-timeout", "1")
    asked = [
        slow(
            b'{"inputs": {"count": 3000000}, "parameters": {"timeout": 1000000000000}}'
        ),
        slow(b'{"inputs": {"count": 3000000}}').replace(
            b"Host: x", b"Host: x\r\nX-Request-Timeout: 1000"
        ),
    ]
    for sent in asked:
        with Wire(gateway) as wire:
            wire.send(sent)
            status, _, body = wire.answer()
            assert status in (429, 504), body
            assert json.loads(body)["code"].startswith("deadline")


def test_a_share_is_counted_and_given_back() -> None:
    memory = TransferMemory(100_000)
    first, second = Share(memory), Share(memory)
    first.add(90_000)
    second.add(40_000)  # a small one has its place
    assert memory.is_full
    with pytest.raises(TransferMemoryFull):
        first.add(1)
    first.give_back()
    second.give_back()
    assert memory.held == 0
    assert TransferMemory().limit == half_of_memory() > 0
    assert "100000 bytes" in repr(memory)
    assert repr(first) == "<Share of 0 bytes>"
