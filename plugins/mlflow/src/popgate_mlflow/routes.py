"""MLflow's protocol: `POST /invocations`, and the same on a model's path."""

from __future__ import annotations

from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.delegation import ERROR_RESPONSES, declare, to_front
from app.api.plugin_routes import PluginRoutes
from app.http.application import NamingOperation, Operation
from app.settings import Settings
from popgate_mlflow.form import InvocationsForm
from popgate_mlflow.schemas import InvocationsRequest, InvocationsResponse

_PATH = "/invocations"
_EXTRA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/InvocationsRequest"}
            },
            "text/csv": {"schema": {"type": "string"}},
        },
    }
}
_TEXT = """Send a table, and receive `predictions`, one for each row.

The table is a JSON object with `dataframe_split` or `dataframe_records`, or CSV with a
header line. Each column is the input of its name. If the model has a single input, all
columns together are its rows. An empty cell or null means NaN for floats and the empty
string for strings. `instances` and `inputs` work as in `:predict`. `params` are
parameters of the request.
"""
_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": InvocationsResponse},
    **ERROR_RESPONSES,
}


def routes(settings: Settings) -> PluginRoutes:
    """Return the routes of a server with these settings."""
    router = APIRouter(tags=["mlflow"])

    async def run(request: Request) -> Response:
        return to_front(request)

    router.add_api_route(
        _PATH,
        run,
        methods=["POST"],
        name="invocations",
        summary="Run the only model on a table",
        description=_TEXT,
        response_class=Response,
        responses=_RESPONSES,
        openapi_extra=_EXTRA,
    )
    for model, what in (
        ("/v1/models/{name}", "a model"),
        ("/v1/models/{name}/versions/{version}", "a version"),
    ):
        declare(
            router,
            model + _PATH,
            "invocations",
            summary=f"Run {what} on a table",
            description=_TEXT,
            responses=_RESPONSES,
            openapi_extra=_EXTRA,
        )
    form = partial(InvocationsForm, settings.invocations)
    return PluginRoutes(
        router,
        [Operation("/v1/models/", _PATH, InvocationsForm)],
        [NamingOperation(_PATH, form, by_workers=False)],
        bodies=(InvocationsRequest,),
        tags=(("mlflow", "Tables in the forms that MLflow's servers accept."),),
    )
