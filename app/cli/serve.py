"""`popgate serve`: a folder of models, over HTTP."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from app.cli.errors import EXIT_USAGE, CommandError
from app.cli.started import print_failed, print_listening, print_started

if TYPE_CHECKING:
    from app.settings import Settings


class ServeCommand(TyperCommand):
    """Its options are made of the settings, once they are needed."""

    def get_params(self, ctx: Any) -> list[Any]:
        with _ended_by_interrupts():
            from app.cli.settings_options import settings_options

        return [*settings_options(), *super().get_params(ctx)]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        ctx.obj, ctx.params = ctx.params, {}  # for `serve`, which names none of them
        return rest


def serve(ctx: typer.Context) -> None:
    """Serve a folder of models over HTTP.

    Every option can also be set in the environment: --max-body-size is
    POPGATE_MAX_BODY_SIZE, and so on. Ctrl-C ends it in an orderly way: requests in
    flight are answered. A second Ctrl-C ends it at once.
    """
    # Of what may be given several times, Click has an empty list where none is.
    given = {k: v for k, v in ctx.obj.items() if v not in (None, (), [])}
    with _ended_by_interrupts():
        code = _serve(given)
    raise typer.Exit(code)


@contextmanager
def _ended_by_interrupts() -> Iterator[None]:
    """Control-C ends the process until the server takes it, as SIGTERM does.

    Python's exception is lost where it comes up in a callback of an import.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is not signal.default_int_handler:  # ignored, for one: so be it
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _serve(given: dict[str, Any]) -> int:
    settings = _settings(given)
    settings = _with_profile_models(settings)
    if not settings.model_repository.is_dir():
        msg = (
            f"there is no folder {settings.model_repository}; make it and put models "
            f"into it, or name another with --model-repository"
        )
        raise CommandError(msg, EXIT_USAGE)
    from app.http.server import ListenError
    from app.run import run_gateway
    from engine import InvalidConfig

    try:
        return run_gateway(
            settings,
            on_listening=lambda url, metrics: print_listening(url, metrics, settings),
            on_started=print_started,
            on_failed=print_failed,
        )
    except (ListenError, InvalidConfig) as e:
        raise CommandError(str(e), EXIT_USAGE) from None


def _settings(given: dict[str, Any]) -> Settings:
    from pydantic import ValidationError

    from app.settings import Settings

    try:
        return Settings(**given)
    except ValidationError as e:
        lines = (f"{_option(p['loc'], given)}: {p['msg']}" for p in e.errors())
        text = "; ".join(lines).replace("Value error, ", "")
        raise CommandError(text, EXIT_USAGE) from None


def _with_profile_models(settings: Settings) -> Settings:
    """The profile's own models are served where no other folder is named."""
    from app.config.profiles import PROFILES

    if settings.profile is None or "model_repository" in settings.model_fields_set:
        return settings
    try:
        folder = PROFILES[settings.profile].repository(settings.cache_dir)
    except OSError as e:
        msg = f"the models of profile {settings.profile} cannot be written: {e}"
        raise CommandError(msg, EXIT_USAGE) from None
    return settings.model_copy(update={"model_repository": folder})


def _option(location: tuple[int | str, ...], given: dict[str, Any]) -> str:
    """The option, or the variable, that a value came from."""
    name = str(location[0]) if location else "settings"
    if name in given:
        return "--" + name.replace("_", "-")
    return "POPGATE_" + name.upper()
