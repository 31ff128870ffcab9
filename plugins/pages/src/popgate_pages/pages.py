"""Pages for people at `/`: the models and their state, and forms to try them.

They are static files of this package and use the same routes as all clients. There is
nothing to build, and the browser may contact no other host.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import resources
from pathlib import PurePath
from typing import NamedTuple

from fastapi import APIRouter, Request
from fastapi.responses import RedirectResponse, Response

from app.api.dependencies import GatewayOf, get_gateway
from app.errors import HttpError
from app.http.asgi import BARE, BASE

router = APIRouter(include_in_schema=False)

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}
_HEADERS = {
    "content-security-policy": (
        # The page shows the pictures that its user sends.
        "default-src 'self'; img-src 'self' blob:; object-src 'none'; "
        "frame-ancestors 'none'; "
        "base-uri 'none'; form-action 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # browsers revalidate it by its ETag
}


class _File(NamedTuple):
    content: bytes
    media_type: str
    etag: str


@router.get("/")
async def root(request: Request, gateway: GatewayOf) -> Response:
    """Send browsers the page and all other clients to the documentation. Links of both
    are below the base path, which is a folder.
    """
    if request.scope.get(BARE):
        return RedirectResponse(request.scope[BASE].rpartition("/")[2] + "/")
    if _wants_page(request) and not gateway.settings.no_pages:
        return _send(request, "index.html")
    return RedirectResponse("docs")  # relative: it works below any prefix


@router.get("/pages/{file}")
async def static_file(request: Request, gateway: GatewayOf, file: str) -> Response:
    if gateway.settings.no_pages or file not in _files():
        raise HttpError(404, f"Not Found: /pages/{file:.200}", "not_found")
    return _send(request, file)


def nothing_here(request: Request) -> Response | None:
    """Return the page for an unknown address; None if the client is not a browser or
    the pages are turned off. Its links are relative to the request's path, so they work
    below any prefix.
    """
    if not _wants_page(request) or get_gateway(request).settings.no_pages:
        return None
    path: bytes = request.scope.get("raw_path") or request.url.path.encode()
    up = b"../" * (path.count(b"/") - 1)
    content = _files()["nothing.html"].content
    for link in (b"pages/", b"docs"):
        content = content.replace(b'href="' + link, b'href="' + up + link)
    content = content.replace(b'href="./"', b'href="' + (up or b"./") + b'"')
    headers = {**_HEADERS, "vary": "accept"}
    return Response(content, 404, headers, _TYPES[".html"])


def _wants_page(request: Request) -> bool:
    return "text/html" in request.headers.get("accept", "")


def _send(request: Request, file: str) -> Response:
    content, media_type, etag = _files()[file]
    headers = {**_HEADERS, "etag": etag, "vary": "accept"}
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=media_type)


@cache
def _files() -> dict[str, _File]:
    """Return the files of the pages, by name: at most a quarter of a megabyte."""
    files = {}
    for item in (resources.files("popgate_pages") / "static").iterdir():
        media_type = _TYPES.get(PurePath(item.name).suffix)
        if media_type is not None:
            content = item.read_bytes()
            etag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
            files[item.name] = _File(content, media_type, etag)
    return files
