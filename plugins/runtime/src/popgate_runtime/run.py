"""`popgate run`: a model in this process, on random or real data."""

from __future__ import annotations

import time
from array import array
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import EXIT_INTERRUPTED, CommandError
from popgate_tools.options import Executable, Files, Seed

if TYPE_CHECKING:
    from engine import ModelRunner, Request, Tensor
    from popgate_tools.latency import Measured

MAX_ITERATIONS = 100_000_000
MAX_IN_FLIGHT = 65_536
#: Time that rows wait for other rows to complete a run; perhaps none come.
_FILL_NS = 1_000_000

_Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", "-i", metavar="NAME=VALUE",
                 help=
                     "An input: NAME=file.npy, NAME=file.npz, or a JSON value as in "
                     "NAME='[[1, 2]]'. Or file.npz, whose arrays have the names of "
                     "the inputs. Other inputs are generated. May be repeated."),
]  # fmt: skip
_Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=DIMS", help=
        "Shape of a generated input with free dimensions, as in image=1,3,224,224. "
        "[default: 1 for each free dimension]"),
]  # fmt: skip
_Batch = Annotated[
    int | None,
    typer.Option("--batch", "-b", metavar="ROWS", min=1,
                 help="Rows of generated inputs. [default: those of a full run, or 1]"),
]  # fmt: skip
_Iterations = Annotated[
    int, typer.Option("--iterations", "-n", metavar="N", min=1, max=MAX_ITERATIONS,
                      help="Number of requests, all with the same data."),
]  # fmt: skip
_InFlight = Annotated[
    int | None,
    typer.Option("--async", metavar="N", min=1, max=MAX_IN_FLIGHT,
                 help="Number of requests in flight. [default: one for each replica]"),
]  # fmt: skip
_Replicas = Annotated[
    int, typer.Option(metavar="N", min=1, max=1024, help=
        "Number of replicas, each on its own device. They take requests in turn."),
]  # fmt: skip
_Save = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help=
        "Write the outputs of the last request to a .npz file (or a single output to "
        "a .npy file) instead of printing them."),
]  # fmt: skip
_Quiet = Annotated[
    bool, typer.Option("--quiet", "-q", help="Do not print the outputs.")
]
_Given = Annotated[
    bool, typer.Option("--only-given", help=
        "Generate no inputs, for example to run one of several fused models."),
]  # fmt: skip
_Devices = Annotated[
    str | None,
    typer.Option(metavar="SPEC", help=
        "Devices to run on, as for serve. [default: the CPU devices]"),
]  # fmt: skip


def run(
    files: Files,
    inputs: _Inputs = None,
    batch: _Batch = None,
    iterations: _Iterations = 1,
    in_flight: _InFlight = None,
    replicas: _Replicas = 1,
    save: _Save = None,
    seed: Seed = 0,
    quiet: _Quiet = False,
    shapes: _Shapes = None,
    only_given: _Given = False,
    executable: Executable = "",
    devices: _Devices = None,
) -> None:
    """Run a model here, without a gateway.

    The command prints the outputs and the time that the model takes. For example:

    popgate run model.popef

    popgate run model.popef --input image=digit.npy --save outputs.npz

    popgate run model.popef --batch 8 --iterations 10000 --async 16
    """
    from engine import DeviceManager, ModelRunner, ModelRunnerConfig
    from popgate_runtime import run_data
    from popgate_tools.local import engine_errors, opened

    if save is not None:
        run_data.check_target(save)
    flying = in_flight or replicas
    with engine_errors(), opened(files, executable) as model:
        config = ModelRunnerConfig(
            replication_factor=replicas,
            validate_io_params=not only_given,
            max_queue_size=max(1024, flying),
            batching_dim=None,
            timeout_ns=_FILL_NS,
        )
        manager = DeviceManager(devices, overcommit=True)
        with ModelRunner(model, config, manager=manager) as runner:
            tensors = run_data.make_inputs(
                runner.execute_inputs,
                inputs,
                shapes,
                batch=batch or 0,
                batched=runner.batching,
                iterations=model.metadata.device_iterations,
                seed=seed,
                fill=not only_given,
            )
            last, measured = _measure(runner, tensors, iterations, flying)
            results = {} if last is None else last.outputs
            outputs = run_data.named(results, runner.execute_outputs)
            name = runner.name
            where = ", ".join(device.id for device in runner.devices)
    if save is not None and outputs:
        run_data.save(outputs, save)
        typer.echo(f"outputs → {save}")
    elif not quiet:
        for output in outputs:
            typer.echo(run_data.shown(output))
    _tell(name, where, measured, flying)
    if measured.count < iterations:
        msg = f"interrupted after {measured.count} of {iterations} requests"
        raise CommandError(msg, EXIT_INTERRUPTED)


def _measure(
    runner: ModelRunner, tensors: Mapping[str, Tensor], count: int, in_flight: int
) -> tuple[Request | None, Measured]:
    """Make `count` requests; return the last result and the measurement. Control-C ends
    the measurement early; it then covers the finished part.
    """
    from popgate_tools.latency import Measured
    from popgate_tools.local import Interrupt, progress

    latencies = array("d")
    waiting: deque[Request] = deque()
    replicas = len(runner.devices)
    last: Request | None = None
    clock = time.perf_counter
    started = clock()

    def submit(number: int) -> Request:
        began = clock()
        return runner.submit(
            tensors,
            on_done=lambda _: latencies.append(clock() - began),
            replica_id=number % replicas,
        )

    def take() -> Request:
        request = waiting.popleft()
        request.wait()
        if request.error is not None:
            raise request.error
        return request

    with Interrupt() as interrupt, progress("running", count) as done:
        for number in range(count):
            if interrupt.asked:
                break
            waiting.append(submit(number))
            if len(waiting) == in_flight:
                last = take()
                done(number)
        while waiting:
            last = take()
    rows = {t.shape[0] for t in tensors.values() if t.shape} if runner.batching else {0}
    seconds = clock() - started
    return last, Measured(seconds, latencies, rows.pop() if len(rows) == 1 else 0)


def _tell(name: str, where: str, measured: Measured, in_flight: int) -> None:
    from app.sizes import counted

    if measured.count == 1:
        milliseconds = 1e3 * measured.latencies[0]
        typer.echo(f"{name} on {where}, {milliseconds:.3f} ms", err=True)
        return
    rows = f" of {counted(measured.rows, 'row')}" if measured.rows else ""
    head = f"{counted(measured.count, 'request')}{rows}, {in_flight} in flight"
    typer.echo(f"{name} on {where}: {head}", err=True)
    for line in measured.lines():
        typer.echo(f"  {line}", err=True)
