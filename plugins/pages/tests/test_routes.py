"""Keys decide who may call the routes that the plugin adds."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import APIRoute

from app.api.plugin_routes import access_groups
from app.http.access import key_group
from app.settings import Settings
from popgate_pages.routes import routes

ADDED = routes(Settings())
ROUTES = {
    re.sub(r"\{(\w+)(:path)?\}", r"\1", route.path): route.methods
    for route in ADDED.router.routes
    if isinstance(route, APIRoute)
}


@pytest.mark.parametrize("path", ROUTES)
def test_who_may_call_them(path: str) -> None:
    assert ROUTES[path] == {"GET"}
    group = access_groups([ADDED]).get(path) or key_group(path, "GET")
    if path == "/v1/log":
        assert group == "manage"
    else:
        assert group == ("metadata" if path.startswith("/v1/") else "pages")


def test_there_are_some() -> None:
    assert {"/", "/docs", "/openapi.json", "/v1/requests/request_id"} <= ROUTES.keys()


def test_the_last_hour_is_kept_unless_the_pages_are_off() -> None:
    assert ADDED.background is not None
    assert routes(Settings(no_pages=True)).background is None
