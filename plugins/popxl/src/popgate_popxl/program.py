"""`popgate compile program.py[:name]`: the Ir of a Python program.

The program is the user's own. It runs only if the user names it on the command line.
"""

from __future__ import annotations

import runpy
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.cli.errors import CommandError

if TYPE_CHECKING:
    from popgate_onnx.compiler import CompileOptions, CompileReport
    from popir import Ir


def split_name(source: Path) -> tuple[Path, str] | None:
    """Return the file and the name in it if `source` is a Python program; else None."""
    path, colon, name = str(source).rpartition(":")
    if colon and path.endswith(".py") and name.isidentifier():
        return Path(path), name
    return (source, "") if source.suffix == ".py" else None


def compile_program(
    path: Path,
    name: str,
    target: Path,
    options: CompileOptions,
    progress: Callable[[str, float], None],
) -> CompileReport:
    """Run the program at `path` and write the Ir called `name` to `target`.

    name: the name of an Ir, or of a function without arguments that returns one. If
    empty: `ir`, or the program's only Ir. Raises CommandError for a program that fails
    or has no such Ir.
    """
    import popir

    if options.inputs or options.outputs or options.shapes:
        raise CommandError(
            "--rename-input, --rename-output and --shape do not apply to a "
            "program; its streams have names and shapes"
        )
    if options.weights != "data" or isinstance(options.batch, int):
        msg = (
            "a program can be compiled only with --batch auto or off, and with "
            "--weights data"
        )
        raise CommandError(msg)
    progress("running the program", 0.0)
    with _told(path):
        ir = _ir_of(_run(path), name, path)
    progress("compiling", 0.5)
    try:
        return popir.export_popef(
            ir,
            target,
            name=options.name,
            batch=options.batch,
            user_metadata=options.user_metadata,
            description=options.description,
            threads=options.threads,
        )
    except (popir.IrError, popir.NotYet) as error:
        raise CommandError(f"its Ir cannot be compiled: {error}") from None


def _run(path: Path) -> Mapping[str, Any]:
    """Run the file as a program that is imported, not as `__main__`."""
    if not path.is_file():
        raise CommandError(f"{path} does not exist")
    argv, found = sys.argv, sys.path
    sys.argv, sys.path = [str(path)], [str(path.resolve().parent), *sys.path]
    try:
        return runpy.run_path(str(path), run_name=path.stem)
    finally:
        sys.argv, sys.path = argv, found


def _ir_of(names: Mapping[str, Any], name: str, path: Path) -> Ir:
    if name:
        if name not in names:
            raise CommandError(f"the program has no name {name!r}")
        value = names[name]
        if not _is_ir(value) and callable(value):
            value = value()
        if not _is_ir(value):
            kind = type(value).__name__
            raise CommandError(
                f"{name!r} is a {kind}; expected an Ir or a function that returns one"
            )
        return _below(value)
    if _is_ir(names.get("ir")):
        return _below(names["ir"])
    found = {k: v for k, v in names.items() if _is_ir(v)}
    different = {id(_below(value)) for value in found.values()}
    if len(different) != 1:
        given = (
            (f"it has several: {', '.join(sorted(found))}")
            if found
            else ("it has none")
        )
        raise CommandError(f"name the program's Ir, as in {path}:NAME; {given}")
    return _below(next(iter(found.values())))


def _is_ir(value: object) -> bool:
    import popir

    return isinstance(value, popir.Ir) or isinstance(
        getattr(value, "_below", None), popir.Ir
    )


def _below(value: Any) -> Ir:
    ir: Ir = getattr(value, "_below", value)
    return ir


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Report an exception of the program as the user's error, with its line."""
    try:
        yield
    except (CommandError, KeyboardInterrupt):
        raise
    except SystemExit as end:
        raise CommandError(f"the program called sys.exit({end.code})") from None
    except BaseException as error:
        here = str(path.resolve())
        lines = [
            frame.lineno
            for frame in traceback.extract_tb(error.__traceback__)
            if str(Path(frame.filename).resolve()) == here
        ]
        if isinstance(error, SyntaxError):
            lines = [error.lineno or 0]
        where = f"line {lines[-1]}: " if lines else ""
        raise CommandError(f"{where}{type(error).__name__}: {error}") from None
