"""Common handling of arguments and answers of both clients."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator, Mapping
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
from popgate_client.steps import PLAIN, CallOptions, Options

DEFAULT_URL = "http://127.0.0.1:8000"


def client_options(
    url: str | None,
    timeout: float | None,
    connect_timeout: float,
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
    if max_connections < 1 or retries < 0:
        raise InvalidRequest(
            "max_connections must be at least 1, and retries at least 0"
        )
    more = [("Authorization", f"Bearer {api_key}")] if api_key else []
    options = Options(
        url or os.environ.get("POPGATE_URL") or DEFAULT_URL,
        timeout,
        connect_timeout,
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
