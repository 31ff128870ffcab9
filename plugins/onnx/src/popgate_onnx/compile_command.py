"""`popgate compile`: from ONNX files, and files that plugins know, to PopEF files."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, NamedTuple, TypeAlias

import typer

from app.cli.errors import EXIT_FAILED, EXIT_USAGE, CommandError
from app.cli.pairs import parse_pairs, parse_shapes
from app.observe.log_text import escaped
from app.plugins import plugins

if TYPE_CHECKING:
    from popgate_onnx.compiler import (
        Compilations,
        CompileOptions,
        CompileReport,
        QuantizeReport,
        TensorReport,
    )

#: Kinds of files besides ONNX that `popgate compile` accepts: modules with `split_name`
#: and `compile_program` (docs/how-to/write-a-plugin.md).
EXECUTABLES: Final = "popgate.executables"

# Receives the name of a stage and the completed fraction, 0 to 1.
Progress: TypeAlias = Callable[[str, float], None]
Compiler: TypeAlias = "Callable[[Path, Path, CompileOptions, Progress], CompileReport]"

_Models = Annotated[
    list[Path],
    typer.Argument(metavar="MODEL", help=
        "ONNX models to compile. Or PROGRAM.py[:NAME]: a Python file to run, "
        "and the name of the popxl Ir in it."
    ),
]  # fmt: skip
_Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE",
                 help=
                     "The PopEF file to write. [default: MODEL.popef beside the model]"
                 ),
]  # fmt: skip
_OutDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help=
        "A folder for the PopEF files of several models. If one model fails, the "
        "others are still compiled."
    ),
]  # fmt: skip
_Batch = Annotated[
    str,
    typer.Option(metavar="auto|off|N", help=
        "Whether to run rows of different requests together. auto: if a check "
        "shows that results stay the same. off: never. N: as auto, with a "
        "fixed batch of N rows."
    ),
]  # fmt: skip
_Weights = Annotated[
    str,
    typer.Option(metavar="data|inside", help=
        "Where to store large weights. data: as tensor data, which is mapped, "
        "shared and replaceable. inside: inside the executable."
    ),
]  # fmt: skip
_WeightsFrom = Annotated[
    str,
    typer.Option(metavar="SIZE", help="Size in bytes above which a weight is large."),
]
_Name = Annotated[
    str,
    typer.Option(
        help="Name of the executable in the file, which is the model's name. "
        "[default: that of the file]"
    ),
]
_Input = Annotated[
    list[str] | None,
    typer.Option("--rename-input", metavar="OLD=NEW", help="Rename an input."),
]
_Outputs = Annotated[
    list[str] | None,
    typer.Option("--rename-output", metavar="OLD=NEW", help="Rename an output."),
]
_Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", metavar="NAME=DIMS", help=
        "New shape of an input or output, as in image=-1,1,28,28. -1 or a "
        "name is a free dimension."
    ),
]  # fmt: skip
_Metadata = Annotated[
    list[str] | None,
    typer.Option(
        "--metadata", metavar="KEY=VALUE", help="Write a property into the file."
    ),
]
_Description = Annotated[
    str,
    typer.Option(
        metavar="TEXT", help="Description to write into the file, for people."
    ),
]
_Fuse = Annotated[
    str | None,
    typer.Option(metavar="INPUT", help=
        "Put all models into one file. This input selects the model that a request "
        "runs: 0 is the first."
    ),
]  # fmt: skip
_Quantize = Annotated[
    str,
    typer.Option(metavar="int8", help=
        "Store weights as 8-bit integers. The model becomes smaller and often faster, "
        "and its answers differ. Prints size, speed and difference. For the folder of "
        "a text model, an ONNX file is written."
    ),
]  # fmt: skip
_Timeout = Annotated[
    float,
    typer.Option(
        metavar="SECONDS", min=0.1, max=1e6, help="Time limit for compiling a model."
    ),
]
_Memory = Annotated[
    str,
    typer.Option(metavar="SIZE", help=
        "Memory limit for compiling a model; 0: three quarters of the machine's."
    ),
]  # fmt: skip
_Threads = Annotated[
    int, typer.Option(metavar="N", help="Threads for the check of --batch.")
]


@dataclass(frozen=True, slots=True)
class CompileResult:
    """Result of one model: a report or a reason."""

    source: Path
    seconds: float
    report: CompileReport | None = None
    reason: str = ""


def compile_models(
    models: _Models,
    output: _Output = None,
    out_dir: _OutDir = None,
    batch: _Batch = "auto",
    weights: _Weights = "data",
    weights_from: _WeightsFrom = "1024",
    name: _Name = "",
    rename_input: _Input = None,
    rename_output: _Outputs = None,
    shape: _Shapes = None,
    metadata: _Metadata = None,
    description: _Description = "",
    fuse: _Fuse = None,
    quantize: _Quantize = "",
    threads: _Threads = 1,
    timeout: _Timeout = 600.0,
    memory: _Memory = "0",
) -> None:
    """Compile ONNX models into PopEF files that the gateway serves.

    popgate compile model.onnx -o models/model.popef

    popgate compile a.onnx b.onnx --out-dir models/

    popgate compile program.py:ir -o models/program.popef
    """
    compilations = _compilations(timeout, memory)
    options = _options(
        batch=batch,
        weights=weights,
        weights_from=weights_from,
        name=name,
        inputs=parse_pairs(rename_input, "--rename-input"),
        outputs=parse_pairs(rename_output, "--rename-output"),
        shapes=parse_shapes(shape),
        user_metadata=parse_pairs(metadata, "--metadata"),
        description=description,
        threads=threads,
    )
    if quantize:
        _check_quantize(quantize, models, fuse)
        if models[0].is_dir():
            _quantize_folder(models, output, out_dir, options, compilations)
            return
    jobs = _jobs(models, output, out_dir, fuse, compilations)
    quantized: dict[Path, QuantizeReport] = {}
    if quantize:
        compiler = _quantizer(compilations, quantized)
        jobs = [job._replace(compiler=compiler) for job in jobs]
    if out_dir is not None:
        _make(out_dir)
    results = []
    with compilations:
        for job in jobs:
            with _progress(job.source.name) as stage:
                result = _compile(job, options, stage)
            # The progress line has ended. Nothing may be printed while it is shown.
            results.append(result)
            _tell(result, quantized.get(job.source))
    if len(results) > 1:
        failed = sum(bool(result.reason) for result in results)
        typer.echo(f"{len(results) - failed} compiled, {failed} failed")
    if any(result.reason for result in results):
        raise typer.Exit(EXIT_FAILED)


def _check_quantize(kind: str, models: list[Path], fuse: str | None) -> None:
    if kind != "int8":
        raise CommandError(f"--quantize: expected int8, got {kind!r:.40}", EXIT_USAGE)
    if fuse is not None or any(_program(model) for model in models):
        msg = "--quantize takes ONNX files and one folder of a text model"
        raise CommandError(
            f"{msg}; compile programs without it, and leave out --fuse", EXIT_USAGE
        )


def _quantize_folder(
    models: list[Path],
    output: Path | None,
    out_dir: Path | None,
    options: CompileOptions,
    compilations: Compilations,
) -> None:
    """Write the quantised file of one folder, and print how to serve it."""
    from engine import EngineError
    from popgate_onnx.compiler import CompileOptions
    from popgate_onnx.quantize_command import quantize_in, tell_quantized

    (folder, *others) = models
    if others or out_dir is not None:
        raise CommandError(
            "--quantize takes one folder at a time; call it for each, with "
            "--output instead of --out-dir",
            EXIT_USAGE,
        )
    if options != CompileOptions():
        msg = "--quantize of a folder writes an ONNX file, which has no other options"
        raise CommandError(
            f"{msg}; leave out all but --output, --timeout and --memory", EXIT_USAGE
        )
    try:
        with compilations, _progress(folder.name) as stage:
            source, target, report = quantize_in(folder, output, compilations, stage)
    except (EngineError, ValueError, OSError) as error:
        raise CommandError(f"{folder}: {error}") from None
    typer.echo(f"{source} → {target}")
    tell_quantized(report)
    if target.is_relative_to(folder):
        name = target.relative_to(folder).as_posix()
        typer.echo(f'  serve it with file = "{name}" in [text] of config.toml')


def _quantizer(
    compilations: Compilations, quantized: dict[Path, QuantizeReport]
) -> Compiler:
    """Return a compiler that quantises models first and puts its reports into
    `quantized`.
    """

    def compile_it(
        source: Path, target: Path, options: CompileOptions, progress: Progress
    ) -> CompileReport:
        from popgate_onnx.quantize_command import quantize

        _check_kept([source], target)
        with tempfile.TemporaryDirectory(prefix="popgate-quantize-") as folder:
            path = Path(folder) / source.name
            found = quantize(source, path, compilations, progress)
            report = _compile_one(compilations, path, target, options, progress)
        quantized[source] = found
        return report

    return compile_it


class _ModelJob(NamedTuple):
    source: Path
    target: Path
    compiler: Compiler


def _is_place(output: Path) -> bool:
    """Return whether `output` is the name of a regular file, or of none.

    The process that compiles has other descriptors, so links to one are none.
    """
    if output.is_symlink() and output.parts[:2] in (("/", "dev"), ("/", "proc")):
        return False
    return output.is_file() or not output.exists()


def _jobs(
    models: list[Path],
    output: Path | None,
    out_dir: Path | None,
    fuse: str | None,
    compilations: Compilations,
) -> list[_ModelJob]:
    if output is not None and not output.parent.is_dir():
        msg = (
            f"the folder {output.parent} for {output.name} does not exist; create it "
            "first"
        )
        raise CommandError(msg, EXIT_USAGE)
    if output is not None and not _is_place(output):
        msg = f"{output} is not a regular file; name another with --output"
        raise CommandError(msg, EXIT_USAGE)
    if fuse is None:
        return [
            _ModelJob(source, target, _compiler(source, compilations))
            for source, target in _targets(models, output, out_dir).items()
        ]
    if any(_program(model) for model in models):
        raise CommandError(
            "--fuse joins ONNX models only; leave out the programs", EXIT_USAGE
        )
    if output is None or out_dir is not None:
        msg = "--fuse writes one file; name it with --output, not --out-dir"
        raise CommandError(msg, EXIT_USAGE)
    return [_ModelJob(models[0], output, _fuser(models, fuse, compilations))]


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise CommandError(f"{folder}: {e.strerror}") from None


def _targets(
    models: list[Path], output: Path | None, out_dir: Path | None
) -> dict[Path, Path]:
    """Return the target of each model. No model of this call overwrites another."""
    if output is not None and out_dir is not None:
        raise CommandError(
            "--output and --out-dir exclude each other; remove one", EXIT_USAGE
        )
    if output is not None:
        if len(models) > 1:
            msg = (
                f"--output names one file, but there are {len(models)} models; use "
                "--out-dir"
            )
            raise CommandError(msg, EXIT_USAGE)
        return {models[0]: output}
    targets: dict[Path, Path] = {}
    taken: dict[Path, Path] = {}
    for model in dict.fromkeys(models):
        target = (out_dir or model.parent) / f"{model.stem}.popef"
        if target in taken:
            msg = (
                f"{taken[target]} and {model} would both be written to {target}; "
                "compile them separately with --output"
            )
            raise CommandError(msg, EXIT_USAGE)
        taken[target] = model
        targets[model] = target
    return targets


def _options(*, batch: str, weights_from: str, **values: Any) -> CompileOptions:
    from app.sizes import parse_size
    from engine import InvalidConfig
    from popgate_onnx.compiler import CompileOptions

    try:
        return CompileOptions(
            batch=int(batch) if batch.isdecimal() and len(batch) < 10 else batch,  # type: ignore[arg-type]
            weights_from=parse_size(weights_from),
            **values,
        )
    except (InvalidConfig, ValueError) as e:
        raise CommandError(str(e), EXIT_USAGE) from None


def _compilations(timeout: float, memory: str) -> Compilations:
    from app.sizes import parse_size
    from popgate_onnx.compiler import Compilations, CompileLimits

    try:
        return Compilations(CompileLimits(timeout, parse_size(memory)))
    except ValueError as e:
        raise CommandError(f"--memory: {e}", EXIT_USAGE) from None


def _compiler(source: Path, compilations: Compilations) -> Compiler:
    program = _program(source)
    if program is None:
        return partial(_compile_one, compilations)
    plugin, path, name = program

    def compile_it(
        _: Path, target: Path, options: CompileOptions, progress: Progress
    ) -> CompileReport:
        report: CompileReport = plugin.compile_program(
            path, name, target, options, progress
        )
        return report

    return compile_it


def _program(source: Path) -> tuple[Any, Path, str] | None:
    """Return the plugin for a file of another kind than ONNX, its path, and the name of
    the object in it.
    """
    if source.suffix == ".onnx":
        return None
    for plugin in plugins(EXECUTABLES).values():
        if found := plugin.split_name(source):
            return plugin, *found
    return None


def _compile_one(
    compilations: Compilations,
    source: Path,
    target: Path,
    options: CompileOptions,
    progress: Progress,
) -> CompileReport:
    from popgate_onnx.compiler import compile_in_process

    _check_kept([source], target)
    return compile_in_process(source, target, options, progress, compilations)


def _fuser(models: list[Path], selector: str, compilations: Compilations) -> Compiler:
    """Compile all of `models` into one file."""

    def fuse(
        source: Path, target: Path, options: CompileOptions, progress: Progress
    ) -> CompileReport:
        from popgate_onnx.compiler import fuse_in_process

        _check_kept(models, target)
        sources = [(model.stem, model) for model in models]
        return fuse_in_process(
            sources, target, selector, options, progress, compilations
        )

    return fuse


def _check_kept(models: list[Path], target: Path) -> None:
    """Refuse to replace a model by its own result."""
    if target.exists() and any(target.samefile(model) for model in models):
        raise CommandError(
            f"{target} is the model itself, which would be overwritten; choose "
            "another --output"
        )


def _compile(
    job: _ModelJob, options: CompileOptions, progress: Progress
) -> CompileResult:
    """Run a compiler and catch its errors."""
    from engine import EngineError
    from popef_io import PopefError

    start, report = time.monotonic(), None
    try:
        report = job.compiler(job.source, job.target, options, progress)
        reason = ""
    except (EngineError, PopefError, CommandError) as e:
        reason = str(e)
    except OSError as e:
        # An error without a file name comes from writing the target.
        reason = e.strerror or str(e)
        if (where := e.filename or job.target) != str(job.source):
            reason = f"{where}: {reason}"
    except Exception as e:
        reason = f"{type(e).__name__}: {e}; this is a bug"
    return CompileResult(job.source, time.monotonic() - start, report, reason)


@contextmanager
def _progress(name: str) -> Iterator[Progress]:
    """Show the current stage if standard error is a terminal."""
    if not sys.stderr.isatty():
        yield lambda stage, done: None
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(f"{name}: starting")
        yield lambda stage, done: bar.update(task, description=f"{name}: {stage}")


def _tell(result: CompileResult, quantized: QuantizeReport | None) -> None:
    from app.sizes import size_text

    report = result.report
    if report is None:
        typer.echo(f"popgate: error: {result.source}: {result.reason}", err=True)
        return
    size, took = size_text(report.file_bytes), f"{result.seconds:.1f} s"
    typer.echo(f"{result.source} → {report.target}, {size}, {took}")
    typer.echo(f"  takes {_tensors(report.inputs) or 'nothing'}")
    typer.echo(f"  gives {_tensors(report.outputs)}")
    typer.echo(f"  {report.batch}")
    if quantized is not None:
        from popgate_onnx.quantize_command import tell_quantized

        tell_quantized(quantized)
    if report.batch.could_not_run:
        reason = report.batch.reason
        typer.echo(f"popgate: warning: {result.source}: {reason}", err=True)


def _tensors(tensors: tuple[TensorReport, ...]) -> str:
    from app.spec import datatype_of, notation

    shown = []
    for tensor in tensors:
        datatype = datatype_of(tensor.info.data_type).name
        name = escaped(tensor.name)
        shown.append(f"{name} {notation(datatype, tensor.info.shape)}")
    return ", ".join(shown)
