"""A client is not blamed for bytes that the server has not read yet."""

from __future__ import annotations

import asyncio
import socket

import pytest

from app.errors import BodyStopped, HttpError
from app.http.connection.clocks import Clocks, Patience
from app.http.connection.cycle import AsgiCycle
from app.http.connection.flow import Flow
from app.http.connection.framing import Framer
from app.http.connection.watch import Watch
from app.serving.transfer_memory import Share, TransferMemory
from tests.app.http.connection.test_cycle import Connection

PATIENCE = Patience(head=1.0, body=1.0, send=1.0)
KEEP_ALIVE = 5.0


class Reader(asyncio.Protocol):
    def __init__(self) -> None:
        self.has_read = asyncio.Event()

    def data_received(self, _data: bytes) -> None:
        self.has_read.set()


async def outcomes(sent: bytes, begun: bytes, cycle: AsgiCycle | None) -> list[object]:
    """Look at a connection twice while `sent` is not read, and once after it is read,
    ten seconds apart. Return the outcomes.

    `begun` is a part of a head, `cycle` a request whose body arrives.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        loop = asyncio.get_running_loop()
        transport, reader = await loop.create_connection(Reader, sock=ours)
        flow, framer = Flow(transport, Share(TransferMemory())), Framer()
        flow.pause_reading()
        framer.feed(begun, 0)
        watch = Watch(Clocks(KEEP_ALIVE, 0.0), framer, transport, flow)
        found: list[object] = []

        def look(now: float) -> None:
            error = watch.look(now, cycle, cycle, PATIENCE)
            found.append(type(error) if error else transport.is_closing())

        theirs.sendall(sent)
        look(0.0)
        look(10.0)
        if sent and not transport.is_closing():
            flow.resume_reading()
            await reader.has_read.wait()
            look(20.0)
        transport.abort()
        return found


@pytest.mark.parametrize(
    ("begun", "has_request", "outcome"),
    [(b"", False, True), (b"GET / HT", False, HttpError), (b"", True, BodyStopped)],
)
@pytest.mark.parametrize("sent", [b"", b"x"])
def test_what_waits_to_be_read_is_no_fault_of_the_client(
    sent: bytes, begun: bytes, has_request: bool, outcome: object
) -> None:
    cycle = Connection().cycle if has_request else None
    *before, last = asyncio.run(outcomes(sent, begun, cycle))
    assert before == [False] * (1 + len(sent))
    assert last is outcome
