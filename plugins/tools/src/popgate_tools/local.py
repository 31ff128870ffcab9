"""Models in this process: shared by `popgate run` and `popgate bench`."""

from __future__ import annotations

import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import typer

from app.cli.errors import EXIT_NO_DEVICE, EXIT_USAGE, CommandError

if TYPE_CHECKING:
    from popef_io import Model

Batch: TypeAlias = Literal["auto", "off"] | int


@contextlib.contextmanager
def engine_errors() -> Iterator[None]:
    """Turn errors of the engine into errors of the command."""
    from engine import EngineError, Invalid, InvalidModel, NoDeviceAvailable

    try:
        yield
    except NoDeviceAvailable as e:
        raise CommandError(str(e), EXIT_NO_DEVICE) from None
    except InvalidModel as e:
        raise CommandError(str(e)) from None
    except Invalid as e:
        raise CommandError(str(e), EXIT_USAGE) from None
    except EngineError as e:
        raise CommandError(str(e)) from None


@contextlib.contextmanager
def opened(
    files: Sequence[Path], executable: str = "", batch: Batch = "auto"
) -> Iterator[Model]:
    """Open the model in the files. ONNX files are compiled to temporary PopEF files.

    `batch` is the option of the compiler, for ONNX files.
    """
    from popef_io import InvalidValueError, PopefError, load_model

    with tempfile.TemporaryDirectory(prefix="popgate-") as folder:
        try:
            paths = [
                _compiled(path, Path(folder) / f"{number}.popef", batch)
                if path.suffix == ".onnx"
                else path
                for number, path in enumerate(files)
            ]
            model = load_model(*paths, executable_name=executable or None)
        except InvalidValueError as e:
            reason = str(e).removeprefix(f"{e.field}: ")
            hint = " (--executable NAME)" if e.field == "executable_name" else ""
            raise CommandError(reason + hint, EXIT_USAGE) from None
        except PopefError as e:
            raise CommandError(str(e)) from None
        except OSError as e:
            raise CommandError(f"{e.filename}: {e.strerror}") from None
        yield model


def _compiled(source: Path, target: Path, batch: Batch) -> Path:
    from engine import InvalidModel
    from popgate_onnx.compiler import CompileOptions, compile_in_process

    try:
        options = CompileOptions(name=source.stem, batch=batch)
        report = compile_in_process(source, target, options)
    except InvalidModel as e:
        raise CommandError(f"{source}: {e}") from None
    typer.echo(f"compiled {source}; {report.batch}", err=True)
    return target


class Interrupt:
    """Context manager that ends a measurement on Control-C: after the running request,
    or immediately on a second press. `asked` is true if it was pressed.
    """

    def __init__(self) -> None:
        self.asked = False
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        self._before = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *exception: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _note(self, number: int, frame: object) -> None:
        self.asked = True
        signal.signal(signal.SIGINT, self._before)


@contextlib.contextmanager
def progress(what: str, count: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar if standard error is a terminal."""
    if not sys.stderr.isatty() or count < 2:
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    step = max(1, count // 200)
    # Draw only on progress: a drawing thread would disturb the measurement.
    console = Console(stderr=True)
    with Progress(console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(what, total=count)

        def show(done: int) -> None:
            if done % step == 0:
                bar.update(task, completed=done, refresh=True)

        yield show
