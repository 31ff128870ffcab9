"""Who may call the routes that the plugin adds."""

from __future__ import annotations

import re

import pytest
from fastapi.routing import APIRoute

from app.api.plugin_routes import access_groups
from app.http.access import key_group
from app.settings import Settings
from popgate_triton.routes import routes

ADDED = routes(Settings())
ROUTES = [
    (re.sub(r"[{}]", "", route.path), method)
    for route in ADDED.router.routes
    if isinstance(route, APIRoute)
    for method in route.methods or ()
]


@pytest.mark.parametrize(("path", "method"), ROUTES)
def test_who_may_call_them(path: str, method: str) -> None:
    group = access_groups([ADDED]).get(path) or key_group(path, method)
    if re.search(r"/generate(_stream)?$", path):
        assert group == "infer"
    elif "sharedmemory/" in path:  # its status names the memory of other clients
        assert group == "manage"
    else:
        assert group == ("manage" if method == "POST" else "metadata")


def test_there_are_some() -> None:
    assert ("/v2/trace/setting", "POST") in ROUTES
