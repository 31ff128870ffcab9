"""The short way for inference, on real connections to a real gateway, byte by byte."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest

from tests.app.served import Serve, ServedGateway
from tests.engine import models

WAIT = 20.0
SLOW = b"POST /v1/models/slow/infer HTTP/1.1\r\nHost: x\r\nContent-Length: "


def fill(root: Path) -> None:
    models.affine(root / "affine.popef")
    models.affine(root / "wide.popef", width=65536)
    models.slow(root / "slow.popef")


@pytest.fixture(scope="module")
def gateway(serve: Serve) -> ServedGateway:
    return serve(fill)


class Wire:
    """One connection, spoken by hand."""

    def __init__(self, gateway: ServedGateway) -> None:
        url = gateway.client.base_url
        self.socket = socket.create_connection((url.host, url.port or 80), WAIT)
        self.stream = self.socket.makefile("rb")
        self._gateway = gateway

    def send(self, *pieces: bytes) -> None:
        try:
            for piece in pieces:
                self.socket.sendall(piece)
        except OSError as error:
            error.add_note(f"the server said {self._gateway.lines[-8:]}")
            raise

    def answer(self) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body of the next answer."""
        status = int(self.stream.readline().split()[1])
        headers = {}
        while (line := self.stream.readline().strip()) != b"":
            name, _, value = line.decode().partition(": ")
            headers[name] = value
        return status, headers, self.stream.read(int(headers["content-length"]))

    def output(self) -> Any:
        status, _, body = self.answer()
        assert status == 200, body
        return json.loads(body)["outputs"][0]["data"]

    def is_closed(self) -> bool:
        try:
            return self.stream.read(1) == b""
        except ConnectionResetError:  # the server closed it before it had read all
            return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stream.close()
        self.socket.close()


def request(
    value: float,
    *extra: str,
    path: str = "/v1/models/affine/infer",
    version: str = "1.1",
) -> bytes:
    body = json.dumps({"inputs": {"input": [[value] * 4]}}).encode()
    head = [f"POST {path} HTTP/{version}", "Host: x", f"Content-Length: {len(body)}"]
    return "\r\n".join([*head, *extra, "", ""]).encode() + body


def expected(value: float) -> list[float]:
    return [value * 2 + 1] * 4


def test_requests_follow_each_other_on_one_connection(gateway: ServedGateway) -> None:
    with Wire(gateway) as wire:
        for value in range(20):
            wire.send(request(value))
            assert wire.output() == expected(value)


@pytest.mark.parametrize("step", [1, 7, 64])
def test_a_request_may_come_in_any_pieces(gateway: ServedGateway, step: int) -> None:
    whole = request(3)
    with Wire(gateway) as wire:
        wire.send(*(whole[at : at + step] for at in range(0, len(whole), step)))
        assert wire.output() == expected(3)


def test_pipelined_requests_are_answered_in_order(gateway: ServedGateway) -> None:
    other = b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    with Wire(gateway) as wire:
        wire.send(b"".join([request(1), request(2), other, request(3), request(4)]))
        assert wire.output() == expected(1)
        assert wire.output() == expected(2)
        assert wire.answer()[0] == 200
        assert wire.output() == expected(3)
        assert wire.output() == expected(4)


def test_a_head_that_comes_again_is_that_of_its_own_body(
    gateway: ServedGateway,
) -> None:
    bad = request(9).replace(b'"input"', b'"wrong"')
    with Wire(gateway) as wire:
        for value in range(5):
            wire.send(request(value))
            assert wire.output() == expected(value)
        wire.send(bad)  # of the same length
        assert wire.answer()[0] == 400
        wire.send(request(6) + request(7))
        assert wire.output() == expected(6)
        assert wire.output() == expected(7)
        wire.send(request(8), b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        assert wire.output() == expected(8)
        assert wire.answer()[0] == 200
        for value in (1, 2):
            whole = request(value)
            wire.send(whole)
            assert wire.output() == expected(value)
            for cut in (5, whole.find(b"\r\n\r\n") + 4, len(whole) - 1):
                wire.send(whole[:cut], whole[cut:])
                assert wire.output() == expected(value)
        wire.send(request(3, path="/v1/models/affine/infer?"))
        assert wire.output() == expected(3)
        wire.send(request(4, "Connection: close"))
        assert wire.output() == expected(4)
        assert wire.is_closed()


def test_a_head_that_comes_again_may_be_for_a_model_that_has_gone(
    gateway: ServedGateway,
) -> None:
    management = "/v2/repository/models/affine"
    with Wire(gateway) as wire:
        for value in (1, 2):
            wire.send(request(value))
            assert wire.output() == expected(value)
        assert gateway.client.post(f"{management}/unload").status_code == 200
        try:
            wire.send(request(3))
            assert wire.answer()[0] == 503
        finally:
            assert gateway.client.post(f"{management}/load").status_code == 200
        for value in (4, 5):
            wire.send(request(value))
            assert wire.output() == expected(value)


def test_a_head_is_remembered_of_its_own_request_only(gateway: ServedGateway) -> None:
    elsewhere = "/v1/models/nothing/infer"
    body = bytes(70_000)
    large = b"POST /v1/nothing HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
    for _ in range(30):  # now and then all of it is received at once
        with Wire(gateway) as wire:
            wire.send(request(1) + large % len(body) + body)
            assert wire.output() == expected(1)
            assert wire.answer()[0] == 404
            for value in (2, 3):
                wire.send(request(value, path=elsewhere))
                assert wire.answer()[0] == 404


def test_percent_encoding_queries_and_versions_name_the_same(
    gateway: ServedGateway,
) -> None:
    paths = (
        "/v2/models/affine/infer",
        "/v1/models/%61ffine/infer?x=1",
        "/v2/models/affine/versions/1/infer",
    )
    with Wire(gateway) as wire:
        for path in paths:
            wire.send(request(5, path=path))
            assert wire.output() == expected(5)


@pytest.mark.parametrize(
    ("extra", "version", "closes"),
    [
        (["Connection: close"], "1.1", True),
        ([], "1.0", True),
        (["Connection: keep-alive"], "1.1", False),
    ],
)
def test_the_connection_closes_when_it_should(
    gateway: ServedGateway, extra: Sequence[str], version: str, closes: bool
) -> None:
    with Wire(gateway) as wire:
        wire.send(request(6, *extra, version=version))
        assert wire.output() == expected(6)
        if closes:
            assert wire.is_closed()
        else:
            wire.send(request(7))
            assert wire.output() == expected(7)


def test_expect_is_answered_before_the_body(gateway: ServedGateway) -> None:
    head, _, body = request(8, "Expect: 100-continue").partition(b"\r\n\r\n")
    with Wire(gateway) as wire:
        wire.send(head + b"\r\n\r\n")
        assert wire.stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        assert wire.stream.readline() == b"\r\n"
        wire.send(body)
        assert wire.output() == expected(8)


def test_a_request_in_place_of_an_unasked_body_is_no_body(
    gateway: ServedGateway,
) -> None:
    head = b"POST /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n"
    with Wire(gateway) as wire:
        wire.send(head + b"Expect: 100-continue\r\n\r\n")
        status, headers, _ = wire.answer()
        assert (status, headers["connection"]) == (404, "close")
        wire.send(request(7))
        assert wire.is_closed()


def test_a_body_without_a_length_goes_the_long_way(gateway: ServedGateway) -> None:
    head, _, body = request(9).partition(b"\r\n\r\n")
    head = head.rpartition(b"\r\n")[0] + b"\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunks = [b"%x\r\n%b\r\n" % (len(body), body), b"0\r\n\r\n"]
    with Wire(gateway) as wire:
        wire.send(head, *chunks)
        assert wire.output() == expected(9)


def slow(body: bytes) -> bytes:
    return SLOW + b"%d\r\n\r\n" % len(body) + body


def large(value: float) -> bytes:
    body = np.full((2, 65536), value, np.float32).tobytes()
    header = json.dumps(
        {
            "inputs": [
                {
                    "name": "input",
                    "shape": [2, 65536],
                    "datatype": "FP32",
                    "parameters": {"binary_data_size": len(body)},
                }
            ],
            "parameters": {"binary_data_output": True},
        }
    ).encode()
    head = (
        "POST /v2/models/wide/infer HTTP/1.1\r\nHost: x\r\n"
        f"Inference-Header-Content-Length: {len(header)}\r\n"
        f"Content-Length: {len(header) + len(body)}\r\n\r\n"
    )
    return head.encode() + header + body


@pytest.mark.parametrize("step", [1 << 30, 65536, 10_007])
def test_large_bodies_go_past_the_parser_and_what_follows_does_not(
    gateway: ServedGateway, step: int
) -> None:
    stream = large(1) + request(2) + large(3) + large(4) + request(5)
    with Wire(gateway) as wire:
        wire.send(*(stream[at : at + step] for at in range(0, len(stream), step)))
        for value in (1, 2, 3, 4, 5):
            if value in (2, 5):
                assert wire.output() == expected(value)
                continue
            status, headers, body = wire.answer()
            assert status == 200, body
            data = body[int(headers["inference-header-content-length"]) :]
            assert np.all(np.frombuffer(data, np.float32) == value * 2 + 1)


def test_errors_leave_the_connection_usable(gateway: ServedGateway) -> None:
    bad = request(1).replace(b'"input"', b'"wrong"')
    with Wire(gateway) as wire:
        wire.send(bad, request(2))
        status, _, body = wire.answer()
        assert status == 400
        assert json.loads(body)["code"] == "invalid_input"
        assert wire.output() == expected(2)


def test_a_deadline_the_client_asks_for_is_kept(gateway: ServedGateway) -> None:
    body = b'{"inputs": {"count": 30000}, "parameters": {"timeout": 20000}}'
    with Wire(gateway) as wire:
        wire.send(slow(body))
        status, _, answer = wire.answer()
        assert status == 504, answer
        assert json.loads(answer)["code"] == "deadline_exceeded"
        wire.send(request(1))
        assert wire.output() == expected(1)


def test_a_client_that_goes_away_leaves_nothing_in_flight(
    gateway: ServedGateway,
) -> None:
    body = b'{"inputs": {"count": 3000}}'
    for _ in range(5):
        with Wire(gateway) as wire:
            wire.send(slow(body))
    with Wire(gateway) as wire:
        wire.send(request(1)[:-3])  # and one in the middle of its body
    with Wire(gateway) as wire:
        wire.send(request(2))
        assert wire.output() == expected(2)
    pending = 'popgate_requests_in_flight{model="slow",version="1"} 0'
    for _ in range(1000):
        if pending in gateway.client.get("/metrics").text:
            return
    raise AssertionError("requests of clients that have gone are still pending")


UPGRADE = (
    "Upgrade: h2c",
    "Connection: Upgrade, HTTP2-Settings",
    "HTTP2-Settings: AAMAAABkAAQBAAAAAAIAAAAA",
)


@pytest.mark.parametrize("pieces", [1, 3])
def test_a_wish_for_another_protocol_is_passed_over(
    gateway: ServedGateway, pieces: int
) -> None:
    """Java's client, for one, says it with every first request, and sends the body."""
    with Wire(gateway) as wire:
        index = b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\n"
        head = index + "\r\n".join(UPGRADE).encode()
        listing = head + b"\r\nContent-Length: 14\r\n\r\n" + b'{"ready":true}'
        live = b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
        sent = request(1.0, *UPGRADE) + listing + request(2.0)
        sent += (live + b"Connection: Upgrade\r\n\r\n") * 1000 + request(3.0, *UPGRADE)
        size = len(sent) // pieces + 1
        wire.send(*(sent[i : i + size] for i in range(0, len(sent), size)))
        assert wire.output()[0] == 3.0
        status, _, body = wire.answer()
        assert (status, len(json.loads(body))) == (200, 3)
        assert wire.output()[0] == 5.0
        for _ in range(1000):
            assert wire.answer()[0] == 200
        assert wire.output()[0] == 7.0


@pytest.mark.parametrize(
    ("headers", "why"),
    [
        (
            b"Content-Length: 3\r\nTransfer-Encoding: chunked",
            "Transfer-Encoding can't be present with Content-Length",
        ),
        (b"Content-Length: x", "Invalid character in Content-Length"),
    ],
)
def test_what_is_wrong_with_a_head_is_said(
    gateway: ServedGateway, headers: bytes, why: str
) -> None:
    with Wire(gateway) as wire:
        wire.send(b"POST /v2 HTTP/1.1\r\n" + headers + b"\r\n\r\n")
        status, _, body = wire.answer()
    assert status == 400
    assert json.loads(body)["error"] == f"the request is not valid HTTP/1.1: {why}"


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET /v2 HTTP/1.1\r\n" + b"X: y\r\n" * 10_922, 431, "head_too_long"),
        (b"GET /v2 HTTP/1.1\r\n" + b"X: y\r\n" * 257 + b"\r\n", 431, "head_too_long"),
        (request(1, *["X: y"] * 255), 431, "head_too_long"),
        (b"GET /v2 HTTP/1.1\r\nX: " + b"y" * 65_520, 431, "head_too_long"),
        (b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n", 414, "url_too_long"),
        (b"CONNECT x:1 HTTP/1.1\r\n\r\n", 405, "method_not_allowed"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", 431, "head_too_long"),
        (b"GET http://[ HTTP/1.1\r\n\r\n", 400, "bad_http"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", 400, "bad_http"),
        (b"GET /v2 HTTP/1.1\r\n\r\n", 400, "bad_http"),
        (b"GET http://x/v2 HTTP/1.1\r\n\r\n", 400, "bad_http"),
        (request(1).replace(b"Host: x\r\n", b""), 400, "bad_http"),
        (b"GET /v2 HTTP/2.0\r\n\r\n", 505, "http_version_not_supported"),
        (b"GET /v2 HTTP/0.9\r\n\r\n", 505, "http_version_not_supported"),
        (b"GET /v2\r\n\r\n", 505, "http_version_not_supported"),
        (
            request(1, version="2.0", path="/v1/models/slow/infer"),
            505,
            "http_version_not_supported",
        ),
    ],
)
@pytest.mark.parametrize("step", [1 << 20, 4096])
def test_heads_that_are_refused(
    gateway: ServedGateway, sent: bytes, status: int, code: str, step: int
) -> None:
    with Wire(gateway) as wire:
        wire.send(*(sent[at : at + step] for at in range(0, len(sent), step)))
        found, headers, body = wire.answer()
        assert (found, json.loads(body)["code"]) == (status, code)
        assert headers["connection"] == "close"
        assert wire.is_closed()


def test_what_stands_between_chunks_is_bounded(gateway: ServedGateway) -> None:
    with Wire(gateway) as wire:
        wire.send(
            b"POST /v2/repository/index HTTP/1.1\r\nHost: x\r\n"
            b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n"
        )
        assert wire.stream.readline() == b"HTTP/1.1 100 Continue\r\n"
        wire.stream.readline()
        wire.send(b"5;" + b"e" * 65_536)
        status, _, body = wire.answer()
        assert (status, json.loads(body)["code"]) == (431, "head_too_long")
        assert wire.is_closed()


@pytest.mark.parametrize("step", [1 << 20, 4096])
def test_the_bound_on_heads_does_not_depend_on_how_they_come(
    gateway: ServedGateway, step: int
) -> None:
    bare = len(b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\nX: \r\n\r\n")
    for size, status in ((65_536, 200), (65_537, 431)):
        pad = b"y" * (size - bare)
        sent = b"GET /v1/health/live HTTP/1.1\r\nHost: x\r\nX: %b\r\n\r\n" % pad
        with Wire(gateway) as wire:
            wire.send(*(sent[at : at + step] for at in range(0, size, step)))
            assert wire.answer()[0] == status


@pytest.mark.parametrize("target", ["http://x", "http://x?y=1", "https://u@x:8/"])
def test_an_absolute_url_may_have_no_path(gateway: ServedGateway, target: str) -> None:
    with Wire(gateway) as wire:
        wire.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        there = wire.answer()[0]
        wire.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert wire.answer()[0] == there < 500
        wire.send(request(1, path=target))
        assert wire.answer()[0] < 500
        wire.send(request(2, path="http://x/v1/models/affine/infer?x"))
        assert wire.output() == expected(2)


@pytest.mark.parametrize("path", ["/v1/models/affine/infer", "/v1/models/none/infer"])
def test_white_space_around_a_length_is_no_part_of_it(
    gateway: ServedGateway, path: str
) -> None:
    spaced = request(1, path=path).replace(b"37\r\n", b"37 \t\r\n")
    with Wire(gateway) as wire:
        for sent in (request(1, path=path), spaced):
            wire.send(sent)
            status, _, body = wire.answer()
            assert status == (200 if "affine" in path else 404), body


def test_an_offer_of_another_protocol_changes_nothing_else(
    gateway: ServedGateway,
) -> None:
    offer = "Upgrade: h2c"
    with Wire(gateway) as wire:
        kept = (offer, "Connection: keep-alive, Upgrade")
        wire.send(request(1, *kept) + request(2, offer, "Connection: Upgrade, close"))
        assert wire.output() == expected(1)
        assert wire.output() == expected(2)
        assert wire.is_closed()
    with Wire(gateway) as wire:
        wire.send(request(3, offer, "Connection: Upgrade", version="1.0") + request(4))
        assert wire.output() == expected(3)
        assert wire.is_closed()
