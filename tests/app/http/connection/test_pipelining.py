"""Clients that send on before they have their answer, honest ones and others."""

from __future__ import annotations

import json
import re
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.app.http.connection.test_protocol import Wire, expected, large, request, slow
from tests.app.served import Serve, ServedGateway, memory_of
from tests.engine import models
from tests.support import until

MIB = 1 << 20
LIVE = b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
CHUNKED = (
    b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
    b"\r\n"
)
LISTING = CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"


def fill(root: Path) -> None:
    models.affine(root / "affine.popef")
    models.affine(root / "wide.popef", width=65536)
    models.slow(root / "slow.popef")


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> Iterator[ServedGateway]:
    served = serve(fill, "--upload-timeout", "0.5")
    yield served
    assert "Traceback" not in served.output


def taking(count: int, *, seconds: float = 0.0) -> bytes:
    """A request that runs for so many steps, or until its deadline."""
    parameters = {"timeout": int(seconds * 1e6)} if seconds else {}
    document = {"inputs": {"count": count}, "parameters": parameters}
    return slow(json.dumps(document).encode())


BAD = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "no version that there is": b"GET / HTTP/9.9\r\n\r\n",
    "a length that is none": b"POST / HTTP/1.1\r\nContent-Length: x\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
    "a bare line feed": b"GET / HTTP/1.1\nHost: x\n\n",
    "a long head": b"GET / HTTP/1.1\r\nX: " + b"y" * 70_000,
    "a proxy's": b"CONNECT x:1 HTTP/1.1\r\n\r\n",
    "a broken chunk": CHUNKED + b"zz\r\n",
}


@pytest.mark.parametrize("what", BAD)
@pytest.mark.parametrize("step", [1 << 20, 50])
@pytest.mark.parametrize(
    "before", [taking(300), LIVE, CHUNKED + b"2\r\n{}\r\n0\r\n\r\n"]
)
def test_what_is_valid_is_answered_before_the_error_that_follows(
    gateway: ServedGateway, what: str, step: int, before: bytes
) -> None:
    stream = before + request(2) + BAD[what]
    with Wire(gateway) as wire:
        wire.send(*(stream[at : at + step] for at in range(0, len(stream), step)))
        assert wire.answer()[0] == 200
        assert wire.output() == expected(2)
        status, headers, _ = wire.answer()
        assert 400 <= status < 500
        assert headers["connection"] == "close"
        assert wire.is_closed()


def test_any_request_may_follow_any_other(gateway: ServedGateway) -> None:
    chunked = CHUNKED + b"1\r\n{\r\n1\r\n}\r\n0\r\nX-Trailer: y\r\n\r\n"
    stream = request(1) + chunked + LIVE + large(2) + request(3) + chunked + request(4)
    for step in (1 << 20, 70_001, 997):
        with Wire(gateway) as wire:
            wire.send(*(stream[at : at + step] for at in range(0, len(stream), step)))
            assert wire.output() == expected(1)
            for _ in range(3):
                assert wire.answer()[0] == 200
            assert wire.output() == expected(3)
            assert wire.answer()[0] == 200
            assert wire.output() == expected(4)


@pytest.mark.parametrize("cut", range(1, 5))
def test_the_end_of_a_message_may_be_cut_anywhere(
    gateway: ServedGateway, cut: int
) -> None:
    with Wire(gateway) as wire:
        for first in (LIVE, LISTING):
            for _ in range(5):
                wire.send(first[:-cut], first[-cut:] + request(1) + LIVE)
                assert wire.answer()[0] == 200
                assert wire.output() == expected(1)
                assert wire.answer()[0] == 200


def test_half_a_request_does_not_take_the_time_of_the_one_before(
    gateway: ServedGateway,
) -> None:
    with Wire(gateway) as wire:
        wire.send(taking(10_000_000, seconds=2.5) + request(1)[:-3])
        status, _, body = wire.answer()
        assert (status, json.loads(body)["code"]) == (504, "deadline_exceeded")
        status, _, body = wire.answer()
        assert (status, json.loads(body)["code"]) == (408, "body_stopped")
        assert wire.is_closed()


@pytest.mark.parametrize("first", [request(1, "Connection: close"), None])
def test_nothing_is_answered_behind_the_last_request(
    gateway: ServedGateway, first: bytes | None
) -> None:
    last = large(1).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1)
    for behind in (LIVE, b"\r\n", b"\xff" * 100):
        with Wire(gateway) as wire:
            wire.send((first or last) + behind)
            assert wire.answer()[0] == 200
            assert wire.is_closed()


def send_until_refused(wire: Wire, data: bytes, most: int) -> int:
    """Sends again and again, until nobody has taken a byte for a second."""
    wire.socket.setblocking(False)
    sent = 0
    while sent < most and select.select([], [wire.socket], [], 1.0)[1]:
        sent += wire.socket.send(data[sent % len(data) :])
    wire.socket.setblocking(True)
    return sent


@pytest.mark.parametrize("first", [taking(10_000_000, seconds=8), None])
def test_who_pipelines_without_end_is_not_read_from(
    gateway: ServedGateway, first: bytes | None
) -> None:
    """Behind a request that takes its time, and with answers that nobody reads."""
    most = 96 * MIB  # more than the kernel takes for both ends together
    path, pad = b"/v1/health/live" if first else b"/v1/models", b"y" * 900
    padded = b"GET %b HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % (path, pad)
    before = memory_of(gateway)
    with Wire(gateway) as wire:
        wire.send(first or b"")
        assert send_until_refused(wire, padded * 500, most) < most
        assert memory_of(gateway) - before < 64 * MIB
        assert gateway.infer("affine", input=[[1.0] * 4])["output"] == expected(1)
        if first is not None:
            assert wire.answer()[0] == 504
        for _ in range(100):
            assert wire.answer()[0] == 200


def cancelled(gateway: ServedGateway) -> float:
    start = 'nv_inference_request_failure{model="slow",reason="CANCELED",version="1"}'
    lines = gateway.client.get("/metrics").text.splitlines()
    return sum(float(x.split()[-1]) for x in lines if x.startswith(start))


@pytest.mark.parametrize("behind", [LIVE, request(1) * 2, request(1)[:-9], LIVE * 2400])
def test_a_client_that_leaves_behind_its_next_request_is_noticed(
    gateway: ServedGateway, behind: bytes
) -> None:
    before = cancelled(gateway)
    with Wire(gateway) as wire:
        wire.send(taking(10_000_000, seconds=30) + behind)
        pending = 'popgate_requests_in_flight{model="slow",version="1"} 1'
        while pending not in gateway.client.get("/metrics").text:
            pass
    while cancelled(gateway) == before:
        text = gateway.client.get("/metrics").text
        assert pending in text or cancelled(gateway) > before, "it ended otherwise"


HALF = b"x" * (60 * MIB)


def metrics(gateway: ServedGateway) -> str:
    return gateway.client.get("/metrics").text


@pytest.mark.parametrize(
    "framing",
    [b"Content-Length: 262144000\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n"],
)
@pytest.mark.parametrize("path", [b"/v1/models/wide/infer", b"/v2/models/wide/load"])
def test_what_was_uploaded_and_given_up_is_given_back(
    gateway: ServedGateway, framing: bytes, path: bytes
) -> None:
    if b"infer" not in path:
        path = b"/v2/repository/models/wide/load"
    head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + framing + b"\r\n\r\n"
    body = b"%x\r\n" % len(HALF) + HALF if b"chunked" in framing else HALF
    used = []
    for _ in range(6):
        with Wire(gateway) as wire:
            wire.send(head, body)
        # The server reads on for a moment after the client has gone.
        until(lambda: "\npopgate_transfer_memory_bytes 0\n" in metrics(gateway))
        used.append(memory_of(gateway))
    assert used[-1] - used[1] < 130 * MIB, used


LAST = b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
POST = b"POST /v1/models/affine/infer HTTP/1.1\r\nHost: x\r\n"
CHANGES = rb"\r\n(date|x-request-id): .*|\"request_id\":\"[^\"]*\""
IN_CHUNKS = b"Transfer-Encoding: chunked\r\n"
#: What says how long the rest of the stream is and does not mean a body by it, and
#: what follows it behind a bar.
MISLEADING = {
    "a chunk": CHUNKED + b"1b\r\n{}\r\nContent-Length: %d\r\n\r\n|\r\n0\r\n\r\n",
    "a trailer": CHUNKED + b"2\r\n{}\r\n0\r\nContent-Length: %d\r\n\r\n",
    "the second length": POST + b"Content-Length: 2\r\nContent-Length: %d\r\n\r\n",
    "the first length": POST + b"Content-Length: %d\r\nContent-Length: 2\r\n\r\n",
    "chunks after it": POST
    + b"Content-Length: %d\r\nTransfer-Encoding: chunked\r\n\r\n",
    "chunks before it": POST
    + b"Transfer-Encoding: chunked\r\ncontent-length: %d\r\n\r\n",
    "a folded line": POST + b"X: y\r\n Content-Length: %d\r\n\r\n",
    "a signed number": POST
    + b"X: y\r\nContent-Length: %d\r\nContent-Length: +2\r\n\r\n",
    "another protocol": b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\n"
    b"Connection: Upgrade\r\nUpgrade: y\r\nX: Content-Length: %d\r\n\r\n",
}


@pytest.mark.parametrize("what", MISLEADING)
def test_what_only_looks_like_a_length_hides_no_request(
    gateway: ServedGateway, what: str
) -> None:
    rest = LIVE + request(1) + LAST
    head, _, tail = MISLEADING[what].partition(b"|")
    stream = head % len(tail + rest) + tail + rest
    seen = []
    for step in (1 << 20, 1):
        with Wire(gateway) as wire:
            wire.send(*(stream[at : at + step] for at in range(0, len(stream), step)))
            seen.append(re.sub(CHANGES, b"", wire.stream.read()))
    assert seen[0] == seen[1]
    assert seen[0].startswith(b"HTTP/1.1 ")


def test_a_small_message_is_parsed_at_once_whoever_answers_it(
    gateway: ServedGateway,
) -> None:
    body = b'{"ready": true}'
    index = (
        b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\ncontent-length: %d\r\n\r\n"
    )
    stream = [request(1), index % len(body) + body, request(2), LIVE]
    with Wire(gateway) as wire:
        for message in stream:
            wire.send(message)
            assert wire.answer()[0] == 200
        wire.send(b"".join(stream))
        assert [wire.answer()[0] for _ in stream] == [200] * 4
