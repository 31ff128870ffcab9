"""What is remembered of a request: only what is certain."""

from __future__ import annotations

import pytest

from app.http.known_head import KnownHead
from app.serving.keys import KeyTable

RULES = KeyTable(())
HEADERS = {b"host": b"x", b"content-length": b"5"}
HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n"


def test_one_whole_request_is_remembered_by_its_head() -> None:
    known = KnownHead.of(HEAD + b"12345", "/v2/models/m/infer", HEADERS, None, RULES)
    assert known is not None
    assert (known.head, known.size) == (HEAD, len(HEAD))
    assert known.total == len(HEAD) + 5
    assert known.headers is HEADERS
    assert repr(known) == f"<KnownHead {len(HEAD)} bytes, /v2/models/m/infer>"


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"1234",  # the end of the head cannot be where this would have it
        HEAD + b"123456",
        b"\r\n" + HEAD.replace(b"\r\nHost", b"\nHost") + b"12345",
        HEAD.replace(b"\r\n", b"\n") + b"12345",
        HEAD[:-4] + b"\n\n\r\n\r\n" + b"12345",
        HEAD[:-4] + b"\r\nX: " + b"y" * 5000 + b"\r\n\r\n" + b"12345",
        b"12345",
        b"",
    ],
)
def test_nothing_is_remembered_in_doubt(data: bytes) -> None:
    assert KnownHead.of(data, "/v2/models/m/infer", HEADERS, None, RULES) is None


def test_large_bodies_are_not_worth_it() -> None:
    size = 1 << 20
    headers = {b"content-length": b"%d" % size}
    head = HEAD.replace(b": 5", b": %d" % size)
    assert KnownHead.of(head + bytes(size), "/m", headers, None, RULES) is None
