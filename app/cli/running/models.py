"""`popgate models`, `load` and `unload`: the models of a running gateway."""

from __future__ import annotations

from typing import Annotated, TypeAlias
from urllib.parse import quote

import typer

from app.cli.running.asking import asking

_Name: TypeAlias = Annotated[str, typer.Argument(help="The model.")]
_Url: TypeAlias = Annotated[
    str,
    typer.Option(help="Where the gateway is; unix:PATH too.", envvar="POPGATE_URL"),
]
_Key: TypeAlias = Annotated[
    str, typer.Option(help="A key that allows it.", envvar="POPGATE_KEY")
]
_LOCAL = "http://127.0.0.1:8000"
#: Seconds that loading may take, which may compile first.
_PATIENCE = 900.0


def models(url: _Url = _LOCAL, key: _Key = "") -> None:
    """List the models of a running gateway.

    One line each: name, version, state, and why it is not ready.
    """
    with asking(url, key) as client:
        response = client.get("/v1/models")
        response.raise_for_status()
        found = response.json()["models"]
    names = max((len(model["name"]) for model in found), default=0)
    for model in found:
        version, state = model.get("version") or "-", model["state"].lower()
        line = f"{model['name']:{names}}  {version:>3}  {state:11}  {model['reason']}"
        typer.echo(line.rstrip())


def load(name: _Name, url: _Url = _LOCAL, key: _Key = "") -> None:
    """Load a model of a running gateway, or load it again.

    It is taken from the gateway's folder as it lies there now, and replaces a version
    that serves without failing a request.
    """
    _manage(url, key, name, "load")


def unload(name: _Name, url: _Url = _LOCAL, key: _Key = "") -> None:
    """Unload a model of a running gateway, after its last request."""
    _manage(url, key, name, "unload")


def _manage(url: str, key: str, name: str, what: str) -> None:
    with asking(url, key) as client:
        path = f"/v1/models/{quote(name, safe='')}/{what}"
        response = client.post(path, timeout=_PATIENCE)
        response.raise_for_status()
        model = response.json()
    version = f" version {model['version']}" if model.get("version") else ""
    typer.echo(f"{model['name']}{version}: {model['state'].lower()}")
