"""Errors of a call, by the person who must act."""

from __future__ import annotations


class ClientError(Exception):
    """A call without a result; the base of all errors of a client.

    `status` is the HTTP status, 0 without an answer. `code` is the server's error code
    ("" if it has none; docs/reference/errors.md lists PopGate's). `request_id` is the
    request's, if known. `retry_after`: seconds after which the server would accept the
    call, None if it did not say. `sent`: the server may have begun to run the request.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        code: str = "",
        request_id: str = "",
        retry_after: float | None = None,
        sent: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.code = code
        self.request_id = request_id
        self.retry_after = retry_after
        self.sent = sent

    def __str__(self) -> str:
        notes = [f"status {self.status}"] if self.status else []
        notes += [f"request {self.request_id}"] if self.request_id else []
        return f"{self.message} ({', '.join(notes)})" if notes else self.message


class InvalidRequest(ClientError, ValueError):
    """The inputs or options do not fit: you must act. The same call fails again."""


class NotFound(ClientError, LookupError):
    """The model, version or path does not exist: you must act."""


class AuthenticationError(ClientError):
    """A key or header is missing, wrong, or does not allow the call: you must act."""


class Unavailable(ClientError):
    """The server cannot accept the call now (full, loading, lost a device): retry
    later.
    """


class ConnectionFailed(Unavailable, ConnectionError):
    """There is no connection, or it ended before the answer was complete: try later.

    If `sent` is False, the server has received nothing of the request.
    """


class DeadlineExceeded(ClientError, TimeoutError):
    """The result was not ready in time; the server or the client stopped waiting."""


class ServerError(ClientError):
    """The model failed, or the answer cannot be read: the operator of the server must
    act.
    """


#: Errors by status. Other statuses from 400 to 499 are the caller's, all others the
#: server's.
_BY_STATUS: dict[int, type[ClientError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFound,
    408: DeadlineExceeded,
    429: Unavailable,
    502: Unavailable,
    503: Unavailable,
    504: DeadlineExceeded,
}
#: Triton answers these with 400.
_UNKNOWN_MODEL = "Request for unknown model"


def error_of(
    status: int, text: str, code: str, request_id: str, retry_after: float | None
) -> ClientError:
    """Return the error for an answer whose status is not 200."""
    kind = _BY_STATUS.get(status)
    if kind is None:
        kind = InvalidRequest if 400 <= status < 500 else ServerError
    if kind is InvalidRequest and text.startswith(_UNKNOWN_MODEL):
        kind = NotFound
    return kind(
        text or f"the server answered with status {status}",
        status=status,
        code=code,
        request_id=request_id,
        retry_after=retry_after,
        sent=True,
    )
