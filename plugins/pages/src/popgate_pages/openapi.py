"""`popgate openapi`: the API as a document."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
import typer

from app.api.plugin_routes import plugin_routes
from app.assembly import gateway_of
from app.main import create_api
from app.settings import Settings
from popgate_pages.document import base_document
from popgate_pages.yaml_text import to_yaml


def openapi(
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of YAML.")
    ] = False,
) -> None:
    """Print the OpenAPI document of the HTTP API.

    The document describes a server without models. /openapi.json of a running server
    also describes its models.
    """
    document = openapi_document()
    if json:
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        typer.echo(to_yaml(document), nl=False)


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document of the application without models."""
    gateway = gateway_of(Settings())
    added = plugin_routes(gateway.settings)
    return base_document(create_api(gateway, added).routes, added=added)
