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
        str,
        typer.Argument(metavar="SERVER", help="URL of the server, as for --url."),
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

    From then on the server is not ready, so load balancers send no more, and it closes
    connections after their answers. Requests that still arrive are answered. The server
    keeps running: end it afterwards (SIGTERM). The exit code is 0 when nothing is in
    flight, 1 if something is after --timeout.
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
    raise CommandError(f"{left} request{plural} left after {timeout:g} s")
