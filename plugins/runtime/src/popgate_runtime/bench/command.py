"""`popgate bench`: measure a session of a model, by callbacks and by queues."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from app.cli.commands import Command
from app.cli.errors import EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from popgate_tools.options import Executable, Files, Seed

if TYPE_CHECKING:
    from popef_io import Model
    from popgate_tools.latency import Measured
    from popgate_tools.local import Interrupt

MAX_VALUES = 32
MAX_NUMBER = 1 << 20

Case = TypeVar("Case")

bench = typer.Typer(
    help="Measure sessions: a model run by callbacks, or through queues.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Compiled = Annotated[
    str | None,
    typer.Option("--compile-batch", metavar="N,...", help=
        "Batch sizes to compile an ONNX file for, one after the other. [default: any "
        "batch size]"),
]  # fmt: skip
_Threads = Annotated[
    str, typer.Option(metavar="N,...", help="Numbers of threads, one after the other.")
]
_Seconds = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0.01, max=3600, help="Duration of each measurement."
    ),
]


@bench.command(cls=Command)
def callbacks(
    files: Files,
    batch: Annotated[
        str,
        typer.Option(metavar="N,...", help=
            "Numbers of rows of a run, one after the other, if the model takes any "
            "number."),
    ] = "1",
    threads: _Threads = "1",
    compiled: _Compiled = None,
    seconds: _Seconds = 1.0,
    seed: Seed = 0,
    executable: Executable = "",
) -> None:  # fmt: skip
    """Run a model whose inputs and outputs are callbacks.

    Each thread has its own session and device, and runs the main programs repeatedly.
    The callback of an input copies its data into the device's memory; the callback of
    an output reads the result. A latency is the time of one run.

    popgate bench callbacks model.onnx --compile-batch 1,8,64 --threads 1,2
    """
    from popgate_runtime.bench.callbacks import CallbackCase, measure_callbacks, rows_of

    rows, counts = _numbers(batch, "--batch"), _numbers(threads, "--threads")

    def cases(model: Model) -> Iterator[CallbackCase]:
        own = rows_of(model)
        for count, number in itertools.product(counts, [own] if own else rows):
            yield CallbackCase(number, count)

    def cells(case: CallbackCase, measured: Measured) -> tuple[str, ...]:
        rate = measured.calls / measured.seconds
        return (str(case.rows), str(case.threads), f"{rate:,.0f}")

    _run(
        files, executable, compiled, cases,
        lambda model, case, interrupt: measure_callbacks(
            model, case, seconds, seed, interrupt
        ),
        ("rows", "threads", "callbacks/s"), cells, "runs/s",
    )  # fmt: skip


@bench.command(cls=Command)
def queues(
    files: Files,
    batch: Annotated[
        str, typer.Option(metavar="N,...", help=
            "Numbers of rows of a request, one after the other. If a run takes "
            "different numbers of rows of inputs and outputs, a request has whole "
            "runs.")
    ] = "1",
    ring: Annotated[
        str,
        typer.Option("--ring-multiplier", metavar="N,...", help=
            "Sizes of each queue in compiled batches, one after the other."),
    ] = "2",
    threads: _Threads = "1",
    compiled: _Compiled = None,
    seconds: _Seconds = 1.0,
    seed: Seed = 0,
    executable: Executable = "",
) -> None:  # fmt: skip
    """Send requests through the queues of a session.

    One thread runs the main programs. The others fill the queues with requests and wait
    for their results. Queues join and split requests to the compiled batch. A latency
    is the time of one request, from its first enqueue to its last row. If several
    models are fused into one, the generated data choose the model that runs (--seed).

    popgate bench queues model.onnx --compile-batch 8 --batch 1,8 --ring-multiplier 1,4
    """
    from popgate_runtime.bench.queues import QueueCase, measure_queues

    sizes = [_numbers(batch, "--batch"), _numbers(ring, "--ring-multiplier")]
    combined = [*sizes, _numbers(threads, "--threads")]

    def cases(model: Model) -> Iterator[QueueCase]:
        for rows, multiplier, count in itertools.product(*combined):
            yield QueueCase(rows, multiplier, count)

    def cells(case: QueueCase, measured: Measured) -> tuple[str, ...]:
        return (str(case.rows), str(case.multiplier), str(case.threads))

    _run(
        files, executable, compiled, cases,
        lambda model, case, interrupt: measure_queues(
            model, case, seconds, seed, interrupt
        ),
        ("rows", "ring", "threads"), cells, "requests/s",
    )  # fmt: skip


def _run(
    files: list[Path],
    executable: str,
    compiled: str | None,
    cases: Callable[[Model], Iterator[Case]],
    measure: Callable[[Model, Case, Interrupt], Measured],
    titles: Sequence[str],
    cells: Callable[[Case, Measured], tuple[str, ...]],
    unit: str,
) -> None:
    """Measure every case of every compiled batch, and print a table of them."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from popgate_runtime.bench.callbacks import batch_name
    from popgate_tools.local import Interrupt, engine_errors, opened

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    numbers = ("batch", *titles, unit, "rows/s", "p50 ms", "p90 ms", "p99 ms")
    for title in numbers:
        table.add_column(title, justify="right", no_wrap=True)
    with engine_errors(), Interrupt() as interrupt:
        for size in _compiled_batches(files, compiled):
            with opened(files, executable, size) as model:
                own = batch_name(model)
                made = _measured(model, list(cases(model)), measure, interrupt)
                for case, measured in made:
                    table.add_row(
                        own,
                        *cells(case, measured),
                        f"{measured.requests_per_second:,.0f}",
                        f"{measured.rows_per_second:,.0f}",
                        *(f"{value:.3f}" for value in measured.milliseconds),
                    )
            if interrupt.asked:
                break
    Console().print(table)
    if interrupt.asked:
        raise CommandError("interrupted", EXIT_INTERRUPTED)


def _measured(
    model: Model,
    cases: Sequence[Case],
    measure: Callable[[Model, Case, Interrupt], Measured],
    interrupt: Interrupt,
) -> Iterator[tuple[Case, Measured]]:
    """Yield the measurement of each case, until Control-C is pressed."""
    from popgate_tools.local import progress

    with progress("measuring", len(cases)) as done:
        for number, case in enumerate(cases):
            measured = measure(model, case, interrupt)
            if interrupt.asked:
                return
            yield case, measured
            done(number + 1)


def _compiled_batches(files: Sequence[Path], text: str | None) -> list[Any]:
    if text is None:
        return ["auto"]
    if not any(path.suffix == ".onnx" for path in files):
        msg = (
            "--compile-batch is for ONNX files only; the batch of a PopEF file is fixed"
        )
        raise CommandError(msg, EXIT_USAGE)
    return _numbers(text, "--compile-batch")


def _numbers(text: str, option: str) -> list[int]:
    parts = text.split(",")
    good = len(parts) <= MAX_VALUES and all(
        part.strip().isdecimal() and len(part) < 10 and 1 <= int(part) <= MAX_NUMBER
        for part in parts
    )
    if not good:
        msg = (
            f"{option} {text}: expected whole numbers from 1 to {MAX_NUMBER}, at most "
            f"{MAX_VALUES}, separated by commas, as in 1,8,64"
        )
        raise CommandError(msg, EXIT_USAGE)
    return [int(part) for part in parts]
