"""`popgate devices`: the pool, and the processes that hold its devices."""

from __future__ import annotations

from typing import Annotated

import typer

from app.cli.errors import EXIT_USAGE, CommandError


def devices(
    spec: Annotated[
        str | None,
        typer.Option(
            "--devices",
            metavar="SPEC",
            help="The device pool to show, as in serve. [default: the CPU devices]",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the devices of this machine, and their processes.

    A device is a process that runs models. Only one of your processes at a time can
    attach it.
    """
    from engine import DeviceManager, InvalidConfig

    try:
        listed = DeviceManager(spec).list()
    except InvalidConfig as e:
        raise CommandError(str(e), EXIT_USAGE) from None
    if json:
        from popgate_admin.table import json_text

        rows = [
            {"id": d.id, "state": d.state, "pid": d.pid, "owner": d.owner}
            for d in listed
        ]
        typer.echo(json_text(rows))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for title in ("device", "state", "process", "owner process"):
        table.add_column(title)
    for d in listed:
        table.add_row(d.id, d.state, _text(d.pid), _text(d.owner))
    Console().print(table)


def _text(pid: int | None) -> str:
    return "" if pid is None else str(pid)
