"""`last_answer`: the answer to a client before the server closes its connection."""

from __future__ import annotations

from collections.abc import Mapping
from time import monotonic_ns

from app.errors import ErrorResponse, row_of
from app.http.answer_watch import route_of
from app.http.connection.ends import Peer
from app.http.connection.framing import Head
from app.http.connection.response_framing import STATUS_LINE
from app.http.front import InferFront
from app.observe.journal import Asked, Failed
from app.observe.request_ids import id_of


def last_answer(
    front: InferFront,
    peer: Peer,
    error: BaseException,
    asked: Asked,
    headers: Mapping[bytes, bytes],
    stood: float,
) -> bytes:
    """Return the bytes of an answer to a request that has not become a `Call`.

    The answer is counted and logged. The request took `stood` seconds at least.
    """
    answer = ErrorResponse.of(error, asked.request_id, close=True)
    lines = b"".join(b"%b: %b\r\n" % header for header in answer.headers)
    lines += front.lines_for_origin(headers.get(b"origin"))
    service, code = front.service, row_of(error).code
    route = route_of(asked.path.removeprefix(peer.base), asked.method)
    key = front.access.label(headers, peer.ends.names)
    service.answers.count(route, answer.status, code, key)
    now, why = monotonic_ns(), str(error)
    service.journal.fail(Failed(asked, None, answer.status, code, why, now, stood))
    return b"%b%bx-request-id: %b\r\n\r\n%b" % (
        STATUS_LINE[answer.status],
        lines,
        asked.request_id,
        answer.body,
    )


def asked_so_far(head: Head | None, peer: Peer) -> tuple[Asked, Mapping[bytes, bytes]]:
    """Return the part of a message read so far, and its headers.

    `head` is None if the URL has not arrived.
    """
    if head is None:
        return Asked(id_of({}), "-", "-", peer.client_of({})), {}
    headers = dict(head.headers)
    asked = Asked(
        id_of(headers),
        head.method.decode(),
        head.target.decode("latin-1"),
        peer.client_of(headers),
        headers.get(b"traceparent", b""),
    )
    return asked, headers
