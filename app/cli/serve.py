"""`popgate serve`: a folder of models, over HTTP."""

from __future__ import annotations

import difflib
import gc
import os
import re
import signal
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.commands import Command
from app.cli.errors import EXIT_USAGE, CommandError
from app.cli.startup_report import (
    print_failed,
    print_listening,
    print_started,
    print_warnings,
)

#: Variables that are not settings of the server (docs/explanation/architecture.md).
OTHER_VARIABLES = frozenset(
    {"POPGATE_POOL", "POPGATE_SPIN_US", "POPGATE_INJECT_FAILURES", "POPGATE_PURE"}
    | {"POPGATE_LOOP_WATCH", "POPGATE_COMPILE", "POPGATE_URL", "POPGATE_KEY"}
    | {"POPGATE_CLIENT_CERT", "POPGATE_CLIENT_CERT_KEY"}
)
_OF_A_SERVICE = re.compile(r"POPGATE_(SERVICE_|PORT_\d)")

if TYPE_CHECKING:
    from app.settings import Settings


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
        code = _serve(_with_paths(given, paths or []))
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


def _with_paths(given: dict[str, Any], paths: list[str]) -> dict[str, Any]:
    """Return the options, with arguments without an option treated as models.

    A folder holds many models unless its content shows that it is one model.
    """
    from app.repository.places import is_one_model, is_weights

    folder = given.pop("model_repository", None)
    folders = [] if folder is None else [folder]
    models = list(given.pop("model", ()))
    if folder is not None and Path(folder).is_file():
        paths, folders = [folder, *paths], []
    for path in paths:
        place = Path(path)
        if place.is_dir() and not is_one_model(place) and not is_weights(place):
            folders.append(path)
        else:
            models.append(path)
    if len(folders) > 1:
        msg = (
            "popgate serve takes one folder of models, got "
            f"{' and '.join(folders)}; name single models with --model"
        )
        raise CommandError(msg, EXIT_USAGE)
    given |= {"model_repository": folders[0]} if folders else {}
    return given | ({"model": models} if models else {})


def _serve(given: dict[str, Any]) -> int:
    settings = _settings(given)
    settings = _with_profile_models(settings)
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


def _settings(given: dict[str, Any]) -> Settings:
    from pydantic import ValidationError

    from app.settings import Settings

    style = given.get("log_format") or os.environ.get("POPGATE_LOG_FORMAT", "text")
    print_warnings(_odd_variables(Settings.model_fields), style)
    try:
        return Settings(**given)
    except ValidationError as e:
        lines = (_option(p["loc"], given) + p["msg"] for p in e.errors())
        text = "; ".join(lines).replace("Value error, ", "")
        raise CommandError(text, EXIT_USAGE) from None


def _odd_variables(settings: Iterable[str]) -> Iterator[str]:
    """Yield the variables that look like settings but are unknown."""
    known = {f"POPGATE_{name.upper()}" for name in settings} | OTHER_VARIABLES
    for name in sorted(set(os.environ) - known):
        # Kubernetes sets such variables for a service called popgate.
        if name.startswith("POPGATE_") and not _OF_A_SERVICE.match(name):
            close = difflib.get_close_matches(name, known, 1, cutoff=0.8)
            meant = f"; did you mean {close[0]}?" if close else ""
            yield f"{name} is not a setting and has no effect{meant}"


def _with_profile_models(settings: Settings) -> Settings:
    """Return the settings, with the profile's models if no other folder is named."""
    from app.config.profiles import profile_named

    if settings.profile is None or "model_repository" in settings.model_fields_set:
        return settings
    try:
        folder = profile_named(settings.profile).repository(settings.cache_dir)
    except OSError as e:
        msg = (
            f"cannot write the models of --profile {settings.profile} to "
            f"--cache-dir: {e}"
        )
        raise CommandError(msg, EXIT_USAGE) from None
    return settings.model_copy(update={"model_repository": folder})


def _option(location: tuple[int | str, ...], given: dict[str, Any]) -> str:
    """Return the option or variable of a value, followed by a colon; empty if the error
    concerns several.
    """
    if not location:
        return ""
    name = str(location[0])
    if name in given:
        return f"--{name.replace('_', '-')}: "
    return f"POPGATE_{name.upper()}: "
