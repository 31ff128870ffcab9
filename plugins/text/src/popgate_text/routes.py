"""The routes of text models."""

from __future__ import annotations

from fastapi import APIRouter

from app.api.plugin_routes import PluginRoutes
from app.settings import Settings


def routes(settings: Settings) -> PluginRoutes:
    """Return the routes of a server with these settings."""
    return PluginRoutes(APIRouter())
