"""`popgate openapi`: the API as a document."""

from __future__ import annotations

from typing import Annotated

import typer


def openapi(
    json: Annotated[
        bool, typer.Option("--json", help="Print JSON instead of YAML.")
    ] = False,
) -> None:
    """Print the OpenAPI document of the HTTP API.

    The document describes a server without models. /openapi.json of a running server
    also describes its models.
    """
    import orjson

    from app.api.openapi import to_yaml
    from app.main import openapi_document

    document = openapi_document()
    if json:
        typer.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
    else:
        typer.echo(to_yaml(document), nl=False)
