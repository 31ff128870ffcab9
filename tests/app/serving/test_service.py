"""Work for requests in threads: what it takes is counted, and given back."""

from __future__ import annotations

import asyncio
import gc
import gzip
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from functools import partial

import pytest

from app.codec.memory_check import reserve
from app.codec.messages import Body, Response
from app.errors import MalformedBody, TransferMemoryFull
from app.serving.service import Service
from app.serving.table import ModelTable
from app.serving.transfer_memory import TransferMemory
from tests.support import until

MIB = 1 << 20
WAIT = 30.0


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service(ModelTable(), transfers=TransferMemory(8 * MIB))
    yield made
    made.close()


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def latest() -> float:
    return time.monotonic() + WAIT


def test_what_a_body_inflates_to_is_counted_while_it_does(service: Service) -> None:
    async def inflated(size: int) -> int:
        body = await service.inflate(b"deflate", [zlib.compress(bytes(size))], latest())
        return sum(map(len, body))

    assert asyncio.run(inflated(6 * MIB)) == 6 * MIB
    with pytest.raises(TransferMemoryFull, match="--transfer-memory"):
        asyncio.run(inflated(64 * MIB))
    assert service.transfers.used == 0


def test_a_small_body_does_not_wait_for_large_ones(service: Service) -> None:
    async def inflated() -> bytes:
        over = threading.Event()
        held = [
            asyncio.ensure_future(
                service._run(service._inflating, over.wait, latest(), 0)
            )
            for _ in range(2)
        ]
        await asyncio.sleep(0)
        try:
            body = await service.inflate(b"gzip", [gzip.compress(b"small")], latest())
        finally:
            over.set()
            await asyncio.gather(*held)
        return b"".join(body)

    assert asyncio.run(inflated()) == b"small"


def test_a_body_waits_for_no_larger_ones(service: Service) -> None:
    ended: list[str] = []

    async def ask() -> None:
        over = threading.Event()
        first = asyncio.ensure_future(service.read(over.wait, latest(), 1))
        await asyncio.sleep(0)
        calls = [("20 MB", 20 * MIB), ("40 MB", 40 * MIB), ("1 MB", MIB), ("0", 0)]
        later = [
            asyncio.ensure_future(
                service.read(partial(ended.append, name), latest(), size)
            )
            for name, size in calls
        ]
        await asyncio.sleep(0)
        over.set()
        await asyncio.gather(first, *later)

    asyncio.run(ask())
    assert ended == ["0", "1 MB", "20 MB", "40 MB"]


def test_what_is_about_to_be_taken_is_refused_before(service: Service) -> None:
    taken: list[int] = []

    def write() -> Response:
        for _ in range(3):
            reserve(3 * MIB)
            taken.append(service.transfers.reserved)
        raise AssertionError("there was room")

    with pytest.raises(TransferMemoryFull):
        asyncio.run(service.encode(write, MIB, latest()))
    assert taken == [4 * MIB, 7 * MIB]
    assert service.transfers.reserved == 0
    reserve(100 * MIB)  # in no thread of requests, nothing is counted


def test_what_waits_for_the_thread_is_counted(service: Service) -> None:
    async def both() -> None:
        write = lambda: Response(200, b"", [], 0)  # noqa: E731
        first = asyncio.create_task(service.encode(write, 6 * MIB, latest()))
        await asyncio.sleep(0)
        with pytest.raises(TransferMemoryFull):
            await service.encode(write, 6 * MIB, latest())
        await first

    asyncio.run(both())
    assert service.transfers.reserved == 0


def test_work_for_which_no_thread_starts_counts_no_longer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start"):
        asyncio.run(service.encode(lambda: Response(200, b"", [], 0), MIB, latest()))
    assert service.transfers.reserved == 0


@pytest.mark.usefixtures("without_collector")
def test_a_body_that_is_refused_goes_at_once(service: Service) -> None:
    async def refuse() -> weakref.ref[memoryview]:
        chunk = memoryview(b"no gzip" * 1000)
        body: Body = [chunk]
        seen = weakref.ref(chunk)
        del chunk
        try:
            await service.inflate(b"gzip", body, latest())
        except MalformedBody:
            return seen
        raise AssertionError("it was taken")

    seen = asyncio.run(refuse())
    # The thread that inflated it lets go of it behind its result.
    until(lambda: seen() is None)
