"""The command `popgate`: one file for each of its commands; plugins add others.

The modules of a command are imported when it runs, so `popgate --help` answers quickly.
Runs in the process of the command. May import all of `app`.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from app.cli import serve
from app.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, CommandError
from app.cli.plugin_commands import Commands, plugin_command

app = typer.Typer(
    name="popgate",
    cls=Commands,
    help="An open inference gateway.\n\n"
    "Compile an ONNX model into a PopEF file, put it into a folder, serve the "
    "folder over HTTP, and post tensors to it.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("serve", cls=serve.ServeCommand)(serve.serve)


def _show_version(wanted: bool) -> None:
    if wanted:
        from app.about import VERSION

        typer.echo(f"popgate {VERSION}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            help="Show the version and exit.",
            callback=_show_version,
            is_eager=True,
        ),
    ] = False,
) -> None:
    """Handle the options before the command."""


def main() -> None:
    """Run the command."""
    _run(app, "popgate")


def popef_dump() -> None:
    """Run `popgate dump`, which a plugin adds, under its old name `popef_dump`."""
    _run(lambda **options: plugin_command("dump").load()(**options), "popef_dump")


def _open_standard_streams() -> None:
    """Open closed standard streams. Otherwise the next file or socket would get their
    number, and libraries would write warnings into it.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:  # `os.open` takes the lowest free number: this one
            os.open(os.devnull, os.O_RDWR)


def _run(command: Callable[..., Any], name: str) -> None:
    _open_standard_streams()
    # The caller may have blocked signals such as SIGTERM, which would then have no
    # effect.
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # file names may contain any bytes
            stream.reconfigure(errors="backslashreplace")
    try:
        code = command(prog_name=name, standalone_mode=False)
    except CommandError as e:
        typer.echo(f"{name}: error: {e}", err=True)
        sys.exit(e.exit_code)
    except OSError as e:  # for example a full disk below standard output
        typer.echo(f"{name}: error: {e}", err=True)
        sys.exit(EXIT_FAILED)
    except typer.Abort:
        sys.exit(EXIT_INTERRUPTED)
    except Exception as e:
        # The exception class for wrong usage depends on typer's version.
        if not hasattr(e, "format_message"):
            raise
        _explain(e, name)
    sys.exit(code if isinstance(code, int) else 0)


def _explain(error: Any, name: str) -> NoReturn:
    """Show what is wrong with the use of a command; without a command, show the
    help.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        message = error.format_message().rstrip(".")
        where = f"{error.ctx.command_path} -h" if getattr(error, "ctx", None) else name
        typer.echo(f"{name}: error: {message}; see {where}", err=True)
    sys.exit(error.exit_code)
