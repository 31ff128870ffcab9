"""Several responses to one request, each sent when it is ready: server-sent events.

`send_events` writes the responses of a call as ``text/event-stream``. If the reader
disconnects, its request ends.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.errors import ErrorResponse
from app.http.asgi import ClientGone, Send, send_response
from app.http.asgi_call import EventCall

EVENT_STREAM = b"text/event-stream"
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
]


def wants_events(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether Accept prefers server-sent events; among equals the
    first counts.
    """
    accept = headers.get(b"accept")
    if accept is None or EVENT_STREAM not in accept:
        return False
    return max(accept.split(b","), key=_quality).strip().startswith(EVENT_STREAM)


def _quality(item: bytes) -> float:
    for parameter in item.split(b";")[1:]:
        name, _, value = parameter.partition(b"=")
        if name.strip().lower() == b"q":
            try:
                return float(value)
            except ValueError:
                return 0.0
    return 1.0


async def send_events(call: EventCall, send: Send) -> None:
    """Begin a call with a complete body, and send its responses as events.

    If a request fails, its last event holds the error. If that is also the first event,
    it sets the status.
    """
    started = False
    call.begin()
    if not call.response_complete:
        call.watch()
    try:
        while event := await call.next_event():
            if not started:
                await _begin(send, 200)
                started = True
            text = b"data: %b\n\n" % event
            await send({"type": "http.response.body", "body": text, "more_body": True})
            call.proceed()
        if call.refusal is not None:
            await send_response(send, call.refusal)
            return
        if not started:
            await _begin(send, 200)
        await send({"type": "http.response.body", "body": b""})
        call.succeed()
    except ClientGone:
        pass
    except Exception as error:
        answer = ErrorResponse.of(error)
        if not started:
            extra = [h for h in answer.headers if h[0] == b"retry-after"]
            await _begin(send, answer.status, extra)
        text = b"data: %b\n\n" % answer.body
        await send({"type": "http.response.body", "body": text})
        call.end_with(error)
    finally:
        call.leave()


async def _begin(
    send: Send, status: int, extra: list[tuple[bytes, bytes]] | None = None
) -> None:
    headers = [*_HEADERS, *(extra or [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
