"""One call: what is counted of it, whatever happens to it.

Covers: app/serving/pending.py, app/serving/deadlines.py,
app/serving/call_record.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import threading

import pytest

from app.codec.model import DECODED_AT_ONCE_AT_MOST
from app.http.asgi import Message
from app.http.asgi_call import AsgiCall
from app.serving.route_form import RouteForm
from engine import Cancelled
from tests.app import fronts
from tests.app.fronts import Doubler


async def _nothing() -> Message:
    await asyncio.Event().wait()
    return {}


def _call(runner: Doubler, path: str = "/v1/models/m/infer") -> AsgiCall:
    call = AsgiCall(fronts.front(runner).service, path, {}, _nothing)
    call.body = [b'{"inputs":{"x":[1,2]}}']
    return call


def test_an_end_is_counted_once() -> None:
    async def run() -> None:
        call = _call(Doubler("never"))
        call.begin()
        assert call.entry is not None
        stats = call.entry.stats
        assert (stats.pending, len(call.service.deadlines)) == (1, 1)
        call.fail(MemoryError())
        call.abandon(Cancelled("its task was cancelled then"))
        call.leave()
        assert (stats.pending, stats.failure_count) == (0, 1)
        assert not len(call.service.deadlines)

    asyncio.run(run())


def test_a_client_that_goes_before_its_body_is_looked_at() -> None:
    """The task that would decode it never runs, and the request is counted."""

    async def run() -> None:
        call = _call(Doubler("never"))
        call.is_large = True
        call.begin()
        assert call.entry is not None
        stats = call.entry.stats
        assert stats.pending == 1
        call.disconnect()
        assert (stats.pending, stats.failure_count) == (0, 1)
        await asyncio.sleep(0)
        assert call.response_complete

    asyncio.run(run())


def test_a_form_that_may_repeat_a_large_request_is_written_in_a_thread() -> None:
    call = _call(Doubler("never"))
    entry = call.service.models.paths[call.path]
    request = entry.codec.decode(None, None, None, call.body)
    assert not call.takes_long(entry, request, 100_000)
    call.form = RouteForm({"method": "GET", "headers": []}, "", "", has_keys=False)
    assert call.takes_long(entry, request, 100_000)
    assert not call.takes_long(entry, request, 1000)
    call.is_large = True
    assert call.takes_long(entry, request, 1000)


@pytest.mark.parametrize("kind", ["large", "gzip", "on demand"])
@pytest.mark.parametrize("is_asked", [True, False])
def test_who_waits_for_a_thread_waits_until_the_deadline(
    kind: str, is_asked: bool
) -> None:
    """All threads that decode and inflate are held by others."""

    async def run() -> None:
        path = "/v1/models/m/infer"
        absent = fronts.Late() if kind == "on demand" else None
        if absent is not None:
            path = "/v1/models/late/infer"
        runner = Doubler("soon")
        front = fronts.front(runner, timeout=60 if is_asked else 0.2, absent=absent)
        headers = {b"x-request-timeout": b"0.2"} if is_asked else {}
        body = b'{"inputs":{"x":[1,2]}}'
        if kind != "large":
            headers[b"content-encoding"] = b"gzip"
            # The event loop inflates less than this.
            body = gzip.compress(body + b" " * 5000, compresslevel=0)
        service = front.service
        call = AsgiCall(service, path, headers, _nothing)
        call.is_large = True
        call.body = [body + b" " * DECODED_AT_ONCE_AT_MOST if kind == "large" else body]
        held = threading.Event()
        with contextlib.ExitStack() as ends:
            ends.callback(service.close)
            ends.callback(held.set)
            for pool, count in ((service._codec, 1), (service._inflating, 2)):
                for _ in range(count):
                    pool.submit(held.wait)
            response = await call.answer()
        assert response is not None
        assert response.status == 504
        assert not runner.submitted
        if call.entry is not None:
            stats = call.entry.stats
            assert (stats.pending, stats.failure_count) == (0, 1)

    asyncio.run(run())


def test_what_is_answered_is_let_go_of() -> None:
    async def run() -> None:
        runner = Doubler("soon")
        call = _call(runner)
        response = await call.answer()
        assert response is not None
        assert response.status == 200
        assert call.submitted is None
        assert not call.body

    asyncio.run(run())
