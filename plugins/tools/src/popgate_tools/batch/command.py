"""The command. It runs each row of a file, writes a line of JSON for each result, and
can be resumed.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from popgate_tools.asking import (
    AskedModel,
    RequestOptions,
    Server,
    asked_model,
    grouped,
    sequence_parameters,
)

if TYPE_CHECKING:
    from popgate_client import AsyncClient
    from popgate_tools.batch.results import ResultsFile
    from popgate_tools.batch.rows import InputRow, InputRows


@grouped
def batch(
    name: Annotated[str, typer.Argument(help="The model.")],
    source: Annotated[
        Path,
        typer.Option(
            "--input", "-i", metavar="FILE",
            help="The rows: a .csv, .jsonl or .parquet file, or a folder of images.",
        ),
    ],
    target: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE.jsonl",
            help=
                "File for the results, one line for each row. [default: "
                "INPUT.results.jsonl]",
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="COLUMN",
                     help=
                         "Copy this column of the input to the results. May be "
                         "repeated."),
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option("--column", metavar="[INPUT=]COLUMN",
                     help=
                         "Take an input of the model from a column with another name. "
                         "Without INPUT, the first input. May be repeated.")
    ] = None,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, max=1024,
                          help="Number of requests in flight.")
    ] = 32,
    timeout: Annotated[
        float,
        typer.Option(metavar="SECONDS", min=0.001, max=1e6,
                     help="Time limit of one row."),
    ] = 60.0,
    retries: Annotated[
        int, typer.Option(min=0, help="Number of retries if the server is busy.")
    ] = 8,
    *,
    server: Server,
    request: RequestOptions,
) -> None:  # fmt: skip
    """Run a model of a running gateway on every row of a file.

    Run it again to continue: rows with a result are not sent again. Failed rows are
    written to OUTPUT.errors.jsonl, and retried in the next run.

    For example: popgate batch digits --input rows.parquet
    or, to embed a column: popgate batch minilm -i reviews.csv --column body
    """
    from popgate_client import ClientError
    from popgate_tools.batch.results import ResultsFile
    from popgate_tools.batch.rows import open_rows

    if request.sequence_id:
        in_flight = 1  # the rows are one sequence, sent one by one
    place = target or source.with_name(f"{source.name}.results.jsonl")
    options: dict[str, Any] = {"timeout": timeout, "retries": retries}
    client = server.async_client(max_connections=in_flight, **options)
    with (
        open_rows(source, keep or [], column or []) as rows,
        ResultsFile(place, source, name, request.version) as results,
    ):
        before = len(results.done)
        started = time.monotonic()
        run = _BatchRun(client, name, request, in_flight, results)
        if request.sequence_id and before:
            msg = (
                f"--output {place} contains results, and a sequence cannot be "
                "resumed; remove the file"
            )
            raise CommandError(msg, EXIT_USAGE)
        try:
            asyncio.run(run.all(rows))
        except KeyboardInterrupt:
            _tell(
                results, before, place, "interrupted; run the command again to continue"
            )
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except ClientError:
            _tell(results, before, place, "stopped; run the command again to continue")
            with server.errors():
                raise
        seconds = time.monotonic() - started
        _tell(results, before, place, f"{seconds:.1f} s")
        if results.failed:
            raise typer.Exit(EXIT_FAILED)


def _tell(results: ResultsFile, before: int, place: Path, end: str) -> None:
    from app.sizes import counted

    new = len(results.done) - before
    parts = [f"{counted(new, 'row')} → {place}"]
    parts += [f"{before} done earlier"] if before else []
    if results.failed:
        parts.append(f"{counted(results.failed, 'row')} failed → {results.errors}")
    typer.echo(", ".join([*parts, end]), err=True)


class _BatchRun:
    """Run all rows that have no result yet, a limited number at a time."""

    def __init__(
        self,
        client: AsyncClient,
        name: str,
        request: RequestOptions,
        in_flight: int,
        results: ResultsFile,
    ) -> None:
        self._client = client
        self._name = name
        self._request = request
        self._streams = False
        self._begun = False  # the sequence of all rows
        self._count = 0
        self._room = asyncio.Semaphore(in_flight)
        self._results = results
        self._fatal: Exception | None = None
        self._finished = 0

    async def all(self, rows: InputRows) -> None:
        from popgate_tools.local import progress

        async with self._client as client:
            model = await self._ask(client)
            self._streams = model.streams
            self._count = rows.count
            inputs = model.taking_files() if rows.are_files else model.inputs
            tasks: set[asyncio.Task[None]] = set()
            with progress("running", rows.count) as show:
                try:
                    for row in rows.read(inputs, model.optional):
                        self._finished += row.number in self._results.done
                        if row.number in self._results.done:
                            continue
                        await self._room.acquire()
                        if self._fatal is not None:
                            break
                        task = asyncio.create_task(self._one(row, show))
                        tasks.add(task)
                        task.add_done_callback(tasks.discard)
                finally:
                    if tasks:
                        await asyncio.wait(tasks)
        if self._fatal is not None:
            raise self._fatal

    async def _ask(self, client: AsyncClient) -> AskedModel:
        from popgate_client import ClientError, ConnectionFailed

        name, version = self._name, self._request.version
        metadata = await client.metadata(name, version=version)
        try:
            config = await client.config(name, version=version)
        except ConnectionFailed:
            raise
        except ClientError:  # a server without configurations
            config = {}
        return asked_model(name, metadata, config)

    def _parameters(self, row: InputRow) -> dict[str, Any]:
        """Return the parameters of a row's request.

        Rows of one sequence follow each other. If requests start and end a sequence,
        each row has its own.
        """
        request = self._request
        if not request.is_sequence:
            return request.parameters()
        start, end = request.sequence_start, request.sequence_end
        identifier: int | str = row.number + 1
        if request.sequence_id:
            identifier = request.identifier()
            start = start or not self._begun
            end = end or row.number == self._count - 1
            self._begun = True
        said = sequence_parameters(identifier, start=start, end=end)
        return request.parameters() | said

    async def _send(self, row: InputRow) -> None:
        """Send a row and write its result."""
        options: dict[str, Any] = {
            "version": self._request.version,
            "parameters": self._parameters(row),
        }
        if not self._streams:
            outputs = await self._client.infer(self._name, row.inputs, **options)
            self._results.add(row, outputs)
            return
        stream = self._client.stream(self._name, row.inputs, **options)
        self._results.add_all(row, [outputs async for outputs in stream])

    async def _record(self, row: InputRow) -> None:
        """Write a row's result, or why it has none. Raises an error that all rows would
        have.
        """
        from popgate_client import (
            AuthenticationError,
            ClientError,
            ConnectionFailed,
            NotFound,
        )

        if row.problem:
            self._results.fail(row, row.problem, "")
            return
        try:
            await self._send(row)
        except (ConnectionFailed, NotFound, AuthenticationError):
            raise
        except ClientError as e:
            self._results.fail(row, e.message, e.code)

    async def _one(self, row: InputRow, show: Any) -> None:
        from popgate_client import ClientError

        try:
            await self._record(row)
        except ClientError as e:
            self._fatal = e  # every row would fail in the same way
        except OSError as e:  # a full disk
            self._fatal = CommandError(f"the results cannot be written: {e}")
        except Exception as e:  # the wait for all rows raises it
            self._fatal = e
        finally:
            self._finished += 1
            show(self._finished)
            self._room.release()
