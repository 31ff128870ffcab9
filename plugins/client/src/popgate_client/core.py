"""Logic of a client without I/O: requests to send, waits, results.

Every call is a generator that yields round trips and pauses and returns its result. The
two clients differ only in how they run one: blocking, or in an event loop.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import numpy as np

from popgate_client.encodings import (
    Encoding,
    Outputs,
    Parts,
    decode,
    dumps,
    loads,
    size_of,
)
from popgate_client.errors import (
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    ServerError,
    Unavailable,
)
from popgate_client.http1 import Answer, check_headers
from popgate_client.known_model import KnownModel, prepared
from popgate_client.refusals import answer_error
from popgate_client.steps import (
    LIFETIME,
    CallOptions,
    Options,
    Pause,
    RoundTrip,
    Steps,
    seconds,
)

BINARY_EXTENSION = "binary_tensor_data"
FIRST_PAUSE = 0.05  # seconds before a second attempt, unless the server names a time
LONGEST_PAUSE = 2.0
_clock = time.monotonic


class Core:
    """All calls of a client as steps. Thread-safe: its memory only grows."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._binary: bool | None = None
        self._models: dict[tuple[str, str], KnownModel] = {}

    # Inference

    def infer(
        self, model: str, version: str, value: Any, options: CallOptions
    ) -> Steps[Outputs]:
        """Send one request and return its response."""
        limit = self._limit(options.timeout)
        deadline = _deadline(limit)
        known, inputs = yield from self._asked(model, version, value, deadline)
        safe = options.sequence is None
        attempt = 0
        while True:
            request, parts = known.request(inputs, options, limit)
            try:
                answer = yield RoundTrip(request, parts, deadline)
                if answer.status == 200:
                    return decode(answer, *known.outputs[:1])
                raise answer_error(answer, options.request_id)
            except ClientError as error:
                if isinstance(error, InvalidRequest | NotFound):
                    # the model may have changed
                    self._models.pop((model, version), None)
                attempt += 1
                pause = self._pause(error, attempt, deadline, safe=safe)
            yield Pause(pause)
            if limit is not None:
                limit = max(deadline - _clock(), 1e-6)

    def prepare(
        self,
        model: str,
        version: str,
        value: Any,
        options: CallOptions,
        *,
        stream: bool,
    ) -> Steps[bytes]:
        """Return a request as the bytes to send, including its head."""
        limit = self._limit(options.timeout)
        deadline = _deadline(limit)
        known, inputs = yield from self._asked(model, version, value, deadline)
        make = known.stream if stream else known.request
        request, parts = make(inputs, options, limit)
        pieces = [p if isinstance(p, bytes) else p.tobytes() for p in parts]
        return b"".join([request.head, *pieces])

    def events(
        self, model: str, version: str, value: Any, options: CallOptions
    ) -> Steps[RoundTrip]:
        """Return the request whose answer is a stream of responses."""
        limit = self._limit(options.timeout)
        deadline = _deadline(limit)
        known, inputs = yield from self._asked(model, version, value, deadline)
        request, parts = known.stream(inputs, options, limit)
        return RoundTrip(request, parts, deadline)

    def _asked(
        self, model: str, version: str, value: Any, deadline: float
    ) -> Steps[tuple[KnownModel, Mapping[str, Any]]]:
        """Return the model and its inputs by name. The first call requests its
        description.
        """
        known = self._models.get((model, version))
        if known is None:
            known = yield from self._learn(model, version, deadline)
        return known, known.named(model, value)

    def _limit(self, timeout: float | None) -> float | None:
        """Return the time limit of a call in seconds: its own, or the client's; None if
        there is none. Raises `InvalidRequest`.
        """
        limit = seconds("timeout", self.options.timeout if timeout is None else timeout)
        return limit if limit < LIFETIME else None

    def generation(
        self,
        model: str,
        version: str,
        fields: Mapping[str, Any],
        timeout: float | None,
        *,
        stream: bool,
    ) -> RoundTrip:
        """Return a request of the generate extension: a flat object."""
        limit = self._limit(timeout)
        plain = {
            name: item.tolist() if isinstance(item, np.ndarray | np.generic) else item
            for name, item in fields.items()
        }
        body = dumps(plain)
        headers = {"Content-Type": "application/json"}
        if limit is not None:  # a header, because a field would be passed to the model
            headers["X-Request-Timeout"] = f"{limit:.6f}"
        if stream:
            headers["Accept"] = "text/event-stream"
        path = _model_path(model, version)
        path += "/generate_stream" if stream else "/generate"
        return self._round_trip("POST", path, [body], headers, limit)

    def generate(
        self, model: str, version: str, fields: Mapping[str, Any], timeout: float | None
    ) -> Steps[dict[str, Any]]:
        """Return the answer of the generate extension."""
        ask = self.generation(model, version, fields, timeout, stream=False)
        answer = yield from self._send(ask, safe=True)
        return _object(answer)

    def _learn(self, model: str, version: str, deadline: float) -> Steps[KnownModel]:
        """Learn the model's inputs, and whether the server reads binary tensors. If the
        server does not describe the model, values keep their own types.
        """
        path = _model_path(model, version)
        encoding = self.options.encoding
        binary = encoding is Encoding.binary if encoding else self._binary
        if binary is None:
            document = yield from self._ask_softly("/v2", deadline)
            if document is not None:
                extensions = document.get("extensions") or ()
                binary = self._binary = BINARY_EXTENSION in extensions
        metadata, problem = None, None
        try:
            metadata = yield from self._document(path, deadline)
        except (ConnectionFailed, DeadlineExceeded):
            raise
        except ClientError as error:
            problem = error
        try:
            known = KnownModel(self.options, path, bool(binary), metadata or {})
        except (KeyError, TypeError, AttributeError):
            known = KnownModel(self.options, path, bool(binary), {})
        known.problem = problem
        if metadata is not None and binary is not None:
            self._models[model, version] = known
        return known

    def _ask_softly(self, path: str, deadline: float) -> Steps[dict[str, Any] | None]:
        """Return a document, or None if the server does not return one."""
        try:
            document = yield from self._document(path, deadline)
        except (ConnectionFailed, DeadlineExceeded):
            raise
        except ClientError:
            return None
        return document

    def _document(self, path: str, deadline: float) -> Steps[dict[str, Any] | None]:
        document = yield from self.ask("GET", path, timeout=deadline - _clock())
        return document if isinstance(document, dict) else None

    # Everything else

    def ask(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Steps[Any]:
        """Return the JSON of a path; None for an empty body.

        Retries if the server cannot accept the call now.
        """
        body = b"" if document is None else dumps(document)
        headers = {"Content-Type": "application/json"} if method != "GET" else {}
        limit = self._limit(timeout)
        ask = self._round_trip(method, path, [body], headers, limit)
        answer = yield from self._send(ask, safe=method == "GET")
        if not len(answer.body):
            return None
        return _json(answer)

    def says_yes(self, path: str, end: float = math.inf) -> Steps[bool]:
        """Return whether a path answers with 200; False also if the server cannot be
        reached. `end`: a time of `time.monotonic`, if it is before the deadline.
        """
        ask = self._round_trip("GET", path, [b""], {}, self._limit(None))
        try:
            answer = yield ask._replace(deadline=min(ask.deadline, end))
        except ConnectionFailed:
            return False
        return bool(answer.status == 200)

    def wait_until(self, path: str, timeout: float, what: str) -> Steps[None]:
        """Wait until a path answers with 200."""
        limit = seconds("timeout", timeout)
        end = _clock() + limit
        while True:
            with suppress(DeadlineExceeded):
                said = yield from self.says_yes(path, end)
                if said:
                    return
            if _clock() + FIRST_PAUSE >= end:
                raise DeadlineExceeded(f"{what} is not ready after {limit:g} s")
            yield Pause(FIRST_PAUSE)

    def models(self) -> Steps[list[dict[str, Any]]]:
        """Return the models of the repository, or the ready models if the server has no
        repository.
        """
        try:
            index = yield from self.ask("POST", "/v2/repository/index", {})
            return list(index or ())
        except NotFound:
            document = yield from self.ask("GET", "/v2/models")
            return [{"name": n, "state": "READY"} for n in document["models"]]

    def _round_trip(
        self,
        method: str,
        path: str,
        parts: Parts,
        headers: Mapping[str, str],
        limit: float | None,
    ) -> RoundTrip:
        size = sum(map(size_of, parts))
        check_headers([("Path", path)])
        target = self.options.base + path
        request = prepared(self.options, method, target, headers, size)
        return RoundTrip(request, parts, _deadline(limit))

    def _send(self, ask: RoundTrip, *, safe: bool) -> Steps[Answer]:
        attempt = 0
        while True:
            try:
                answer: Answer = yield ask
                if answer.status == 200:
                    return answer
                raise answer_error(answer)
            except ClientError as error:
                attempt += 1
                pause = self._pause(error, attempt, ask.deadline, safe=safe)
            yield Pause(pause)

    def _pause(
        self, error: ClientError, attempt: int, deadline: float, *, safe: bool
    ) -> float:
        """Return seconds until the next attempt. Raises the error if the call must not
        be retried.

        A call is retried if no server has received it, or if a server has refused it.
        If `safe`, it is also retried if the answer says that it may have begun (a lost
        device). A call without an answer is retried only if calls may run twice
        (`idempotent`).
        """
        refused = isinstance(error, Unavailable) and (
            error.status == 429 or (safe and error.status == 503)
        )
        unseen = isinstance(error, ConnectionFailed) and not error.sent
        again = refused or unseen
        if safe and self.options.idempotent and not again:
            # A proxy without its server sent this: inference servers send codes, or
            # JSON.
            lost = error.status in (500, 502) and not error.code
            again = lost or isinstance(error, ConnectionFailed)
        if attempt > self.options.retries or not again:
            raise error
        named = error.retry_after
        # Others may take the room that the server names, so a second refusal means more
        # than that: short pauses would use up all attempts at once.
        doubled = attempt - 1 if named is None else attempt - 2
        longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2**doubled) if doubled >= 0 else 0.0
        pause = max(named or 0.0, longest * random.uniform(0.5, 1.0))
        if _clock() + pause >= deadline or pause >= LIFETIME:
            raise error
        return pause


def _deadline(limit: float | None) -> float:
    """Return the deadline of a call that begins now and may take `limit` seconds."""
    return float("inf") if limit is None else _clock() + limit


def _json(answer: Answer) -> Any:
    try:
        return loads(answer.body)
    except ValueError as e:
        msg = f"the server's answer is not JSON: {e}"
        raise ServerError(msg, status=answer.status, sent=True) from None


def _object(answer: Answer) -> dict[str, Any]:
    document = _json(answer)
    if not isinstance(document, dict):
        raise ServerError(
            "the server's answer is not a JSON object", status=answer.status
        )
    return document


def _model_path(model: str, version: str) -> str:
    if not model:
        raise InvalidRequest("the model's name is empty; name a model")
    path = f"/v2/models/{quoted(model)}"
    return f"{path}/versions/{quoted(str(version))}" if version else path


def quoted(name: str) -> str:
    """Return a name as a part of a path. Raises `InvalidRequest`."""
    try:
        return quote(name, safe="")
    except UnicodeEncodeError as e:
        msg = f"the name {name!r} is not valid Unicode: {e.reason}"
    except TypeError:
        msg = f"a name must be a string, got {name!r}"
    raise InvalidRequest(msg)


def model_path(model: str = "", version: str = "") -> str:
    """Return the path of a model, or of the server."""
    return _model_path(model, version) if model else "/v2"


def ready_path(model: str = "", version: str = "") -> str:
    """Return the path of the readiness check of a model, or of the server."""
    return f"{_model_path(model, version)}/ready" if model else "/v2/health/ready"


def repository_path(model: str, verb: str) -> str:
    """Return the path that loads or unloads a model."""
    return f"/v2/repository{_model_path(model, '').removeprefix('/v2')}/{verb}"
