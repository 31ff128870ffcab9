"""Errors over HTTP: one tree, one table, one form of answer.

RequestError            the request cannot be answered as it was sent
  MalformedBody           the body is not valid in its encoding
  InvalidRequest          the document breaks a rule of the protocol
    NestedTooDeep           lists or objects are nested too deeply
    InvalidShape            a shape is not a list of sizes
    InvalidTensor           an input does not fit the model
    RepeatedKey             a key occurs twice in one object
  UnknownModel            the model or version does not exist
    UnknownModelRun         it was to run
    VersionNotAvailable     the model is known, but the version accepts no requests
  UnknownRegion           the shared memory region is not registered
  ModelNotReady           the model is known, but not served now
    VersionNotReady         no version of it is ready, or not the requested one
  BodyTooLarge            more bytes than the limits allow
  BodyStopped             the client stopped sending before the end of the body
  TransferMemoryFull      all bodies and responses in transit fill their limit
  UnsupportedMediaType    the content type or encoding has no decoder
  NotAcceptable           no type that Accept allows has an encoder
  NotRepresentable        the requested encoding cannot express the result
  HttpError               any other status (not found, forbidden, …)

`ERRORS` is the only place that turns an exception, ours or the engine's, into a status,
a code and a reason to count. It is searched along the class's MRO, so a subclass needs
a row only if it differs.
"""

from __future__ import annotations

import difflib
import enum
import itertools
import logging
import math
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import orjson

from engine import (
    AlreadyExists,
    Cancelled,
    CancelledByModel,
    Closed,
    DeadlineExceeded,
    DeadlineUnreachable,
    DeviceLost,
    EngineError,
    ExecutionFailed,
    Gone,
    Invalid,
    InvalidInput,
    InvalidModel,
    NoDeviceAvailable,
    NotFound,
    OutOfMemory,
    Overloaded,
    QueueFull,
    Refused,
    TimedOut,
    UnknownAnchor,
    Unsupported,
    WrongProcess,
)

E = TypeVar("E", bound=Exception)

logger = logging.getLogger(__name__)

Header = tuple[bytes, bytes]

#: The id of the request that the running task answers (app/http/front.py).
current_request: ContextVar[bytes] = ContextVar("current_request", default=b"")


class FailureReason(enum.Enum):
    """Reasons of failures: the values of the label ``reason``."""

    # Not run, or too late: queue full, shutting down, device lost, deadline passed.
    REJECTED = "REJECTED"
    CANCELED = "CANCELED"  # the client went away
    BACKEND = "BACKEND"  # the model failed on it
    OTHER = "OTHER"  # everything else: bad input, our own faults


class Outcome(enum.Enum):
    """Outcomes of failed requests to a model: finer than `FailureReason`."""

    QUEUE_FULL = "queue_full"  # 429: the queue, a key's limit, or a deadline too near
    DEADLINE = "deadline"  # 504: not done in time
    # 503: its device process died, or no device is attached
    DEVICE_LOST = "device_lost"
    MEMORY = "memory"  # 503: too little memory for the request
    NOT_READY = "not_ready"  # 503: the model is loading, or was closed
    CANCELLED = "cancelled"  # 499: the client went away
    INVALID = "invalid"  # another 4xx: the request is wrong
    ERROR = "error"  # another 5xx: the model failed on it, or the server


_OUTCOMES = {
    429: Outcome.QUEUE_FULL,
    499: Outcome.CANCELLED,
    503: Outcome.NOT_READY,
    504: Outcome.DEADLINE,
}
_OUTCOMES_503 = {
    "device_lost": Outcome.DEVICE_LOST,
    "no_device": Outcome.DEVICE_LOST,
    "out_of_memory": Outcome.MEMORY,
    "transfer_memory_full": Outcome.MEMORY,
}


class RequestError(Exception):
    """The request cannot be answered as it was sent; the message gives the reason."""


class MalformedBody(RequestError):
    """The body is not valid in its encoding: cut off, malformed or contradictory."""


def malformed_json(why: str) -> MalformedBody:
    """Return the error for invalid JSON, in words that clients' scripts look for."""
    if why.endswith("(char 0)"):
        why = f"Invalid value. at 0: {why}"
    return MalformedBody(f"failed to parse the request JSON buffer: {why}")


class InvalidRequest(RequestError):
    """The document breaks a rule of the protocol."""


class NestedTooDeep(InvalidRequest):
    """Lists or objects of the document are nested too deeply."""

    def __init__(self, most: int) -> None:
        msg = f"JSON nesting depth exceeds maximum allowed limit ({most})"
        super().__init__(msg)


class InvalidShape(InvalidRequest):
    """A shape in the request is not a list of sizes."""


class RepeatedKey(InvalidRequest):
    """A key occurs twice in one object of the document."""

    def __init__(self, key: str) -> None:
        super().__init__(f"key '{key:.80}' occurs twice in one object")
        self.key = key


class InvalidTensor(InvalidRequest):
    """An input of the request does not fit the model."""


# Most letters of a name, and most names, to compare for a suggestion.
_MOST_COMPARED = 200


def _meant(name: str, known: Iterable[str]) -> str:
    """Return a suggestion for a name that is not in `known`."""
    names = list(itertools.islice(known, _MOST_COMPARED))
    if len(name) > _MOST_COMPARED:  # the time of a comparison grows with its square
        return ""
    close = difflib.get_close_matches(name, names, 1)
    if close:
        return f"; did you mean '{close[0]}'?"
    return f"; there is only '{names[0]}'" if len(names) == 1 else ""


class UnknownModel(RequestError):
    """The name or version of the model is unknown."""

    def __init__(
        self,
        name: str,
        version: str | None = None,
        known: Iterable[str] = (),
        why: str = "",
    ) -> None:
        """Make the error. `known` are the names of models, for a suggestion. `why` is
        the reason if the model exists.
        """
        which = f"'{name:.255}'"
        if version:
            which += f" version {version:.40}"
        text = f"Request for unknown model: {which} is not found"
        if version:
            text += " (it is not at ready state)"
        super().__init__(f"{text}: {why}" if why else text + _meant(name, known))
        self.name = name
        self.version = version


class UnknownModelRun(UnknownModel):
    """The model to run is unknown."""


class VersionNotAvailable(UnknownModel):
    """A known model has no version that accepts requests, or not the requested one."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.args = (
            f"requested model version is not available for model '{name:.255}'",
        )


class UnknownRegion(RequestError):
    """The name of the shared memory region is not registered."""

    def __init__(self, name: str, kind: str = "") -> None:
        super().__init__(f"Unable to find {kind}shared memory region: '{name:.255}'")


class ModelNotReady(RequestError):
    """The model is known, but not served now."""

    def __init__(self, name: str, why: str = "it is not loaded") -> None:
        super().__init__(f"Model '{name}' is not ready: {why}")
        self.name = name


class VersionNotReady(ModelNotReady):
    """The version is not ready; the words are those that clients' scripts look for.

    `version` is the requested one, None for any.
    """

    def __init__(self, name: str, version: str | None, why: str) -> None:
        super().__init__(name, why)
        if version is not None:
            state = f"version {version:.40} is not at ready state: {why}"
        else:
            state = f"has no available versions: {why} (it is not at ready state)"
        self.args = (f"Request for unknown model: '{name}' {state}",)


class BodyTooLarge(RequestError):
    """The body, or a part of it, is larger than the limits allow."""


def larger_than_allowed(
    size: object, limit: int, *, is_json: bool = False, tensor: str = ""
) -> BodyTooLarge:
    """Return the error for a body of `size` bytes (a number or words), or for the bytes
    that the values of a `tensor` become, in the words that clients' scripts look for.
    """
    what, most = "request body", "value"
    if is_json:
        what, most = "request JSON size", "input size"
    elif tensor:
        what, most = f"{tensor}: its size", "input size"
    return BodyTooLarge(
        f"{what} of {size} bytes exceeds the maximum allowed {most} of {limit} "
        "bytes. Use --http-max-input-size to increase the limit."
    )


def too_many_values(most: int, list_weight: int) -> BodyTooLarge:
    """Return the error for lists of more values; a list counts as `list_weight`."""
    return BodyTooLarge(
        f"the lists of the document hold more than {most} values (a list counts as "
        f"{list_weight}); send large tensors as binary data"
    )


def too_many_strings(most: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the document has more than {most} strings, which is the limit"
    )


class BodyStopped(RequestError):
    """The client stopped sending before the end of the body."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the client sent no data of the request body for {seconds:g} s"
        )


class TransferMemoryFull(RequestError):
    """The bodies and responses of all clients fill their memory limit."""

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"requests and responses in transit fill the limit of {limit} bytes "
            "(--transfer-memory); retry later"
        )


class UnsupportedMediaType(RequestError):
    """The content type or content encoding is not supported."""


class NotAcceptable(RequestError):
    """The Accept header allows none of the supported types."""


class NotRepresentable(RequestError):
    """The requested encoding or policy cannot express the result."""


class HttpError(RequestError):
    """Any other error, with its own status and code."""

    def __init__(
        self,
        status: int,
        message: str,
        code: str = "error",
        headers: tuple[Header, ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers


class Row(NamedTuple):
    """Status, code and reason for one exception class."""

    status: int
    code: str
    reason: FailureReason

    @property
    def outcome(self) -> Outcome:
        """Return the outcome that the model's statistics count."""
        found = _OUTCOMES.get(self.status)
        if found is None:
            found = Outcome.INVALID if self.status < 500 else Outcome.ERROR
        elif self.status == 503:
            found = _OUTCOMES_503.get(self.code, found)
        return found


_OTHER, _REJECTED = FailureReason.OTHER, FailureReason.REJECTED
_BACKEND, _CANCELED = FailureReason.BACKEND, FailureReason.CANCELED

ERRORS: dict[type[BaseException], Row] = {
    MalformedBody: Row(400, "malformed_body", _OTHER),
    InvalidRequest: Row(400, "invalid_request", _OTHER),
    InvalidTensor: Row(400, "invalid_input", _OTHER),
    UnknownModel: Row(404, "unknown_model", _OTHER),
    UnknownRegion: Row(404, "unknown_region", _OTHER),
    ModelNotReady: Row(503, "model_not_ready", _REJECTED),
    BodyTooLarge: Row(413, "body_too_large", _OTHER),
    BodyStopped: Row(408, "body_stopped", _OTHER),
    TransferMemoryFull: Row(503, "transfer_memory_full", _REJECTED),
    UnsupportedMediaType: Row(415, "unsupported_media_type", _OTHER),
    NotAcceptable: Row(406, "not_acceptable", _OTHER),
    NotRepresentable: Row(422, "not_representable", _OTHER),
    RequestError: Row(400, "invalid_request", _OTHER),
    QueueFull: Row(429, "queue_full", _REJECTED),
    DeadlineUnreachable: Row(429, "deadline_unreachable", _REJECTED),
    NoDeviceAvailable: Row(503, "no_device", _REJECTED),
    Refused: Row(503, "refused", _REJECTED),
    DeadlineExceeded: Row(504, "deadline_exceeded", _REJECTED),
    TimedOut: Row(504, "timed_out", _OTHER),
    # Only logs and metrics show this status, because the client has disconnected.
    Cancelled: Row(499, "cancelled", _CANCELED),
    Closed: Row(503, "model_closed", _REJECTED),
    DeviceLost: Row(503, "device_lost", _REJECTED),
    Gone: Row(503, "device_lost", _REJECTED),
    InvalidInput: Row(400, "invalid_input", _OTHER),
    UnknownAnchor: Row(400, "invalid_input", _OTHER),
    InvalidModel: Row(400, "invalid_model", _BACKEND),
    Invalid: Row(400, "invalid_request", _OTHER),
    ExecutionFailed: Row(500, "execution_failed", _BACKEND),
    NotFound: Row(404, "not_found", _BACKEND),
    AlreadyExists: Row(409, "already_exists", _BACKEND),
    CancelledByModel: Row(499, "cancelled", _CANCELED),
    Unsupported: Row(501, "unsupported", _BACKEND),
    OutOfMemory: Row(503, "out_of_memory", _BACKEND),
    MemoryError: Row(503, "out_of_memory", _REJECTED),
    WrongProcess: Row(500, "wrong_process", _OTHER),
    EngineError: Row(500, "internal_error", _OTHER),
    BaseException: Row(500, "internal_error", _OTHER),
}

# Seconds until a client should retry: a device restarts within that time.
RETRY_AFTER_DEVICE_LOST = 1
_PASSING = (Gone, Refused, ModelNotReady, TransferMemoryFull, OutOfMemory, MemoryError)
_CALLERS_FAULT = Row(400, "invalid_input", _BACKEND)


def row_of(error: BaseException) -> Row:
    """Return status, code and failure reason of an exception."""
    if isinstance(error, HttpError):
        return Row(error.status, error.code, _OTHER)
    if isinstance(error, ExecutionFailed) and error.callers_fault:
        return _CALLERS_FAULT
    return next(ERRORS[base] for base in type(error).__mro__ if base in ERRORS)


@dataclass(frozen=True, slots=True)
class ErrorStatuses:
    """The statuses of another server, if they differ from ours.

    `by_status` replaces one of our statuses. `by_error` is for errors of one class and
    comes first.
    """

    by_status: Mapping[int, int] = field(default_factory=dict)
    by_error: Mapping[type[BaseException], int] = field(default_factory=dict)

    def status(self, error: BaseException, status: int) -> int:
        """Return the status of an error that has `status` here."""
        found = self.by_error.get(type(error))
        return self.by_status.get(status, status) if found is None else found


_statuses = ErrorStatuses()


def use_statuses(statuses: ErrorStatuses) -> None:
    """Use these statuses from now on.

    Applies to the whole process, which has one server. Call it before the server
    accepts requests.
    """
    global _statuses
    _statuses = statuses


class ErrorResponse:
    """An error ready to be sent: a status, headers, and the body that all errors
    have.
    """

    __slots__ = ("body", "headers", "status")

    def __init__(self, status: int, body: bytes, extra: tuple[Header, ...] = ()):
        self.status = status
        self.body = body
        self.headers: list[Header] = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            *extra,
        ]

    @classmethod
    def of(
        cls, error: BaseException, request_id: bytes = b"", *, close: bool = False
    ) -> ErrorResponse:
        """Return the response to a request that failed with `error`.

        `request_id` is the request's id, by default the id of the request that this
        task answers. `close` makes the server close the connection, because part of
        the body is still unread. An internal error is logged with its traceback; the
        response does not show it.
        """
        row = row_of(error)
        message = str(error) or type(error).__name__
        if isinstance(error, MemoryError):
            message = "the server has no memory for the request now; retry later"
        shown = (request_id or current_request.get()).decode()
        if row.code == "internal_error":
            named = {"request_id": shown} if shown else {}
            logger.error("request failed: %s", message, exc_info=error, extra=named)
            if not isinstance(error, EngineError):
                message = "internal error; the server's log has the details"
        extra = retry_after(error)
        if isinstance(error, HttpError):
            extra += error.headers
        if close:
            extra += ((b"connection", b"close"),)
        status = _statuses.status(error, row.status)
        return cls(status, error_body(message, row.code, shown), extra)

    def __repr__(self) -> str:
        return f"<ErrorResponse {self.status} {self.body.decode()}>"


#: The page with an entry for each code: a code is the anchor of its entry.
ERRORS_PAGE = "docs/reference/errors.md"


def help_address(code: str) -> str:
    """Return the address of a code's entry in the documentation."""
    return f"{ERRORS_PAGE}#{code}"


def error_body(message: str, code: str, request_id: str = "") -> bytes:
    """Return the JSON body of an error."""
    body = {"error": message, "code": code, "help": help_address(code)}
    if request_id:
        body["request_id"] = request_id
    try:
        return orjson.dumps(body)
    # the message quotes a lone surrogate from a bad request
    except orjson.JSONEncodeError:
        body["error"] = message.encode("utf-8", "backslashreplace").decode()
        return orjson.dumps(body)


def retry_after(error: BaseException) -> tuple[Header, ...]:
    """Return the Retry-After headers if a retry can succeed, in rounded-up seconds.

    For a full queue, Retry-After-Ms gives the time in milliseconds too, for the clients
    that know this header.
    """
    if isinstance(error, Overloaded):
        seconds = error.retry_after
        return (
            (b"retry-after", b"%d" % max(1, math.ceil(seconds))),
            (b"retry-after-ms", b"%d" % max(1, math.ceil(seconds * 1000))),
        )
    if isinstance(error, _PASSING):
        return ((b"retry-after", b"%d" % RETRY_AFTER_DEVICE_LOST),)
    return ()


def labelled(error: E, label: str) -> E:
    """Return the error with a label before its message.

    It is a new object, because errors may be shared.
    """
    copy = type(error).__new__(type(error))
    copy.__dict__.update(error.__dict__)
    copy.args = (f"{label}: {error}", *error.args[1:])
    return copy
