"""The routes of Triton's extensions of the Open Inference Protocol."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.plugin_routes import PluginRoutes
from app.settings import Settings
from popgate_triton import log_routes, trace_routes
from popgate_triton.schemas import LogRequest, TraceRequest


def routes(settings: Settings) -> PluginRoutes:
    """Return the routes; an object of the group `popgate.routes`."""
    router = APIRouter()
    router.routes += log_routes.router.routes + trace_routes.router.routes
    return PluginRoutes(router, bodies=(LogRequest, TraceRequest))
