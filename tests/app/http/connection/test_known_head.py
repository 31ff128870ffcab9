"""What is remembered of a request: only what is certain."""

from __future__ import annotations

import pytest

from app.http.connection.known_head import KnownHead
from app.serving.keys import KeyTable

RULES = KeyTable(())
PATH = "/v2/models/m/infer"
HEAD = (
    b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nTraceparent: 00-1-2\r\n"
    b"X-Other: 7\r\nContent-Length: 5\r\n\r\n"
)
HEADERS = {
    b"host": b"x",
    b"traceparent": b"00-1-2",
    b"x-other": b"7",
    b"content-length": b"5",
}


def known_of(data: bytes, fixed: tuple[bytes, ...] = ()) -> KnownHead | None:
    return KnownHead.of(data, PATH, "/base" + PATH, HEADERS, None, RULES, 100, fixed)


def read(data: bytes, fixed: tuple[bytes, ...] = ()) -> dict[bytes, bytes] | None:
    known = known_of(HEAD + b"12345", fixed)
    assert known is not None
    return known.read(data)


def test_a_request_like_the_one_before_is_read_without_the_parser() -> None:
    known = known_of(HEAD + b"12345")
    assert known is not None
    assert (known.path, known.key, known.rules) == (PATH, None, RULES)
    assert known.url_path == "/base" + PATH
    assert known.read(HEAD + b"54321") == HEADERS
    assert known.size == len(HEAD)
    other = HEAD.replace(b"00-1-2", b"00-33-44").replace(b": 5", b": 12")
    changed = {b"traceparent": b"00-33-44", b"content-length": b"12"}
    assert known.read(other + b"123456789012") == {**HEADERS, **changed}
    assert known.size == len(other)
    assert known.read(HEAD + b"54321") == HEADERS  # nothing of the other is left
    assert repr(known) == f"<KnownHead of {PATH}, 2 values vary>"


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"1234",
        HEAD + b"123456",
        HEAD,
        b"",
        b"\r\n" + HEAD + b"12345",
        HEAD.replace(b"POST", b"PUT ") + b"12345",
        HEAD.replace(b"models/m", b"models/n") + b"12345",
        HEAD.replace(b"X-Other: 7", b"X-Other: 8") + b"12345",
        HEAD.replace(b"X-Other: 7", b"Connection: close") + b"12345",
        HEAD.replace(b"X-Other: 7\r\n", b"") + b"12345",
        HEAD.replace(b"X-Other", b"Expect: 100-continue\r\nX-Other") + b"12345",
        HEAD.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n") + b"12345",
        HEAD.replace(b"00-1-2", b"00-1-2\r\nTransfer-Encoding: chunked") + b"12345",
        HEAD.replace(b"00-1-2", b"00-1-2\nExpect: 100-continue") + b"12345",
        HEAD.replace(b"00-1-2", b"00-1-2\r\n folded") + b"12345",
        HEAD.replace(b"00-1-2", b"00 1 2") + b"12345",
        HEAD.replace(b"00-1-2", b"00-1-2 ") + b"12345",
        HEAD.replace(b"00-1-2", b"") + b"12345",
        HEAD.replace(b"00-1-2", b"00\x00") + b"12345",
        HEAD.replace(b"00-1-2", b"00\xe9") + b"12345",
        HEAD.replace(b": 5", b":  5") + b"12345",
        HEAD.replace(b": 5", b": +5") + b"12345",
        HEAD.replace(b": 5", b": 5,5") + b"12345",
        HEAD.replace(b": 5", b": 0x5") + b"12345",
        HEAD.replace(b": 5", b": -5") + b"12345",
        HEAD.replace(b": 5", b": 05") + b"12345",
        HEAD.replace(b": 5", b": " + b"5" * 5000) + b"12345",
        HEAD.replace(b": 5", b": 101") + bytes(101),  # more than there may be
    ],
)
def test_what_differs_in_anything_else_is_left_to_the_parser(data: bytes) -> None:
    assert read(data) is None


def test_headers_that_decide_something_have_to_stay() -> None:
    other = HEAD.replace(b"00-1-2", b"00-3-4") + b"12345"
    assert read(other) is not None
    assert read(other, fixed=(b"traceparent",)) is None
    assert read(HEAD + b"12345", fixed=(b"traceparent",)) == HEADERS


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"1234",  # the end of the head cannot be where this would have it
        HEAD + b"123456",
        b"\r\n" + HEAD.replace(b"\r\nHost", b"\nHost") + b"12345",
        HEAD.replace(b"\r\n", b"\n") + b"12345",
        HEAD[:-4] + b"\n\n\r\n\r\n" + b"12345",
        HEAD[:-4] + b"\r\nX: " + b"y" * 5000 + b"\r\n\r\n" + b"12345",
        HEAD.replace(b"Length: 5", b"Length: 5 ") + b"12345",
        HEAD.replace(b"Length: 5", b"Length:5") + b"12345",
        HEAD.replace(b"X-Other: 7", b"traceparent: 00-3-4") + b"12345",  # which of two?
        b"12345",
        b"",
    ],
)
def test_nothing_is_remembered_in_doubt(data: bytes) -> None:
    assert known_of(data) is None


def test_large_bodies_are_not_worth_it() -> None:
    size = 1 << 20
    headers = {b"content-length": b"%d" % size}
    head = HEAD.replace(b": 5", b": %d" % size)
    assert KnownHead.of(head + bytes(size), PATH, PATH, headers, None, RULES) is None
