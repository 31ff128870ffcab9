"""What a client does, without doing it: requests to send, waits, results.

Every call is a generator that yields exchanges and pauses and returns its result. The
two clients differ only in how they run one: blocking, or in an event loop.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import numpy as np
import orjson

from popgate.client.encodings import (
    CONTENT_TYPES,
    HEADER_LENGTH,
    Encoding,
    Outputs,
    Parts,
    decode,
    encode,
    head_of_binary,
    loads,
    size_of,
)
from popgate.client.errors import (
    ClientError,
    ConnectionFailed,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    ServerError,
    Unavailable,
)
from popgate.client.http1 import Answer, check_headers, request_head
from popgate.client.refusals import answer_error
from popgate.client.steps import (
    PLAIN,
    CallOptions,
    Exchange,
    Options,
    Pause,
    Prepared,
    Steps,
)
from popgate.client.tensors import DTYPES, Tensor, tensor_of

BINARY_EXTENSION = "binary_tensor_data"
#: Prepared requests that are kept for a model: one for each combination of shapes.
MOST_PREPARED = 64
FIRST_PAUSE = 0.05  # seconds before a second attempt, where the server names none
LONGEST_PAUSE = 2.0
_MICROSECONDS = 1_000_000
_clock = time.monotonic


class _Model:
    """A model as far as calls need it. Without what it takes where nobody says."""

    __slots__ = ("binary", "inputs", "outputs", "path", "prepared")

    def __init__(self, path: str, binary: bool, metadata: Mapping[str, Any]) -> None:
        self.path = path
        self.binary = binary
        self.inputs = {
            str(i["name"]): (str(i["datatype"]), i.get("shape"), _dtype(i["datatype"]))
            for i in metadata.get("inputs") or ()
        }
        self.outputs = [str(o["name"]) for o in metadata.get("outputs") or ()]
        self.prepared: dict[Any, Prepared] = {}


def _dtype(datatype: str) -> np.dtype[Any] | None:
    """Of arrays that can be sent as they are."""
    return None if datatype in ("BYTES", "BF16") else DTYPES.get(datatype)


class Core:
    """All calls of a client as steps. Thread-safe: what it remembers is only added."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._binary: bool | None = None
        self._models: dict[tuple[str, str], _Model] = {}

    # Inference

    def infer(
        self, model: str, version: str, value: Any, options: CallOptions
    ) -> Steps[Outputs]:
        """One response to one request."""
        known, inputs = yield from self._asked(model, version, value)
        limit = self._limit(options.timeout)
        deadline = _clock() + limit if limit is not None else float("inf")
        safe = options.sequence is None
        attempt = 0
        while True:
            request, parts = self._request(known, inputs, options, limit)
            try:
                answer = yield Exchange(request, parts, deadline)
                if answer.status == 200:
                    return decode(answer, *known.outputs[:1])
                raise answer_error(answer, options.request_id)
            except ClientError as error:
                if isinstance(error, InvalidRequest | NotFound):
                    self._models.pop((model, version), None)  # it may have changed
                attempt += 1
                pause = self._pause(error, attempt, deadline, safe=safe)
            yield Pause(pause)
            if limit is not None:
                limit = max(deadline - _clock(), 1e-6)

    def prepare(
        self, model: str, version: str, value: Any, options: CallOptions
    ) -> Steps[bytes]:
        """A request as the bytes that are sent, head and all."""
        known, inputs = yield from self._asked(model, version, value)
        request, parts = self._request(known, inputs, options, self.options.timeout)
        pieces = [p if isinstance(p, bytes) else p.tobytes() for p in parts]
        return b"".join([request.head, *pieces])

    def events(
        self, model: str, version: str, value: Any, options: CallOptions
    ) -> Steps[Exchange]:
        """The request whose answer is a stream of responses."""
        known, inputs = yield from self._asked(model, version, value)
        limit = self._limit(options.timeout)
        encoding = self.options.encoding
        if encoding is None:
            encoding = Encoding.binary if known.binary else Encoding.json
        headers, parts = encode(
            encoding,
            [self._tensor(known, name, item) for name, item in inputs.items()],
            options.outputs,
            _parameters(options, limit),
            options.request_id,
            events=True,
        )
        headers |= options.headers or {}
        return self._exchange("POST", f"{known.path}/infer", parts, headers, limit)

    def _asked(
        self, model: str, version: str, value: Any
    ) -> Steps[tuple[_Model, Mapping[str, Any]]]:
        """The model, asked about itself the first time, and its inputs by name."""
        known = self._models.get((model, version))
        if known is None:
            known = yield from self._learn(model, version)
        if isinstance(value, Mapping):
            return known, value
        return known, _only(known, model, value)

    def _limit(self, timeout: float | None) -> float | None:
        """Seconds that a call may take: its own word, or the client's."""
        return timeout if timeout is not None else self.options.timeout

    def generation(
        self,
        model: str,
        version: str,
        fields: Mapping[str, Any],
        timeout: float | None,
        *,
        stream: bool,
    ) -> Exchange:
        """A request of the generate extension: a flat object."""
        limit = self._limit(timeout)
        plain = {
            name: item.tolist() if isinstance(item, np.ndarray | np.generic) else item
            for name, item in fields.items()
        }
        try:
            body = orjson.dumps(plain)
        except TypeError as e:
            raise InvalidRequest(f"this cannot be said in JSON: {e}") from None
        headers = {"Content-Type": "application/json"}
        if limit is not None:  # a field would be an input or parameter of the model's
            headers["X-Request-Timeout"] = f"{limit:.6f}"
        if stream:
            headers["Accept"] = "text/event-stream"
        path = _model_path(model, version)
        path += "/generate_stream" if stream else "/generate"
        return self._exchange("POST", path, [body], headers, limit)

    def generate(
        self, model: str, version: str, fields: Mapping[str, Any], timeout: float | None
    ) -> Steps[dict[str, Any]]:
        """One answer of the generate extension."""
        ask = self.generation(model, version, fields, timeout, stream=False)
        answer = yield from self._send(ask, safe=True)
        return _object(answer)

    def _request(
        self,
        known: _Model,
        inputs: Mapping[str, Any],
        options: CallOptions,
        limit: float | None,
    ) -> tuple[Prepared, Parts]:
        """The request as it is sent; what stands in front of the tensors is prepared
        once for each combination of shapes."""
        if not known.binary:
            return self._unprepared(known, inputs, options, limit)
        described = []
        parts: Parts = []
        for name, value in inputs.items():
            spec = known.inputs.get(name)
            if (
                type(value) is np.ndarray
                and spec is not None
                and value.dtype == spec[2]
                and value.flags.c_contiguous
                and len(value.shape) == len(spec[1] or value.shape)
            ):
                described.append((name, spec[0], value.shape, value.nbytes))
                parts.append(value)
                continue
            tensor = self._tensor(known, name, value)
            raw = tensor.raw()
            shape = tensor.array.shape
            described.append((name, tensor.datatype, shape, size_of(raw)))
            parts.append(raw)
        key: Any = tuple(described)
        if options is not PLAIN:
            key = (key, _key(options), limit)
            if options.request_id or _unhashable(key):
                key = None
        elif limit != self.options.timeout:
            key = None
        prepared = known.prepared.get(key) if key is not None else None
        if prepared is None:
            prepared = self._prepare(known, described, options, limit)
            if key is not None:
                if len(known.prepared) >= MOST_PREPARED:
                    known.prepared.clear()
                known.prepared[key] = prepared
        return prepared, parts

    def _prepare(
        self,
        known: _Model,
        described: Sequence[tuple[str, str, Sequence[int], int]],
        options: CallOptions,
        limit: float | None,
    ) -> Prepared:
        parameters = _parameters(options, limit)
        document = head_of_binary(
            described, options.outputs, parameters, options.request_id
        )
        size = len(document) + sum(item[3] for item in described)
        headers = {
            "Content-Type": CONTENT_TYPES[Encoding.binary],
            HEADER_LENGTH: str(len(document)),
            **(options.headers or {}),
        }
        target = f"{self.options.base}{known.path}/infer"
        return self._prepared("POST", target, headers, size, document)

    def _prepared(
        self,
        method: str,
        target: str,
        more: Mapping[str, str],
        size: int,
        document: bytes = b"",
    ) -> Prepared:
        headers = (*self.options.headers, *more.items())
        check_headers(headers)
        head = request_head(method, target, self.options.host, headers, size)
        return Prepared(method, target, headers, head + document, document)

    def _unprepared(
        self,
        known: _Model,
        inputs: Mapping[str, Any],
        options: CallOptions,
        limit: float | None,
    ) -> tuple[Prepared, Parts]:
        headers, parts = encode(
            self.options.encoding or Encoding.json,
            [self._tensor(known, name, value) for name, value in inputs.items()],
            options.outputs,
            _parameters(options, limit),
            options.request_id,
        )
        headers |= options.headers or {}
        target = f"{self.options.base}{known.path}/infer"
        size = sum(map(size_of, parts))
        return self._prepared("POST", target, headers, size), parts

    @staticmethod
    def _tensor(known: _Model, name: str, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value
        spec = known.inputs.get(name)
        if spec is not None:
            return tensor_of(name, value, spec[0], spec[1])
        if known.inputs:
            takes = ", ".join(known.inputs)
            raise InvalidRequest(f"no input {name!r}; the model takes {takes}")
        return tensor_of(name, value)

    def _learn(self, model: str, version: str) -> Steps[_Model]:
        """What the model takes, and whether the server reads binary tensors. A server
        that does not say is sent what the values are by themselves."""
        path = _model_path(model, version)
        encoding = self.options.encoding
        binary = encoding is Encoding.binary if encoding else self._binary
        if binary is None:
            document = yield from self._ask_softly("/v2")
            if document is not None:
                extensions = document.get("extensions") or ()
                binary = self._binary = BINARY_EXTENSION in extensions
        metadata = yield from self._ask_softly(path)
        try:
            known = _Model(path, bool(binary), metadata or {})
        except (KeyError, TypeError, AttributeError):
            known = _Model(path, bool(binary), {})
        if metadata is not None and binary is not None:
            self._models[model, version] = known
        return known

    def _ask_softly(self, path: str) -> Steps[dict[str, Any] | None]:
        """A document, or None where the server does not give one."""
        try:
            document = yield from self.ask("GET", path)
        except (ConnectionFailed, DeadlineExceeded):
            raise
        except ClientError:
            return None
        return document if isinstance(document, dict) else None

    # Everything else

    def ask(
        self,
        method: str,
        path: str,
        document: Mapping[str, Any] | None = None,
        timeout: float | None = None,
    ) -> Steps[Any]:
        """What a path answers, in JSON; None for an empty body. Retried where the
        server cannot take it now."""
        body = b"" if document is None else orjson.dumps(document)
        headers = {"Content-Type": "application/json"} if method != "GET" else {}
        limit = self._limit(timeout)
        ask = self._exchange(method, path, [body], headers, limit)
        answer = yield from self._send(ask, safe=method == "GET")
        if not len(answer.body):
            return None
        return _json(answer)

    def says_yes(self, path: str) -> Steps[bool]:
        """Whether a path answers with 200; False where nobody answers."""
        ask = self._exchange("GET", path, [b""], {}, self.options.timeout)
        try:
            answer = yield ask
        except ConnectionFailed:
            return False
        return bool(answer.status == 200)

    def wait_until(self, path: str, timeout: float, what: str) -> Steps[None]:
        """Until a path answers with 200."""
        end = _clock() + timeout
        while True:
            said = yield from self.says_yes(path)
            if said:
                return
            if _clock() + FIRST_PAUSE >= end:
                msg = f"{what} is not ready after {timeout:g} s"
                raise DeadlineExceeded(msg)
            yield Pause(FIRST_PAUSE)

    def models(self) -> Steps[list[dict[str, Any]]]:
        """What the repository holds; without one, what is ready."""
        try:
            index = yield from self.ask("POST", "/v2/repository/index", {})
            return list(index or ())
        except NotFound:
            document = yield from self.ask("GET", "/v2/models")
            return [{"name": n, "state": "READY"} for n in document["models"]]

    def _exchange(
        self,
        method: str,
        path: str,
        parts: Parts,
        headers: Mapping[str, str],
        limit: float | None,
    ) -> Exchange:
        size = sum(map(size_of, parts))
        target = self.options.base + path
        request = self._prepared(method, target, headers, size)
        deadline = _clock() + limit if limit is not None else float("inf")
        return Exchange(request, parts, deadline)

    def _send(self, ask: Exchange, *, safe: bool) -> Steps[Answer]:
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
        """Seconds until the next attempt. Raises the error where there is to be none.

        Again goes what no server has seen, and what one has refused. `safe`: also what
        may have begun and says so (a lost device); what ended without an answer only
        where the user says that calls may run twice.
        """
        refused = isinstance(error, Unavailable) and (
            error.status == 429 or (safe and error.status == 503)
        )
        unseen = isinstance(error, ConnectionFailed) and not error.sent
        again = refused or unseen
        if safe and self.options.idempotent and not again:
            # Of a proxy whose server has gone: servers of models give codes, or JSON.
            lost = error.status in (500, 502) and not error.code
            again = lost or isinstance(error, ConnectionFailed)
        if attempt > self.options.retries or not again:
            raise error
        pause = error.retry_after
        if pause is None:
            longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2 ** (attempt - 1))
            pause = longest * random.uniform(0.5, 1.0)
        if _clock() + pause >= deadline:
            raise error
        return pause


def _json(answer: Answer) -> Any:
    try:
        return loads(answer.body)
    except ValueError as e:
        msg = f"the server's answer is not JSON: {e}"
        raise ServerError(msg, status=answer.status, sent=True) from None


def _object(answer: Answer) -> dict[str, Any]:
    document = _json(answer)
    if not isinstance(document, dict):
        raise ServerError("the server's answer is no object", status=answer.status)
    return document


def _only(known: _Model, model: str, value: Any) -> Mapping[str, Any]:
    if len(known.inputs) != 1:
        names = ", ".join(known.inputs) or "unknown"
        raise InvalidRequest(f"give values by name: the inputs of {model} are {names}")
    return {next(iter(known.inputs)): value}


def _parameters(options: CallOptions, limit: float | None) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    if limit is not None:
        parameters["timeout"] = max(1, round(limit * _MICROSECONDS))
    if options.priority:
        parameters["priority"] = options.priority
    if options.sequence is not None:
        identifier, start, end = options.sequence
        parameters |= {
            "sequence_id": identifier,
            "sequence_start": start,
            "sequence_end": end,
        }
    return parameters | dict(options.parameters or {})


def _key(options: CallOptions) -> tuple[Any, ...]:
    def items(mapping: Mapping[str, Any] | None) -> tuple[Any, ...]:
        return tuple((k, type(v), v) for k, v in (mapping or {}).items())

    wanted = options.outputs
    outputs = (
        tuple((name, items(said)) for name, said in wanted.items())
        if isinstance(wanted, Mapping)
        else wanted and tuple(wanted)
    )
    return (
        outputs,
        items(options.parameters),
        items(options.headers),
        options.priority,
        options.sequence,
    )


def _unhashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return True
    return False


def _model_path(model: str, version: str) -> str:
    if not model:
        raise InvalidRequest("a model's name is empty")
    path = f"/v2/models/{quote(model, safe='')}"
    return f"{path}/versions/{quote(version, safe='')}" if version else path


def model_path(model: str = "", version: str = "") -> str:
    """The path of a model, or of the server."""
    return _model_path(model, version) if model else "/v2"


def ready_path(model: str = "", version: str = "") -> str:
    """Where a model, or the server, says whether it takes requests."""
    return f"{_model_path(model, version)}/ready" if model else "/v2/health/ready"


def repository_path(model: str, verb: str) -> str:
    """Where a model is loaded and unloaded."""
    return f"/v2/repository{_model_path(model, '').removeprefix('/v2')}/{verb}"
