"""KServe's first protocol: `POST /v1/models/{name}:predict`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api.delegation import ERROR_RESPONSES, declare
from app.api.kserve_v1 import PredictForm
from app.api.schemas import PredictResponse
from app.http.front import Operation

router = APIRouter(tags=["kserve v1"])

_SCHEMA = {"$ref": "#/components/schemas/PredictRequest"}
_EXTRA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": _SCHEMA}},
    }
}
_TEXT = """Send `instances`, and receive `predictions`, one for each. Or send `inputs`
(whole columns), and receive `outputs`.

Values are nested lists. For a model with several inputs each instance is an object with
a value for each input. Bytes that are not UTF-8 are `{"b64": "…"}`.
"""


OPERATIONS = (Operation("/v1/models/", ":predict", PredictForm),)

for _path, _what in (
    ("/v1/models/{name}:predict", "a model"),
    ("/v1/models/{name}/versions/{version}:predict", "a version"),
):
    declare(
        router,
        _path,
        "_predict",
        summary=f"Run {_what} on instances",
        description=_TEXT,
        responses={200: {"model": PredictResponse}, **ERROR_RESPONSES},
        openapi_extra=_EXTRA,
    )
