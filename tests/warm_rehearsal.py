"""Take the first steps of a server once: read its options, make its routes, and read
the configuration of a model.

`tests.warm` imports this before it forks servers. What the libraries keep of these
steps, such as compiled patterns, is there in each server. No step opens or starts
anything.
"""

from __future__ import annotations

import gc

import fastapi
import typer
from fastapi.routing import APIRoute

from app import cli
from app.api.plugin_routes import plugin_routes
from app.config.model_config import parse_model_config
from app.main import ROUTERS
from app.settings import Settings


def _rehearse() -> None:
    command: typer.core.TyperGroup = typer.main.get_command(cli.app)  # type: ignore[assignment]
    with command.make_context("popgate", ["serve"]) as context:
        serve = command.get_command(context, "serve")
        assert serve is not None
        serve.make_context("serve", ["--port", "0"], parent=context)
    added = plugin_routes(Settings())
    # FastAPI looks for the place of an endpoint in its file at the first request.
    if find_place := getattr(fastapi.routing, "_extract_endpoint_context", None):
        for router in (*ROUTERS, *(one.router for one in added)):
            for route in router.routes:
                if isinstance(route, APIRoute):
                    find_place(route.endpoint)
    parse_model_config({"max_batch_size": 1})


_rehearse()
# The options of `serve` disable it, and other commands are forked from here, too.
gc.enable()
