"""The protocol's trace extension: read and change which requests are traced."""

from __future__ import annotations

import re
from typing import Any

from fastapi import APIRouter, Request

from app.api.delegation import ModelName, Version
from app.api.dependencies import MANAGEMENT, GatewayOf, find_version, read_object
from app.api.request_bodies import MOST, documented
from app.errors import HttpError, InvalidRequest, UnknownModel
from app.gateway import Gateway
from popgate_triton.schemas import TraceDocument, TraceRequest, whole_number
from popgate_triton.traces import LEVELS, TritonTracing

router = APIRouter(prefix="/v2", tags=["open inference protocol"])

_MODEL = "/models/{name}/trace/setting"
_VERSION = "/models/{name}/versions/{version}/trace/setting"
# A number in a string has only this spelling, so that typing mistakes are refused.
_TEXT = re.compile(r"-1|0|[1-9][0-9]{0,15}")
# Setting, field of `TraceSettings`, smallest value.
_NUMBERS = {
    "trace_rate": ("rate", 1),
    "trace_count": ("count", -1),
    "log_frequency": ("log_frequency", 0),
}


class UnknownModelTraced(UnknownModel):
    """The model whose trace is requested is unknown, in the protocol's words."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.args = (f"Request for unknown model : {name}",)


@router.get("/trace/setting", summary="Show the trace settings")
async def get_trace(gateway: GatewayOf) -> TraceDocument:
    return _document(_tracing(gateway), None)


@router.post(
    "/trace/setting",
    summary="Change the trace settings",
    dependencies=MANAGEMENT,
    openapi_extra=documented(TraceRequest),
)
async def update_trace(gateway: GatewayOf, request: Request) -> TraceDocument:
    """Change the named settings and return all of them; null reverts a change.

    - `trace_level`: a list of OFF, TIMESTAMPS or TENSORS
    - `trace_rate`: the server traces one request in this many
    - `trace_count`: most traces to write; -1: no limit
    - `trace_file`: refused, because `--trace-file` sets it when the server starts
    """
    return _update(gateway, None, await read_object(request))


@router.get(_MODEL, summary="Show the trace settings of a model")
async def get_model_trace(gateway: GatewayOf, name: ModelName) -> TraceDocument:
    return _document(_tracing(gateway), _known(gateway, name))


@router.post(
    _MODEL,
    summary="Change the trace settings of a model",
    dependencies=MANAGEMENT,
    openapi_extra=documented(TraceRequest),
)
async def update_model_trace(
    gateway: GatewayOf, request: Request, name: ModelName
) -> TraceDocument:
    """Change the settings of one model; null restores the server's setting."""
    return _update(gateway, _known(gateway, name), await read_object(request))


@router.get(_VERSION, summary="Show the trace settings of a version")
async def get_version_trace(
    gateway: GatewayOf, name: ModelName, version: Version
) -> TraceDocument:
    """Return the settings of the model: versions have none of their own."""
    return _document(_tracing(gateway), _known(gateway, name, version))


@router.post(
    _VERSION,
    summary="Change the trace settings of a version",
    dependencies=MANAGEMENT,
    openapi_extra=documented(TraceRequest),
)
async def update_version_trace(
    gateway: GatewayOf, request: Request, name: ModelName, version: Version
) -> TraceDocument:
    """Change the settings of the model: versions have none of their own."""
    name = _known(gateway, name, version)
    return _update(gateway, name, await read_object(request))


def _known(gateway: Gateway, name: str, version: str | None = None) -> str:
    record = gateway.records.get(name)
    if record is None:
        raise UnknownModelTraced(name)
    find_version(record, version)
    return name


def _tracing(gateway: Gateway) -> TritonTracing:
    if not isinstance(gateway.tracing, TritonTracing):
        msg = "another plugin writes the traces of this server"
        raise HttpError(501, msg, "unsupported")
    return gateway.tracing


def _document(tracing: TritonTracing, model: str | None) -> TraceDocument:
    settings = tracing.settings(model)
    return TraceDocument(
        trace_level=list(settings.level),
        trace_rate=str(settings.rate),
        trace_count=str(settings.count),
        log_frequency=str(settings.log_frequency),
        trace_file=tracing.path,
        trace_mode="triton",
    )


def _update(
    gateway: Gateway, model: str | None, document: dict[str, Any]
) -> TraceDocument:
    tracing = _tracing(gateway)
    changes = _parse(document)
    level = changes.get("level")
    if level not in (None, ("OFF",)) and not tracing.path:
        msg = (
            "trace_level cannot be set because the server writes no trace file; start "
            "the server with --trace-file"
        )
        raise InvalidRequest(msg)
    tracing.update(model, changes)
    return _document(tracing, model)


def _parse(document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `TraceSettings` that a document changes; None reverts a
    change.
    """
    changes: dict[str, Any] = {}
    for key, value in document.items():
        if key == "trace_file":
            msg = "trace file location can not be updated through network protocol"
            raise InvalidRequest(msg)
        if key == "trace_level":
            changes["level"] = _level(value)
        elif key in _NUMBERS:
            field, low = _NUMBERS[key]
            changes[field] = _number(key, value, low)
        elif key != "trace_mode" or value not in (None, "triton"):
            known = ", ".join(["trace_level", *_NUMBERS])
            msg = f"trace setting {key!r:.80} cannot be {value!r:.80}"
            raise InvalidRequest(f"{msg}; known settings are {known}")
    return changes


def _level(value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    names = value if isinstance(value, list) else []
    if not names or any(name not in LEVELS for name in names):
        msg = f"trace_level must be a list out of {LEVELS}, got {value!r:.80}"
        raise InvalidRequest(msg)
    wanted = tuple(name for name in LEVELS[1:] if name in names)
    return ("OFF",) if "OFF" in names else wanted


def _number(key: str, value: object, low: int) -> int | None:
    """Return a number that may be a string, as stock clients send it."""
    if value is None:
        return None
    is_text = isinstance(value, str) and _TEXT.fullmatch(value)
    number = int(str(value)) if is_text else whole_number(value)
    if number is None or not low <= number <= MOST:
        msg = f"'{key}' must be a whole number from {low} to {MOST}, got {value!r:.80}"
        raise InvalidRequest(msg)
    return number
