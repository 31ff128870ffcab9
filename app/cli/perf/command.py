"""The command: a sweep over loads."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from app.cli.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    CommandError,
    check_plain,
    client_errors,
)
from app.cli.options import SERVER, Inputs, Rows, Shapes, Url, Version

if TYPE_CHECKING:
    from app.cli.perf.measure import Load, Measurement
    from popgate.client import Client

#: What of a core the client may use before it is it that is measured.
BUSY = 0.9


def perf(
    name: Annotated[str, typer.Argument(help="The model.")],
    concurrency: Annotated[
        str,
        typer.Option("--concurrency", "-c", metavar="N,...",
                     help="Number of requests in flight: closed loop."),
    ] = "1",
    rate: Annotated[
        str,
        typer.Option("--rate", "-r", metavar="N,...",
                     help="Requests a second, at any speed of the server: open loop."),
    ] = "",
    arrivals: Annotated[
        str, typer.Option(metavar="poisson|constant",
                          help="Arrivals of an open loop.")
    ] = "poisson",
    seconds: Annotated[
        float, typer.Option(min=0.1, help="Length of a window; three must agree.")
    ] = 2.0,
    warm_up: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help="Load before measuring.")
    ] = 1.0,
    within: Annotated[
        float, typer.Option(metavar="PERCENT", min=0,
                            help="How much windows may differ to agree.")
    ] = 10.0,
    connections: Annotated[
        int, typer.Option(min=1, max=4096, help="Most connections of an open loop.")
    ] = 128,
    batch: Rows = 1,
    inputs: Inputs = None,
    shapes: Shapes = None,
    encoding: Annotated[
        str, typer.Option("--encoding", "-e", metavar="json|binary",
                          help="[default: binary where the server reads it]")
    ] = "",
    url: Url = SERVER,
    version: Version = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write all numbers.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE",
                                  help="Write a report with plots.")
    ] = None,
) -> None:  # fmt: skip
    """Measure a model of a running server: PopGate, Triton, KServe.

    Latencies of an open loop count from when a request was due. The server's own
    durations, where it has statistics, stand beside.

    For example: popgate perf digits --concurrency 1,4,16 --html report.html
    """
    from app.cli.perf.requests import prepared_requests
    from popgate.client import Client

    loads = _loads(concurrency, rate, arrivals, connections)
    _check_folders(json_file, html_file)
    check_plain(url)
    steps: list[Measurement] = []
    code = 0
    windows = _Windows(seconds, warm_up, within / 100)
    try:
        with (
            client_errors(url),
            Client(url, encoding=encoding or None, timeout=60) as client,
        ):
            requests = prepared_requests(client, name, version, inputs, shapes, batch)
            _sweep(client, name, requests, loads, windows, steps)
    except OSError as e:
        raise CommandError(f"no connection to {url}: {e}") from None
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    about: dict[str, Any] = {
        "server": url, "model": name, "rows of a request": batch,
        "seconds of a window": seconds, "cores of the client": os.cpu_count(),
    }  # fmt: skip
    _write(about, steps, json_file, html_file)
    if code or not steps or any(step.failed for step in steps):
        raise typer.Exit(code or EXIT_FAILED)


def _check_folders(*targets: Path | None) -> None:
    for target in targets:
        if target is not None and not target.parent.is_dir():
            raise CommandError(f"{target}: no such folder", EXIT_USAGE)


class _Windows(NamedTuple):
    seconds: float
    warm_up: float
    within: float


def _sweep(
    client: Client,
    name: str,
    requests: list[bytes],
    loads: list[Load],
    windows: _Windows,
    steps: list[Measurement],
) -> None:
    """Measure one load after the other; each is shown, and put to `steps`."""
    from app.cli.perf.measure import run_step
    from app.cli.perf.report import head, row

    typer.echo(head())
    for load in loads:
        steps.append(run_step(client, name, requests, load, *windows))
        typer.echo(row(steps[-1]))


def _write(
    about: dict[str, Any],
    steps: Sequence[Measurement],
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    from app.cli.perf.report import page

    busy = max((step.cpu for step in steps), default=0.0)
    if busy > BUSY:
        typer.echo(f"note: the client used {busy:.2f} of one core", err=True)
    if json_file is not None and steps:
        document = {"about": about, "steps": [step.as_dict() for step in steps]}
        json_file.write_text(json.dumps(document, indent=1) + "\n")
    if html_file is not None and steps:
        html_file.write_text(page(f"popgate perf {about['model']}", about, steps))


def _loads(concurrency: str, rate: str, arrivals: str, connections: int) -> list[Load]:
    from app.cli.perf.measure import Load

    if arrivals not in ("poisson", "constant"):
        msg = f"--arrivals {arrivals}: expected poisson or constant"
        raise CommandError(msg, EXIT_USAGE)
    if rate:
        return [
            Load(connections, number, arrivals)  # type: ignore[arg-type] # checked
            for number in _numbers(rate, "--rate")
        ]
    return [Load(int(number)) for number in _numbers(concurrency, "--concurrency")]


def _numbers(text: str, option: str) -> list[float]:
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(0 < n < 1e6 for n in numbers):
        msg = f"{option} {text}: expected numbers with commas, as in 1,4,16"
        raise CommandError(msg, EXIT_USAGE)
    return numbers
