"""`popgate models`, `load` and `unload`: the models of a running gateway."""

from __future__ import annotations

from typing import Annotated, TypeAlias
from urllib.parse import quote

import typer

from popgate_tools.asking.option_groups import grouped
from popgate_tools.asking.server import Server

_Name: TypeAlias = Annotated[str, typer.Argument(help="The model.")]
#: Seconds that loading may take, which may compile first.
_PATIENCE = 900.0


@grouped
def models(server: Server) -> None:
    """List the models of a running gateway.

    One line each: name, version, state, and why it is not ready.
    """
    with server.asking() as client:
        found = client.ask("GET", "/v1/models")["models"]
    names = max((len(model["name"]) for model in found), default=0)
    for model in found:
        version, state = model.get("version") or "-", model["state"].lower()
        line = f"{model['name']:{names}}  {version:>3}  {state:11}  {model['reason']}"
        typer.echo(line.rstrip())


@grouped
def load(name: _Name, server: Server) -> None:
    """Load a model of a running gateway, or load it again.

    The gateway loads the present files of its folder, and replaces a serving version
    without failing a request.
    """
    _manage(server, name, "load")


@grouped
def unload(name: _Name, server: Server) -> None:
    """Unload a model of a running gateway, after its last request."""
    _manage(server, name, "unload")


def _manage(server: Server, name: str, what: str) -> None:
    with server.asking() as client:
        path = f"/v1/models/{quote(name, safe='', errors='backslashreplace')}/{what}"
        model = client.ask("POST", path, timeout=_PATIENCE)
    version = f" version {model['version']}" if model.get("version") else ""
    typer.echo(f"{model['name']}{version}: {model['state'].lower()}")
