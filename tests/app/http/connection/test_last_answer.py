"""The last answer of a connection: to what was read of a request that was refused."""

from __future__ import annotations

import json

from app.errors import BodyStopped, HttpError
from app.http.connection.dispatch import Dispatch
from app.http.connection.ending import asked_so_far, last_answer
from app.http.connection.framing import Framer
from tests.app.fronts import Doubler, front
from tests.app.http.connection.test_dispatch import Peer


def test_it_says_what_is_wrong_and_is_counted_and_logged() -> None:
    dispatch, peer = Dispatch(front(Doubler())), Peer()
    framer = Framer()
    framer.feed(
        b"GET /v1/models HTTP/1.1\r\nX-Request-Id: me\r\nTraceparent: t\r\nA:", 0
    )
    asked, headers = asked_so_far(framer.so_far(), peer)
    assert (asked.method, asked.path, asked.client) == (
        "GET",
        "/v1/models",
        "192.0.2.1",
    )
    assert (asked.request_id, asked.traceparent) == (b"me", b"t")
    error = HttpError(408, "too slow", "head_too_slow")
    sent = last_answer(dispatch.front, peer, error, asked, headers, 3.0)
    head, _, body = sent.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 Request Timeout\r\n")
    assert b"connection: close" in head
    assert b"x-request-id: me" in head
    assert json.loads(body)["code"] == "head_too_slow"
    (failed,) = dispatch.service.journal.failed
    assert (failed.code, failed.seconds, failed.status) == ("head_too_slow", 3.0, 408)
    ((key, count),) = dispatch.service.answers.items()
    assert (count, "408" in str(key), "head_too_slow" in str(key)) == (1, True, True)


def test_of_what_never_was_a_request_nothing_is_known() -> None:
    dispatch, peer = Dispatch(front(Doubler())), Peer()
    asked, headers = asked_so_far(Framer().so_far(), peer)
    assert (asked.method, asked.path, headers) == ("-", "-", {})
    sent = last_answer(dispatch.front, peer, BodyStopped(2.0), asked, headers, 2.0)
    assert sent.startswith(b"HTTP/1.1 408")
    assert asked.request_id in sent
