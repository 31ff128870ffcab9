"""The command `popgate`, and its command `serve`; plugins add others.

The modules of a command are imported when it runs, so `popgate --help` answers quickly.
Runs in the process of the command. May import all of `app`.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any, NoReturn

import typer

from app.cli.commands import Command
from app.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_USAGE, CommandError
from app.cli.plugin_commands import Commands, plugin_command
from app.cli.startup_report import print_failed, print_listening, print_started

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


class ServeCommand(Command):
    """Command whose options are made from the settings when they are needed."""

    def get_params(self, ctx: Any) -> list[Any]:
        # Importing modules makes no garbage, and a collection would take a tenth of the
        # start. `run_gateway` enables the collector again.
        gc.disable()
        with _ended_by_interrupts():
            from app.cli.settings_options import settings_options

        return [*settings_options(), *super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        # `serve` receives the options as `ctx.obj`, because it names none of them.
        paths = ctx.params.pop("paths", None)
        ctx.obj, ctx.params = ctx.params, {"paths": paths}
        return rest


@app.command("serve", cls=ServeCommand)
def serve(
    ctx: typer.Context,
    paths: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]PATH",
            help="Model files, folders of one model, or one folder of many models. "
            "A .py file requires --allow-python. [default: models]",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Serve models over HTTP: files, or a folder of them.

    Every option can also be set in the environment: --max-body-size is
    POPGATE_MAX_BODY_SIZE, and so on. Ctrl-C shuts the server down after requests in
    flight are answered. A second Ctrl-C ends it immediately.
    """
    # For a repeatable option that is missing, Click gives an empty list.
    given = {k: v for k, v in ctx.obj.items() if v not in (None, (), [])}
    with _ended_by_interrupts():
        code = _serve(given, paths or [])
    raise typer.Exit(code)


@contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Let Control-C end the process until the server handles it, as SIGTERM does.

    Python loses KeyboardInterrupt if it is raised in a callback of an import.
    """
    before = signal.getsignal(signal.SIGINT)
    # another handler, or the signal is ignored: keep that
    if before is not signal.default_int_handler:
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(given: dict[str, Any], paths: list[str]) -> int:
    from app.cli.settings_options import settings_of, with_paths

    settings = settings_of(with_paths(given, paths))
    style = settings.log_format
    from app.assembly import places_of
    from app.http.sockets import ListenError
    from app.main import create_app
    from app.run import run_gateway
    from engine import InvalidConfig

    try:
        places = places_of(settings)
        if places.folder is not None and not places.folder.is_dir():
            msg = (
                f"the folder {places.folder} does not exist; create it and put models "
                "into it, or name a model: popgate serve model.onnx"
            )
            raise CommandError(msg, EXIT_USAGE)
        return run_gateway(
            settings,
            lambda gateway: create_app(gateway=gateway),
            on_listening=partial(print_listening, places=places, log_format=style),
            on_started=print_started,
            on_failed=partial(print_failed, log_format=style),
        )
    except (ListenError, InvalidConfig) as e:
        raise CommandError(str(e), EXIT_USAGE) from None


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


def _words_of(cause: Any) -> Iterator[str]:
    """Yield what an error of pydantic, which newer Typers raise, expected and got."""
    for each in cause.errors() if hasattr(cause, "errors") else ():
        if each["type"] != "value_error":  # a whole sentence
            from app.config.config_keys import shown_value, wanted_by

            yield f"expected {wanted_by(each)}, got {shown_value(each['input'])}"


def _explain(error: Any, name: str) -> NoReturn:
    """Show what is wrong with the use of a command; without a command, show the
    help.
    """
    if type(error).__name__ == "NoArgsIsHelpError":
        error.show()
    else:
        message = error.format_message().rstrip(".")
        if words := list(_words_of(error.__cause__)):
            message = message.replace(error.message.rstrip("."), "; ".join(words))
        where = f"{error.ctx.command_path} -h" if getattr(error, "ctx", None) else name
        typer.echo(f"{name}: error: {message}; see {where}", err=True)
    sys.exit(error.exit_code)
