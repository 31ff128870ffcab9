"""A request that another process answers; here it is the same one.

Covers: plugins/workers/src/popgate_workers/relay_messages.py.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from app.http.answer_watch import ANSWERED_BY
from app.http.asgi import (
    BARE,
    BASE,
    NAMES,
    RELAYED,
    WHOLE,
    ASGIApp,
    Message,
    Receive,
    Scope,
    Send,
)
from engine import encode_message
from popgate_workers.relay import PeerClosed, Relay, RelayServer
from popgate_workers.relay_messages import MOST, RelayedRequest, answers, asgi_of
from tests.support import no_descriptors

SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0", "spec_version": "2.3"},
    "http_version": "1.1",
    "method": "POST",
    "scheme": "https",
    "path": "/p q",
    "raw_path": b"/p%20q",
    "query_string": b"a=1",
    "root_path": "",
    "headers": [(b"a", b"1"), (b"a", b"2")],
    "client": ("10.0.0.1", 5),
    "server": ("/run/socket", None),
    BASE: "/base",
    BARE: True,
    NAMES: ("CN=a",),
    "app": object(),  # what is of this process stays here
}


class Client:
    """What the relay is given and gives; goes away when `bodies` are sent and it is
    told to."""

    def __init__(self, *bodies: bytes, is_whole: bool = True) -> None:
        self.sent: list[Message] = []
        self.is_whole = is_whole
        self.gone = asyncio.Event()
        self.answered = asyncio.Event()
        self._bodies = list(bodies)

    async def receive(self) -> Message:
        if self._bodies:
            body = self._bodies.pop(0)
            more = bool(self._bodies)
            return {"type": "http.request", "body": body, "more_body": more}
        await self.gone.wait()
        return {"type": "http.disconnect", WHOLE: self.is_whole}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        self.answered.set()


def relayed(app: ASGIApp, ask: Callable[[Relay], Any]) -> None:
    async def run() -> None:
        server = RelayServer(app)
        await server.start()
        try:
            await ask(Relay(server.address))
        finally:
            server.close()

    uvloop.run(run())


def test_requests_and_answers_go_over_whole() -> None:
    seen: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(dict(scope))
        size, more = 0, True
        while more:
            message = await receive()
            size += len(message["body"])
            more = message["more_body"]
        headers = [(b"size", b"%d" % size)]
        start = {"type": "http.response.start", "status": 201, "headers": headers}
        await send({**start, ANSWERED_BY: "infer"})
        for part in (b"one", memoryview(b"two"), bytearray(b"three")):
            message = {"type": "http.response.body", "body": part, "more_body": True}
            await send(message)
        await send({"type": "http.response.body", "body": b""})

    async def ask(relay: Relay) -> None:
        client = Client(b"x" * 300_000, b"", b"y" * 1_000_000)
        await relay(SCOPE, client.receive, client.send)
        start, *bodies = client.sent
        assert (start["status"], start[ANSWERED_BY]) == (201, "infer")
        assert [tuple(h) for h in start["headers"]] == [(b"size", b"1300000")]
        assert b"".join(m.get("body", b"") for m in bodies) == b"onetwothree"

    relayed(app, ask)
    (scope,) = seen
    assert scope.pop(RELAYED)
    assert scope == {key: value for key, value in SCOPE.items() if key != "app"}


def test_an_answer_that_reads_nothing_of_a_large_body_arrives() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 413, "headers": []})
        await send({"type": "http.response.body", "body": b"too large"})

    async def ask(relay: Relay) -> None:
        for _ in range(20):
            client = Client(b"x" * 200_000, b"x" * 200_000)
            await relay(SCOPE, client.receive, client.send)
            assert [m.get("status", m.get("body")) for m in client.sent] == [
                413,
                b"too large",
            ]

    relayed(app, ask)


def test_an_answer_arrives_while_its_client_is_watched(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As streams do, which end their watcher when they return; the rest of a body that
    nobody asked for does not take the answer away."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        async def watch() -> None:
            await receive()

        watcher = asyncio.create_task(watch())
        await asyncio.sleep(0)  # it waits in its own turn
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"all of it"})
        watcher.cancel()

    async def ask(relay: Relay) -> None:
        for _ in range(20):
            client = Client(*[b"x" * 200_000] * 5)
            await relay(SCOPE, client.receive, client.send)
            assert client.sent[-1]["body"] == b"all of it"
        client = Client()  # its request has no body at all
        await relay(SCOPE, client.receive, client.send)
        assert client.sent[-1]["body"] == b"all of it"

    relayed(app, ask)
    assert not caplog.records


def test_a_client_that_goes_is_told_of() -> None:
    told: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        begun.set()
        told.append((await receive())["type"])
        ended.set()

    begun, ended = asyncio.Event(), asyncio.Event()

    async def ask(relay: Relay) -> None:
        client = Client(b"x")
        asking = asyncio.create_task(relay(SCOPE, client.receive, client.send))
        await begun.wait()
        await client.answered.wait()  # it has begun to be, and that is no fault
        client.gone.set()
        await ended.wait()
        await asking

    relayed(app, ask)
    assert told == ["http.disconnect"]


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_client_that_goes_first_had_sent_a_whole_request_or_half_of_one(
    is_whole: bool,
) -> None:
    told: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        told.extend([await receive(), await receive()])
        ended.set()

    ended = asyncio.Event()

    async def ask(relay: Relay) -> None:
        client = Client(is_whole=is_whole)
        client.gone.set()
        await relay(SCOPE, client.receive, client.send)
        await ended.wait()
        assert client.sent == []

    relayed(app, ask)
    gone = {"type": "http.disconnect"}
    assert told == [{**gone, WHOLE: is_whole}, gone]


def test_without_a_supervisor_it_is_said() -> None:
    async def ask() -> None:
        client = Client(b"x")
        await Relay("popgate-nobody-is-here")(SCOPE, client.receive, client.send)
        start, body = client.sent
        assert start["status"] == 503
        assert b"supervisor_gone" in body["body"]

    uvloop.run(ask())


def test_without_a_descriptor_the_other_process_is_still_there() -> None:
    async def ask() -> None:
        client = Client(b"x")
        with no_descriptors():
            await Relay("popgate-nobody-is-here")(SCOPE, client.receive, client.send)
        start, body = client.sent
        assert (start["status"], (b"retry-after", b"1") in start["headers"]) == (
            503,
            True,
        )
        assert b"can open no file for the request" in body["body"]

    uvloop.run(ask())


def test_half_an_answer_is_no_answer() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise RuntimeError("a mistake of ours")

    async def ask(relay: Relay) -> None:
        client = Client(b"x")
        with pytest.raises(PeerClosed):
            await relay(SCOPE, client.receive, client.send)

    relayed(app, ask)


@pytest.mark.parametrize("answer", [RelayedRequest.of(SCOPE), b"\x91\xa4Body", b""])
def test_what_is_no_answer_is_not_passed_on(
    answer: RelayedRequest | bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """A message of another kind, one that is cut off, and none."""
    raw = answer if isinstance(answer, bytes) else encode_message(answer)

    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(len(raw).to_bytes(4, "little") + raw if raw else b"")
        writer.close()

    async def run() -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("\0popgate-test-relay")
            async with await asyncio.start_unix_server(reply, sock=listener):
                client = Client(b"x")
                relay = Relay("popgate-test-relay")
                await relay(SCOPE, client.receive, client.send)
        assert client.sent[0]["status"] == 503
        assert b"supervisor_gone" in client.sent[1]["body"]

    uvloop.run(run())
    assert ("malformed" in caplog.text) == bool(raw)


def test_large_parts_go_over_in_messages_of_limited_size() -> None:
    message = {"type": "http.response.body", "body": bytes(1_200_000)}
    parts = list(answers(message))
    assert all(len(encode_message(part, MOST)) <= MOST for part in parts)
    found = [asgi_of(part) for part in parts]
    assert b"".join(part["body"] for part in found) == message["body"]
    assert [part["more_body"] for part in found] == [True, True, False]


def test_it_listens_where_no_file_is() -> None:
    server = RelayServer(lambda *_: None)  # type: ignore[arg-type]
    with socket.socket(socket.AF_UNIX) as sock, pytest.raises(FileNotFoundError):
        sock.connect(server.address)
    server.close()
