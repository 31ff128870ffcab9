"""The protocol's logging extension: read and change the log settings."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

from fastapi import APIRouter, Request

from app.api.dependencies import MANAGEMENT, GatewayOf, read_object
from app.api.request_bodies import MOST, documented
from app.errors import InvalidRequest
from app.observe.log import LogControl
from popgate_triton.schemas import LogDocument, LogRequest, whole_number

router = APIRouter(prefix="/v2", tags=["open inference protocol"])

_FORMATS = ("default", "ISO8601")
_SWITCHES = {"log_info": "info", "log_warning": "warning", "log_error": "error"}


@router.get("/logging", summary="Show the log settings")
async def get_log_settings(gateway: GatewayOf) -> LogDocument:
    return _document(gateway.logging)


@router.post(
    "/logging",
    summary="Change the log settings",
    dependencies=MANAGEMENT,
    openapi_extra=documented(LogRequest),
)
async def update_log_settings(gateway: GatewayOf, request: Request) -> LogDocument:
    """Change the named settings and return all of them. They apply immediately.

    A `log_verbose_level` above 0 shows debugging records. `log_file` is refused,
    because the log goes to standard error.
    """
    changes = _parse(await read_object(request))
    gateway.logging.apply(replace(gateway.logging.settings, **changes))
    return _document(gateway.logging)


def _document(control: LogControl) -> LogDocument:
    values = asdict(control.settings)
    return LogDocument(
        log_file="", **{f"log_{name}": value for name, value in values.items()}
    )


def _parse(document: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of `LogSettings` that a document changes; raises
    `RequestError`.
    """
    changes: dict[str, Any] = {}
    for key, value in document.items():
        if key == "log_file":
            msg = "log file location can not be updated through network protocol"
            raise InvalidRequest(msg)
        if key in _SWITCHES:
            if not isinstance(value, bool):
                raise _wrong(key, "non-boolean as boolean", value)
            changes[_SWITCHES[key]] = value
        elif key == "log_verbose_level":
            level = whole_number(value)
            if level is None or not 0 <= level <= MOST:
                raise _wrong(key, "non-unsigned-integer as unsigned-integer", value)
            changes["verbose_level"] = level
        elif key == "log_format":
            if value not in _FORMATS:
                msg = f"invalid argument for log_format: expected one of {_FORMATS}"
                raise InvalidRequest(f"{msg}, got {value!r:.80}")
            changes["format"] = value
        else:
            known = ", ".join([*_SWITCHES, "log_verbose_level", "log_format"])
            msg = f"there is no log setting {key!r:.80}; known ones are {known}"
            raise InvalidRequest(msg)
    return changes


def _wrong(key: str, what: str, value: object) -> InvalidRequest:
    return InvalidRequest(
        f"Unable to parse '{key}': attempt to access JSON {what}, got {value!r:.80}"
    )
