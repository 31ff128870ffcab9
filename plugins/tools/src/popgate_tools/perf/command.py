"""The command: a sweep over loads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from app.about import VERSION
from app.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from popgate_tools.asking import RequestOptions, Server, ask_model, grouped
from popgate_tools.options import Inputs, Rows, Shapes

if TYPE_CHECKING:
    from popgate_tools.perf.measure import LoadLevel, Measurement, Target

#: CPU share above which the client, not the server, is the bottleneck.
BUSY = 0.9


@grouped
def perf(
    name: Annotated[str, typer.Argument(help="The model.")],
    concurrency: Annotated[
        str,
        typer.Option("--concurrency", "-c", metavar="N,...",
                     help="Closed loop: keep this many requests in flight."),
    ] = "1",
    rate: Annotated[
        str,
        typer.Option("--rate", "-r", metavar="N,...",
                     help=
                         "Open loop: send this many requests per second, however fast "
                         "the server answers."),
    ] = "",
    arrivals: Annotated[
        str, typer.Option(metavar="poisson|constant",
                          help=
                              "Times of the requests in an open loop: random or at "
                              "equal intervals.")
    ] = "poisson",
    seconds: Annotated[
        float, typer.Option(min=0.1, help=
            "Length of one measurement. A result is the agreement of three in a row.")
    ] = 2.0,
    warm_up: Annotated[
        float, typer.Option(metavar="SECONDS", min=0, help=
            "Time under load before the first measurement.")
    ] = 1.0,
    within: Annotated[
        float, typer.Option(metavar="PERCENT", min=0,
                            help="How much measurements may differ and still agree.")
    ] = 10.0,
    connections: Annotated[
        int, typer.Option(min=1, max=4096, help="Open loop: most connections.")
    ] = 128,
    batch: Rows = 1,
    inputs: Inputs = None,
    shapes: Shapes = None,
    encoding: Annotated[
        str, typer.Option("--encoding", "-e", metavar="json|binary",
                          help=
                              "Encoding of the tensors. [default: binary if the "
                              "server supports it]")
    ] = "",
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help=
            "Write all numbers to this file.")
    ] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE",
                                  help="Write a report with plots to this file.")
    ] = None,
    *,
    server: Server,
    request: RequestOptions,
) -> None:  # fmt: skip
    """Measure a model of a running server: PopGate, Triton, KServe.

    Latencies of an open loop count from the time at which a request was due. If the
    model gives several responses, a latency is the time to the last one. The server's
    own durations are shown too, if it has statistics.

    For example: popgate perf digits --concurrency 1,4,16 --html report.html
    """
    from popgate_tools.perf.measure import Target
    from popgate_tools.perf.requests import prepared_requests

    loads = _loads(concurrency, rate, arrivals, connections)
    _check_folders(json_file, html_file)
    steps: list[Measurement] = []
    code = 0
    windows = _Windows(seconds, warm_up, within / 100)
    most = max(load.connections for load in loads)
    try:
        with (
            server.errors(),
            server.client(encoding=encoding or None, timeout=60) as client,
        ):
            model = ask_model(client, name, request.version)
            requests = prepared_requests(
                client, name, inputs, shapes, batch,
                model=model, request=request, in_flight=most,
            )  # fmt: skip
            target = Target(client, server.context())
            _sweep(target, name, requests, loads, windows, steps)
    except OSError as e:
        raise CommandError(f"no connection to {server.shown_url}: {e}") from None
    except KeyboardInterrupt:
        code = EXIT_INTERRUPTED
    about: dict[str, Any] = {
        "measured": datetime.now(UTC).isoformat(" ", "seconds"), "popgate": VERSION,
        "server": server.shown_url, "model": name, "rows of a request": batch,
        "seconds of a window": seconds, "cores of the client": os.cpu_count(),
    }  # fmt: skip
    _write(about, steps, json_file, html_file)
    failed = [step for step in steps if step.failed]
    if failed:
        reason = failed[0].first_failure
        if not any(step.requests for step in steps):
            raise CommandError(f"every request failed; the first: {reason}")
        typer.echo(f"the first request that failed: {reason}", err=True)
    if code or not steps or failed:
        raise typer.Exit(code or EXIT_FAILED)


def _check_folders(*targets: Path | None) -> None:
    for target in targets:
        if target is not None and not target.parent.is_dir():
            raise CommandError(f"{target}: no such folder", EXIT_USAGE)
        if target is not None and target.is_dir():
            raise CommandError(f"{target} is a folder; name a file", EXIT_USAGE)


class _Windows(NamedTuple):
    seconds: float
    warm_up: float
    within: float


def _sweep(
    target: Target,
    name: str,
    requests: Sequence[bytes],
    loads: list[LoadLevel],
    windows: _Windows,
    steps: list[Measurement],
) -> None:
    """Measure one load after the other; show each, and append it to `steps`."""
    from popgate_tools.perf.measure import run_step
    from popgate_tools.perf.report import head, row

    is_seen = sys.stderr.isatty()
    typer.echo(head())
    for load in loads:

        def show(number: int, rate: float, load: LoadLevel = load) -> None:
            """Show progress: a load takes at most ten windows."""
            if is_seen:
                words = f"{load}: window {number}, {rate:.1f} requests/s"
                typer.echo(f"\r{words}\x1b[K", nl=False, err=True)

        steps.append(run_step(target, name, requests, load, *windows, on_window=show))
        if is_seen:
            typer.echo("\r\x1b[K", nl=False, err=True)
        typer.echo(row(steps[-1]))


def _write(
    about: dict[str, Any],
    steps: Sequence[Measurement],
    json_file: Path | None,
    html_file: Path | None,
) -> None:
    from popgate_tools.perf.report import page

    busy = max((step.cpu for step in steps), default=0.0)
    if busy > BUSY:
        typer.echo(
            f"note: the client used {busy:.2f} of one core, so it may be slower "
            "than the server",
            err=True,
        )
    if json_file is not None and steps:
        document = {"about": about, "steps": [step.as_dict() for step in steps]}
        json_file.write_text(json.dumps(document, indent=1) + "\n")
    if html_file is not None and steps:
        html_file.write_text(page(f"popgate perf {about['model']}", about, steps))


def _loads(
    concurrency: str, rate: str, arrivals: str, connections: int
) -> list[LoadLevel]:
    from popgate_tools.perf.measure import LoadLevel

    if arrivals not in ("poisson", "constant"):
        msg = f"--arrivals {arrivals}: expected poisson or constant"
        raise CommandError(msg, EXIT_USAGE)
    if rate:
        return [
            LoadLevel(connections, number, arrivals)  # type: ignore[arg-type] # checked
            for number in _numbers(rate, "--rate")
        ]
    levels = _numbers(concurrency, "--concurrency", whole=True)
    return [LoadLevel(int(number)) for number in levels]


def _numbers(text: str, option: str, *, whole: bool = False) -> list[float]:
    try:
        numbers = [float(each) for each in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(
        0 < n < 1e6 and (not whole or n.is_integer()) for n in numbers
    ):
        kind = "whole numbers" if whole else "numbers"
        msg = (
            f"{option} {text}: expected {kind} above 0 and below 1000000, separated "
            "by commas, as in 1,4,16"
        )
        raise CommandError(msg, EXIT_USAGE)
    return numbers
