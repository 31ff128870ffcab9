"""`/openapi.json` and `/openapi.yaml`: the API's document of a running server."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import APIRouter, FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from app.api.dependencies import GatewayOf, ViewerOf
from app.repository.records import LoadedModel
from popgate_pages.document import base_document, document_with_models
from popgate_pages.yaml_text import to_yaml

#: The most documents that are kept.
_KEPT = 8


def document_router() -> APIRouter:
    """Return the routes of one application."""
    router = APIRouter(include_in_schema=False)
    documents = Documents()

    @router.get("/openapi.json")
    async def openapi(
        request: Request, gateway: GatewayOf, viewer: ViewerOf
    ) -> Response:
        seen = (r for r in gateway.records.all() if viewer.sees(r.name))
        loaded = (r.default for r in seen)
        served = [model for model in loaded if model is not None]
        content = await run_in_threadpool(documents.with_models, request.app, served)
        return Response(content, media_type="application/json")

    @router.get("/openapi.yaml")
    async def openapi_yaml(request: Request) -> Response:
        base = await run_in_threadpool(documents.base, request.app)
        return Response(to_yaml(base), media_type="application/yaml")

    return router


class Documents:
    """The documents of one application, each made when it is first read, because that
    takes a seventh of the start. For all threads.
    """

    def __init__(self) -> None:
        self._base: dict[str, Any] | None = None
        #: Documents of the models that a key sees, by these models.
        self._made: dict[object, bytes] = {}

    def base(self, app: FastAPI) -> dict[str, Any]:
        """Return the document without models."""
        if self._base is None:
            restricted = app.state.gateway.settings.restrictions.groups
            self._base = base_document(app.routes, restricted, app.state.added)
        return self._base

    def with_models(self, app: FastAPI, served: Sequence[LoadedModel]) -> bytes:
        """Return the document of these models as JSON; make it again if they have
        changed.
        """
        key = tuple((m.spec.name, m.spec.version, m.loaded_at) for m in served)
        made = self._made.get(key)
        if made is None:
            # The URL is relative to this document, so the page works below a proxy's
            # prefix.
            servers = {"servers": [{"url": "./"}]}
            document = document_with_models(self.base(app), served, app.state.added)
            made = orjson.dumps(document | servers)
            if len(self._made) >= _KEPT:
                self._made.clear()
            self._made[key] = made
        return made
