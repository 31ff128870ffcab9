"""KServe's first protocol: `POST /v1/models/{name}:predict`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api.delegation import ERROR_RESPONSES, declare
from app.api.plugin_routes import PluginRoutes
from app.http.application import Operation
from app.settings import Settings
from popgate_kserve.form import KServePredictForm
from popgate_kserve.schemas import PredictRequest, PredictResponse

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


OPERATIONS = (Operation("/v1/models/", ":predict", KServePredictForm),)

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


def routes(settings: Settings) -> PluginRoutes:
    """Return the routes; an object of the group `popgate.routes`."""
    return PluginRoutes(
        router,
        OPERATIONS,
        bodies=(PredictRequest,),
        tags=(("kserve v1", "The older protocol of KServe and TensorFlow Serving."),),
    )
