"""Answers that come in pieces of any size.

Covers: plugins/client/src/popgate_client/events.py.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from popgate_client.errors import ConnectionFailed, InvalidRequest, ServerError
from popgate_client.events import EventReader
from popgate_client.http1 import Answer, AnswerReader, check_headers, request_head

SIZED = b"HTTP/1.1 200 OK\r\nA: b\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n"
    b"Inference-Header-Content-Length: 2\r\n\r\n2\r\nhe\r\n3;x=y\r\nllo\r\n0\r\n\r\n"
)


def read(reader: AnswerReader, data: bytes, sizes: list[int]) -> Answer | None:
    """What a reader says of data that come in pieces of these sizes, in turn."""
    turn = 0
    while data:
        room = reader.buffer()
        count = max(1, min(len(room), len(data), sizes[turn % len(sizes)]))
        turn += 1
        room[:count] = data[:count]
        data = data[count:]
        answer = reader.received(count)
        if answer is not None:
            return answer
    return None


@given(st.lists(st.integers(1, 200), min_size=1, max_size=20))
def test_pieces_of_any_size(sizes: list[int]) -> None:
    reader = AnswerReader(1000)
    for data in (SIZED, CHUNKED, b"HTTP/1.1 100 Go\r\n\r\n" + SIZED):
        reader.reset()
        answer = read(reader, data, sizes)
        assert answer is not None
        assert bytes(answer.body) == b"hello"
        assert answer.status == 200
        assert answer.keep
        assert len(reader.buffer()) > 0  # an event loop asks for it to see the end
    assert answer is not None
    assert answer.header("a") == "b"
    assert answer.header("b") == ""


@given(st.binary(max_size=300), st.booleans())
def test_anything_else_is_an_error_or_incomplete(data: bytes, head: bool) -> None:
    reader = AnswerReader(1000)
    whole = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" * head + data
    try:
        read(reader, whole, [7, 300])
        reader.ended()
    except (ServerError, ConnectionFailed):
        pass


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 1001\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3e9\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,
        b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 20_000,
        b"220 mail.example ESMTP\r\n",
    ],
)
def test_too_much_or_not_http(data: bytes) -> None:
    with pytest.raises(ServerError):
        read(AnswerReader(1000), data, [4096])


def test_connections_that_are_not_used_again() -> None:
    for data in (
        b"HTTP/1.0 200 OK\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\ncontent-length: 0\r\n\r\n",
        SIZED + b"more",
    ):
        answer = read(AnswerReader(1000), data, [4096])
        assert answer is not None
        assert not answer.keep
    for status in (204, 304):
        head = f"HTTP/1.1 {status} x\r\n\r\n".encode()
        answer = read(AnswerReader(1000), head, [4096])
        assert answer is not None
        assert answer.keep


def test_requests() -> None:
    head = request_head("POST", "/a", "h:1", [("B", "c")], 7)
    assert head == b"POST /a HTTP/1.1\r\nHost: h:1\r\nB: c\r\nContent-Length: 7\r\n\r\n"
    head = request_head("GET", "/a", "h:1", [("host", "x")], 0)
    assert head == b"GET /a HTTP/1.1\r\nhost: x\r\n\r\n"
    with pytest.raises(InvalidRequest):
        request_head("GET", "/a", "h", [("x", "語")], 0)
    for name, value in (("", "x"), ("a b", "x"), ("a:", "x"), ("a", "b\nc")):
        with pytest.raises(InvalidRequest):
            check_headers([(name, value)])


@given(st.lists(st.integers(1, 9), min_size=1))
def test_events(sizes: list[int]) -> None:
    text = b": note\r\ndata: one\r\n\r\nid: 3\ndata:two\ndata: lines\n\n\n"
    reader, found = EventReader(), []
    turn = 0
    while text:
        size = sizes[turn % len(sizes)]
        turn += 1
        found += list(reader.feed(text[:size]))
        text = text[size:]
    reader.end()
    assert found == [b"one", b"two\nlines"]
    pieces = [b"data: ", *[b"x" * 1000] * 1000, b"\r\n", b"\n"]
    found = [event for piece in pieces for event in reader.feed(piece)]
    assert found == [b"x" * 1_000_000]
    list(reader.feed(b"data: x"))
    with pytest.raises(ServerError, match="in the middle of an event"):
        reader.end()
