"""`/docs` without the internet: Swagger UI, its files served from here.

The files come from the package `fastapi-offline`, which contains Swagger UI. Nothing is
loaded from another host, and the page's content security policy allows this server
only.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from app.errors import HttpError

router = APIRouter(include_in_schema=False)

# Paths are relative to the page, so that it works below any prefix.
_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>PopGate</title>
<link rel="icon" type="image/png" href="docs/favicon.png">
<link rel="stylesheet" href="docs/swagger-ui.css">
<style>
/* Swagger UI has one palette: if the browser asks for a dark one, its lightness is
   inverted. Code samples are dark already. */
@media (prefers-color-scheme: dark) {
  :root { color-scheme: dark; background: #14161a; }
  .swagger-ui, .swagger-ui .highlight-code { filter: invert(0.9) hue-rotate(180deg); }
  .swagger-ui textarea, .swagger-ui select { color-scheme: light; }
}
</style>
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""
_START = """window.ui = SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  deepLinking: true,
  displayRequestDuration: true,
  docExpansion: "list",
  defaultModelsExpandDepth: 0,
  filter: true,
  tryItOutEnabled: true,
  validatorUrl: null,
});
// Swagger UI sends nothing, and says nothing, if the file that is the body is missing.
addEventListener("click", (event) => {
  const operation = event.target.closest(".execute")?.closest(".opblock");
  const file = operation?.querySelector("input[type=file]");
  if (!file) return;
  file.required = true;
  file.reportValidity();
}, true);
"""
_POLICY = (
    "default-src 'self'; img-src 'self' data:; style-src 'self' 'unsafe-inline'; "
    "object-src 'none'; frame-ancestors 'none'; base-uri 'none'"
)
_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}
_CACHE = {"cache-control": "max-age=3600"}


@router.get("/docs", response_class=HTMLResponse)
async def docs() -> HTMLResponse:
    return HTMLResponse(_PAGE, headers={"content-security-policy": _POLICY})


@router.get("/docs/", response_class=RedirectResponse)
@router.get("/redoc", response_class=RedirectResponse)
async def docs_elsewhere(request: Request) -> RedirectResponse:
    """Redirect to `/docs`, because the page's own links are relative to it."""
    return RedirectResponse("../docs" if request.url.path.endswith("/") else "docs")


@router.get("/docs/start.js")
async def start_script() -> Response:
    return Response(_START, media_type="text/javascript")


@router.get("/docs/{file}")
async def asset(file: str) -> Response:
    media_type = _TYPES.get(file)
    if media_type is None:
        raise HttpError(404, f"Not Found: /docs/{file}", "not_found")
    return Response(_asset(file), media_type=media_type, headers=_CACHE)


@cache
def _asset(file: str) -> bytes:
    return (resources.files("fastapi_offline") / "static" / file).read_bytes()
