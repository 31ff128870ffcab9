"""The generate extension: flat JSON in, flat JSON or server-sent events out."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api.delegation import ERROR_RESPONSES, declare
from app.http.application import Operation
from popgate_triton.generate import GenerateForm
from popgate_triton.schemas import GenerateResponse

router = APIRouter(tags=["open inference protocol"])

_EXTRA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/GenerateRequest"}
            }
        },
    }
}
_TEXT = """Fields that are named like inputs of the model are tensors, all others are
parameters of the request. A single value needs no brackets.
"""
_EVENTS = """Every response of the model is an event `data: {…}`. An error that comes
after the first event is an event, too: `data: {"error": …}`.
"""


OPERATIONS = (
    Operation("/v2/models/", "/generate", GenerateForm),
    Operation("/v2/models/", "/generate_stream", GenerateForm, in_events=True),
)

for _operation, _summary in zip(
    OPERATIONS,
    ("Run a model on flat JSON", "Run a model on flat JSON, in events"),
    strict=True,
):
    _success: dict[str, Any] = {"model": GenerateResponse}
    if _operation.in_events:
        _success = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
    for _model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
        declare(
            router,
            _model + _operation.suffix,
            "generate",
            summary=_summary,
            description=_TEXT + (_EVENTS if _operation.in_events else ""),
            responses={200: _success, **ERROR_RESPONSES},
            openapi_extra=_EXTRA,
        )
