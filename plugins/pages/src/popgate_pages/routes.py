"""The routes of the pages, of what they show, and of the API's document."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.plugin_routes import PluginRoutes
from app.settings import Settings
from popgate_pages import docs_page, pages, programs
from popgate_pages.document_routes import document_router
from popgate_pages.history import History
from popgate_pages.requests import requests_router


def routes(settings: Settings) -> PluginRoutes:
    """Return the routes; an object of the group `popgate.routes`."""
    history = History()
    router = APIRouter()
    for part in (
        programs.router,
        docs_page.router,
        pages.router,
        requests_router(history),
        document_router(),
    ):
        router.routes += part.routes
    return PluginRoutes(
        router,
        behind=programs.BEHIND,
        nothing_here=pages.nothing_here,
        background=None if settings.no_pages else history.keep,
    )
