"""`create_app`: the ASGI application, put together."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from app.api.plugin_routes import PluginRoutes, access_groups, plugin_routes
from app.api.routes import health, infer, metrics, models, oip
from app.assembly import gateway_of
from app.codec.compression import CompressResponses
from app.gateway import Gateway
from app.http.access import Access, Trust
from app.http.application import FrontOptions
from app.http.front import InferFront
from app.http.handlers import AllowedMethods, install_error_handlers
from app.http.proxies import TrustedProxies
from app.serving.service import Service
from app.settings import Settings

#: Seconds for the end of the gateway if the server exits immediately.
_PATIENCE = 1.0
ROUTERS = [part.router for part in (infer, models, health, metrics, oip)]


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
        FrontOptions(
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
        ),
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
        tasks = [
            asyncio.create_task(one.background(gateway))
            for one in added
            if one.background is not None
        ]
        patience = None
        try:
            yield
        except asyncio.CancelledError:  # a second signal
            patience = _PATIENCE
            raise
        finally:
            for task in tasks:
                task.cancel()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(gateway.stop(), patience)

    api = FastAPI(
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    api.state.gateway, api.state.added = gateway, added
    pages = (one.nothing_here for one in added if one.nothing_here is not None)
    install_error_handlers(api, next(pages, None))
    for router in routers:
        # `include_router` would make each route a second time, at the first request.
        api.router.routes.extend(router.routes)
    methods = methods_by_path(routers)
    api.state.paths, api.state.allowed = list(methods), AllowedMethods(methods)
    return api


def methods_by_path(routers: Iterable[APIRouter]) -> dict[str, set[str]]:
    """Return the methods that each path of these routers takes."""
    methods: dict[str, set[str]] = {}
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute):
                methods.setdefault(route.path_format, set()).update(route.methods or ())
    return methods
