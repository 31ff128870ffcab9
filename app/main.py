"""`create_app`: the ASGI application, put together."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import orjson
from fastapi import FastAPI
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from app.about import VERSION
from app.api import docs_page
from app.api.openapi import (
    TITLE,
    base_document,
    document_with_models,
    documented_methods,
    to_yaml,
)
from app.api.plugin_routes import PluginRoutes, access_groups, plugin_routes
from app.api.routes import (
    drain,
    health,
    infer,
    metrics,
    models,
    oip,
    pages,
    requests,
)
from app.assembly import gateway_of
from app.codec.compression import CompressResponses
from app.gateway import Gateway
from app.http.access import Access, Trust
from app.http.front import InferFront
from app.http.handlers import AllowedMethods, install_error_handlers
from app.http.proxies import TrustedProxies
from app.repository.loaded_model import LoadedModel
from app.serving.service import Service
from app.settings import Settings

ROUTERS = [
    part.router
    for part in (
        infer, models, health, drain, metrics, oip, docs_page, pages, requests,
    )
]  # fmt: skip


def create_app(
    settings: Settings | None = None, *, gateway: Gateway | None = None
) -> InferFront:
    """Return the whole gateway as one ASGI application.

    Its lifespan attaches the devices and loads the models of
    `settings.model_repository` in the background, and ends them. Without arguments, the
    settings come from the environment. Raises `engine.InvalidConfig` for a device
    specification that cannot be read.
    """
    gateway = gateway or gateway_of(settings or Settings())
    settings = gateway.settings
    added = plugin_routes(settings)
    api = create_api(gateway, added)
    routes = gateway.table.routes
    routes.reserve(api.state.paths)
    routes.reserve(operation.path for one in added for operation in one.naming)
    allowed: AllowedMethods = api.state.allowed
    service = Service(
        gateway.table,
        timeout=settings.request_timeout,
        transfers=gateway.transfers,
        journal=gateway.journal,
        answers=gateway.metrics.answers,
    )
    front = InferFront(
        api,
        service,
        operations=(*(operation for one in added for operation in one.operations),),
        naming=[operation for one in added for operation in one.naming],
        base_path=settings.base_path,
        access=Access(
            settings.restrictions,
            gateway.keys,
            Trust.LOOPBACK if settings.trust_loopback else Trust.NOBODY,
            access_groups(added),
        ),
        origins=settings.allow_origin,
        proxies=TrustedProxies(settings.trusted_proxy),
        methods_of=lambda path: allowed.of(path) or routes.methods(path),
        compress_responses=CompressResponses(settings.compress_responses),
    )
    api.state.front = front
    return front


def create_api(gateway: Gateway, added: Sequence[PluginRoutes] = ()) -> FastAPI:
    """Create the application behind the front: everything but inference.

    `added` are the routes of plugins.
    """
    routers = [*ROUTERS, *(one.router for one in added)]

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    api = FastAPI(
        title=TITLE,
        version=VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    api.state.gateway = gateway
    install_error_handlers(api, pages.nothing_here)
    for router in routers:
        api.include_router(router)
    methods = documented_methods(routers, also_pages=True)
    api.state.allowed = AllowedMethods(methods)

    @functools.cache
    def base_of_all() -> dict[str, Any]:
        # The document is made when it is first read, because that takes a seventh of
        # the start.
        return base_document(api, gateway.settings.restrictions.groups, added)

    made: tuple[object, bytes] = None, b""

    def document_of(key: object, served: list[LoadedModel]) -> bytes:
        """Return the document of these models; make it again if `key` has changed."""
        nonlocal made
        if made[0] != key:
            # The URL is relative to this document, so the page works below a proxy's
            # prefix.
            servers = {"servers": [{"url": "./"}]}
            document = document_with_models(base_of_all(), served, added)
            made = key, orjson.dumps(document | servers)
        return made[1]

    @api.get("/openapi.json", include_in_schema=False)
    async def openapi() -> Response:
        loaded = (r.default for r in gateway.records.all())
        served = [model for model in loaded if model is not None]
        key = [(m.spec.name, m.spec.version, m.loaded_at) for m in served]
        content = await run_in_threadpool(document_of, key, served)
        return Response(content, media_type="application/json")

    @api.get("/openapi.yaml", include_in_schema=False)
    async def openapi_yaml() -> Response:
        base = await run_in_threadpool(base_of_all)
        return Response(to_yaml(base), media_type="application/yaml")

    api.state.paths = [*methods, "/openapi.json", "/openapi.yaml"]
    return api


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the application without models."""
    gateway = gateway_of(Settings())
    added = plugin_routes(gateway.settings)
    return base_document(create_api(gateway, added), added=added)
