"""The routes of Triton's extensions of the Open Inference Protocol."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.plugin_routes import PluginRoutes
from app.settings import Settings
from popgate_triton import (
    config_routes,
    generate_routes,
    log_routes,
    shared_memory_routes,
    trace_routes,
)
from popgate_triton.schemas import (
    GenerateRequest,
    LogRequest,
    RegisterRequest,
    TraceRequest,
)


def routes(settings: Settings) -> PluginRoutes:
    """Return the routes; an object of the group `popgate.routes`."""
    router = APIRouter()
    for part in (
        config_routes,
        generate_routes,
        log_routes,
        trace_routes,
        shared_memory_routes,
    ):
        router.routes += part.router.routes
    bodies = GenerateRequest, LogRequest, RegisterRequest, TraceRequest
    return PluginRoutes(
        router, generate_routes.OPERATIONS, bodies=bodies, behind=config_routes.BEHIND
    )
