"""Heads and bodies that stop coming are given up; a body that gets on slowly is not."""

from __future__ import annotations

import json
import select
from pathlib import Path

from app.http.connection.stalls import Stall
from tests.app.http.connection.test_protocol import Wire
from tests.app.served import ServedGateway
from tests.engine import models

HEAD = (
    b"POST /v1/models/affine/infer HTTP/1.1\r\nHost: x\r\n"
    b"Content-Type: application/json\r\n"
)
BODY = json.dumps({"inputs": {"input": [[1.0, 2.0, 3.0, 4.0]]}}).encode()
LENGTH = b"Content-Length: %d\r\n\r\n"


def test_it_stands_still_from_when_that_was_first_seen() -> None:
    stall, request = Stall(), object()
    assert stall.stalled_for(request, 10, now=5.0) == 0.0
    assert stall.stalled_for(request, 10, now=7.5) == 2.5
    assert stall.stalled_for(request, 11, now=8.0) == 0.0
    assert stall.stalled_for(object(), 11, now=9.0) == 0.0


def test_nothing_is_remembered_of_a_request_that_is_over() -> None:
    stall, request = Stall(), object()
    stall.stalled_for(request, 10, now=5.0)
    stall.forget()
    assert stall.stalled_for(request, 10, now=9.0) == 0.0


def test_who_stops_sending_is_told_and_disconnected(tmp_path: Path) -> None:
    models.affine(tmp_path / "affine.popef")
    with ServedGateway(tmp_path, "--upload-timeout", "0.5") as gateway:
        gateway.wait_ready()
        with Wire(gateway) as sized, Wire(gateway) as chunked, Wire(gateway) as slow:
            sized.send(HEAD, LENGTH % len(BODY), BODY[:10])
            chunked.send(HEAD, b"Transfer-Encoding: chunked\r\n\r\n5\r\n", BODY[:5])
            spaces = 100_000
            slow.send(HEAD, LENGTH % (spaces + len(BODY)))
            while not select.select([sized.socket, chunked.socket], [], [], 0.01)[0]:
                slow.send(b" ")
                spaces -= 1
            for wire in (sized, chunked):
                status, headers, body = wire.answer()
                assert status == 408
                assert headers["connection"] == "close"
                assert json.loads(body)["code"] == "body_stopped"
                assert wire.is_closed()
            slow.send(b" " * spaces, BODY)
            assert slow.output()


def test_a_head_has_to_come_in_time_however_steadily_it_drips(tmp_path: Path) -> None:
    models.affine(tmp_path / "affine.popef")
    with ServedGateway(tmp_path, "--header-timeout", "0.5") as gateway:
        gateway.wait_ready()
        with Wire(gateway) as stopped, Wire(gateway) as steady, Wire(gateway) as idle:
            # Behind a request that was answered as well as at the beginning.
            stopped.send(HEAD, LENGTH % len(BODY), BODY)
            assert stopped.output()
            stopped.send(HEAD)
            steady.send(HEAD, b"X-Long: ")
            waiting = [stopped.socket, steady.socket]
            while waiting:
                # Only who has no answer yet: others would end the pause at once, and
                # the head would be too long before it is too late.
                for told in select.select(waiting, [], [], 0.01)[0]:
                    waiting.remove(told)
                if steady.socket in waiting:
                    steady.send(b"x")
            for wire in (stopped, steady):
                status, headers, body = wire.answer()
                assert status == 408
                assert headers["connection"] == "close"
                assert json.loads(body)["code"] == "head_too_slow"
            assert stopped.is_closed()
            # A connection on which nothing has come is only idle.
            idle.send(HEAD, LENGTH % len(BODY), BODY)
            assert idle.output()
