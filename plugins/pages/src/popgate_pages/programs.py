"""Programs that call a model, ready to run: `/v1/models/NAME/client.py`."""

from __future__ import annotations

from enum import Enum
from pathlib import Path

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse

from app.api.delegation import ModelName, Version
from app.api.dependencies import GatewayOf, find_loaded
from app.api.describe import gives_several
from app.api.examples import example_parameters
from app.errors import HttpError
from app.gateway import Gateway
from popgate_pages.client_code import client_code

router = APIRouter(prefix="/v1")
_TAGS: list[str | Enum] = ["models"]
#: The paths that these follow in the documentation.
BEHIND = {
    "/v1/models/{name}/client.py": "/v1/models/{name}/versions/{version}",
    "/v1/models/{name}/versions/{version}/client.py": "/v1/models/{name}/client.py",
}


@router.get(
    "/models/{name}/client.py",
    summary="A Python program that calls a model",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/x-python": {"schema": {"type": "string"}}}}},
    tags=_TAGS,
)
async def get_client(
    gateway: GatewayOf, request: Request, name: ModelName
) -> PlainTextResponse:
    """Return a program ready to run, with the model's inputs and this
    server's address.
    """
    return await _program(gateway, request, name)


@router.get(
    "/models/{name}/versions/{version}/client.py",
    summary="A Python program that calls a version",
    response_class=PlainTextResponse,
    responses={200: {"content": {"text/x-python": {"schema": {"type": "string"}}}}},
    tags=_TAGS,
)
async def get_version_client(
    gateway: GatewayOf, request: Request, name: ModelName, version: Version
) -> PlainTextResponse:
    """Return a Python program that calls one version."""
    return await _program(gateway, request, name, version)


async def _program(
    gateway: Gateway, request: Request, name: str, version: str | None = None
) -> PlainTextResponse:
    """Return the program; load the model first if requests are to load it."""
    _, loaded = await find_loaded(gateway, name, version)
    if loaded is None:
        raise HttpError(
            503,
            "the model is not loaded, so its inputs are unknown; load it first",
            "model_not_ready",
        )
    text = client_code(
        loaded.spec,
        loaded.example,
        loaded.fill,
        url=_address(gateway, request),
        version=version or "",
        asks_key=gateway.settings.keys is not None or bool(gateway.settings.api_key),
        sequence=example_parameters(loaded).get("sequence_id"),
        streams=gives_several(loaded),
    )
    return PlainTextResponse(text, media_type="text/x-python; charset=utf-8")


def _address(gateway: Gateway, request: Request) -> str:
    """Return the server's address in the form of `Client`: its URL with the base path,
    or its socket.
    """
    base = gateway.settings.base_path.rstrip("/")
    uds = gateway.settings.uds
    server = request.scope.get("server")
    is_socket = not server or server[1] is None
    # A proxy in front of the socket names the host that its clients know.
    if uds and is_socket and request.url.netloc == "localhost":
        path = str(Path(uds).absolute())
        return f"unix:{path}:{base}" if base else f"unix:{path}"
    return str(request.base_url).rstrip("/") + base
