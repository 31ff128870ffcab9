"""`popgate drain`: take a running gateway out of service."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from app.cli.errors import CommandError
from app.cli.running.asking import asking

LOOK = 0.2  # seconds between looks


def drain(
    url: Annotated[
        str,
        typer.Argument(
            metavar="SERVER",
            help="Where the gateway is: its URL, or unix:PATH for its socket.",
            envvar="POPGATE_URL",
        ),
    ] = "http://127.0.0.1:8000",
    key: Annotated[
        str,
        typer.Option(help="A key that allows management.", envvar="POPGATE_KEY"),
    ] = "",
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0, help="How long to wait for requests in flight."
        ),
    ] = 60.0,
) -> None:
    """Take a running gateway out of service; wait until it is idle.

    It is not ready from then on, so that load balancers send no more, and closes
    connections after their answers; what comes all the same is answered. It goes on
    running: end it afterwards (SIGTERM). The code is 0 when nothing is left in
    flight, 1 where something is after --timeout.
    """
    end = time.monotonic() + timeout
    before = -1
    with asking(url, key) as client:
        while True:
            response = client.post("/v1/drain")
            response.raise_for_status()
            left = int(response.json()["in_flight"])
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
