"""Two reasons to stop reading: the one does not end the other."""

from __future__ import annotations

import asyncio
from typing import Any

from app.http.connection.flow import Flow
from app.serving.transfer_memory import Share, TransferMemory


class Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []
        self.unread = 0

    def get_write_buffer_size(self) -> int:
        return self.unread

    def pause_reading(self) -> None:
        self.told.append("pause")

    def resume_reading(self) -> None:
        self.told.append("resume")


def test_what_is_held_is_not_read_until_it_is_released() -> None:
    transport = Transport()
    flow = Flow(transport, Share(TransferMemory()))
    flow.hold_reading()
    flow.pause_reading()
    flow.resume_reading()
    assert (transport.told, repr(flow)) == (["pause"], "<Flow held>")
    flow.release_reading()
    assert flow.read_paused
    flow.resume_reading()
    flow.resume_reading()
    assert (transport.told, flow.read_paused) == (["pause", "resume"], False)


def test_who_writes_waits_until_it_is_taken() -> None:
    async def check() -> None:
        transport, memory = Transport(), TransferMemory()
        transport.unread = 3_000_000
        flow = Flow(transport, Share(memory))
        await flow.drain()
        flow.pause_writing()
        assert memory.held == 3_000_000
        waiting: asyncio.Future[Any] = asyncio.ensure_future(flow.drain())
        await asyncio.sleep(0)
        assert not waiting.done()
        assert repr(flow) == "<Flow read, not taken>"
        flow.resume_writing()
        await waiting
        assert memory.held == 0

    asyncio.run(check())
