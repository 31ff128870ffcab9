"""Conversion of answers with an error status to exceptions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from popgate_client.encodings import loads
from popgate_client.errors import (
    ClientError,
    DeadlineExceeded,
    InvalidRequest,
    ServerError,
    Unavailable,
    error_of,
)
from popgate_client.http1 import Answer


def stream_error(document: Mapping[str, Any]) -> ClientError:
    """Return the error in an event of a stream."""
    code = str(document.get("code", ""))
    kind: Callable[..., ClientError] = ServerError
    if code in ("deadline_exceeded", "timed_out"):
        kind = DeadlineExceeded
    elif code in ("device_lost", "model_closed", "model_not_ready"):
        kind = Unavailable
    elif code.startswith("invalid"):
        kind = InvalidRequest
    return kind(str(document["error"]), code=code, sent=True)


def answer_error(answer: Answer, request_id: str = "") -> ClientError:
    """Return the error for an answer whose status is not 200."""
    document: Any = None
    try:
        document = loads(answer.body)
    except ValueError:
        text = bytes(answer.body[:500]).decode(errors="replace")
    else:
        text = bytes(answer.body[:500]).decode(errors="replace")
    code = ""
    if isinstance(document, dict):
        text = str(document.get("error") or document.get("detail") or text)
        code = str(document.get("code") or "")
    if 300 <= answer.status < 400 and (place := answer.header("location")):
        text = f"the server redirects to {place}; name that server in the URL"
    identifier = answer.header("x-request-id") or request_id
    return error_of(answer.status, text, code, identifier, _retry_after(answer))


def _retry_after(answer: Answer) -> float | None:
    for name, unit in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        try:
            seconds = float(answer.header(name)) * unit
        except ValueError:
            continue  # absent, or a date
        if 0 <= seconds < float("inf"):
            return seconds
    return None
