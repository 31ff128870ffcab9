"""`popgate drain`: take a running gateway out of service."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Annotated

import typer

from app.cli.errors import CommandError
from popgate_tools.asking.option_groups import grouped
from popgate_tools.asking.server import Server

LOOK = 0.2  # seconds between looks


@grouped
def drain(
    where: Annotated[
        str, typer.Argument(metavar="SERVER", help="URL of the server, as for --url.")
    ] = "",
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="How long to wait for requests in flight."
        ),
    ] = 60.0,
    *,
    server: Server,
) -> None:
    """Take a running gateway out of service; wait until it is idle.

    The server stops being ready, so load balancers send no more requests. It still
    answers requests, and closes the connection after each answer. It keeps running: end
    it afterwards with SIGTERM. The exit code is 0 if no request is in flight any more,
    and 1 if one still is after --timeout.
    """
    end = time.monotonic() + timeout
    before = -1
    there = replace(server, url=where) if where else server
    with there.asking() as client:
        while True:
            left = int(client.ask("POST", "/v1/drain")["in_flight"])
            if not left:
                typer.echo("drained: nothing is in flight")
                return
            if left != before:
                typer.echo(f"{left} in flight", err=True)
                before = left
            if time.monotonic() >= end:
                break
            time.sleep(LOOK)
    plural = "s are" if left > 1 else " is"
    raise CommandError(
        f"{left} request{plural} in flight after {timeout:g} s; raise --timeout to "
        "wait longer"
    )
