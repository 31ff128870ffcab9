"""Common handling of arguments and answers of both clients."""

from __future__ import annotations

import os
import secrets
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from popgate_client.encodings import (
    UNREADABLE,
    Encoding,
    Outputs,
    Wanted,
    dumps,
    loads,
    outputs_of,
    words,
)
from popgate_client.errors import InvalidRequest, ServerError
from popgate_client.events import EventReader
from popgate_client.refusals import stream_error
from popgate_client.steps import PLAIN, CallOptions, Options, seconds

DEFAULT_URL = "http://127.0.0.1:8000"


def client_options(
    url: str | None,
    timeout: float | None,
    connect_timeout: float | None,
    retries: int,
    idempotent: bool,
    max_connections: int,
    max_answer: int,
    api_key: str | None,
    headers: Mapping[str, str] | None,
    encoding: Encoding | str | None,
    verify: Any,
    cert: Any,
    proxy: str | None,
) -> tuple[Options, dict[str, Any], bool]:
    """Return options, arguments for httpx, and whether plain connections suffice."""
    try:
        found = None if encoding is None else Encoding(encoding)
    except ValueError:
        known = ", ".join(e.value for e in Encoding)
        raise InvalidRequest(f"encoding {encoding}: expected one of {known}") from None
    for name, number, least in (
        ("max_connections", max_connections, 1),
        ("max_answer", max_answer, 0),
        ("retries", retries, 0),
    ):
        if not isinstance(number, int | float) or not number >= least:
            msg = f"{name} must be a number of at least {least}, got {number!r}"
            raise InvalidRequest(msg)
    if not isinstance(api_key, str | None):
        kind = type(api_key).__name__
        raise InvalidRequest(f"api_key must be a string, got {kind}")
    more = [("Authorization", f"Bearer {api_key}")] if api_key else []
    _check_mapping("headers", headers or {})
    options = Options(
        url or os.environ.get("POPGATE_URL") or DEFAULT_URL,
        timeout,
        seconds("connect_timeout", connect_timeout),
        retries,
        idempotent,
        max_connections,
        max_answer,
        found,
        (*more, *(headers or {}).items()),
    )
    arguments: dict[str, Any] = {"verify": verify}
    if cert is not None:
        arguments["cert"] = cert
    if proxy is not None:
        arguments["proxy"] = proxy
    return options, arguments, not options.secure and proxy is None


def _check_mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        msg = f"{name} must be a mapping, got {type(value).__name__}"
        raise InvalidRequest(msg)


def call_options(
    outputs: Wanted | None,
    parameters: Mapping[str, Any] | None,
    priority: int,
    request_id: str,
    timeout: float | None,
    headers: Mapping[str, str] | None,
) -> CallOptions:
    """Return the options of one call."""
    given = outputs or parameters or priority or request_id or headers
    if not given and timeout is None:
        return PLAIN
    _check_mapping("parameters", parameters or {})
    _check_mapping("headers", headers or {})
    if isinstance(outputs, Mapping):
        for name, said in outputs.items():
            _check_mapping(f"the options of output {name!r}", said)
    elif isinstance(outputs, str | bytes) or not isinstance(outputs, Collection | None):
        raise InvalidRequest(f"outputs must be a list of names, got {outputs!r:.80}")
    return CallOptions(outputs, parameters, priority, request_id, timeout, headers)


def inputs_of(value: Any, inputs: Mapping[str, Any]) -> Any:
    """Return values by name, or the value of the only input."""
    if not inputs:
        return {} if value is None else value
    if value is None:
        return inputs
    if isinstance(value, Mapping):
        return {**value, **inputs}
    raise InvalidRequest("give all values by name, or a single value without a name")


def new_sequence_id() -> int:
    """Return an id that no other sequence has."""
    return secrets.randbits(62) + 1


def ending(given: Any) -> Any:
    """Return zeros, or empty strings, in the form of the values of a request."""
    if isinstance(given, Mapping):
        return {name: ending(value) for name, value in given.items()}
    array = np.asarray(given)
    if array.dtype.kind in "OSU":
        return np.full(array.shape, b"", object)
    return np.zeros_like(array)


def load_parameters(
    parameters: Mapping[str, Any] | None, config: Mapping[str, Any] | str | None
) -> dict[str, Any]:
    """Return the document of a load."""
    _check_mapping("parameters", parameters or {})
    more = dict(parameters or {})
    if config is not None:
        more["config"] = config if isinstance(config, str) else dumps(config).decode()
    return {"parameters": more} if more else {}


def documents_in(reader: EventReader, piece: bytes) -> Iterator[dict[str, Any]]:
    """Yield the documents that a piece of a stream completes."""
    for data in reader.feed(piece):
        try:
            document = loads(data)
        except ValueError as e:
            raise ServerError(
                f"an event of the stream is not JSON: {e}", sent=True
            ) from None
        if not isinstance(document, dict):
            raise ServerError("an event of the stream is not a JSON object", sent=True)
        if "error" in document:
            raise stream_error(document)
        yield document


def response_of(document: Mapping[str, Any]) -> Outputs:
    """Return the outputs of one document. Raises `ServerError`."""
    try:
        return outputs_of(document)
    except UNREADABLE as e:
        msg = f"a response of the stream cannot be read: {words(e)}"
        raise ServerError(msg, sent=True) from None
