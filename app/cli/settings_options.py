"""The options of `popgate serve`, made of the fields of `Settings`, and back."""

from __future__ import annotations

import ast
import difflib
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from typer.main import get_command

from app import settings
from app.cli.errors import EXIT_USAGE, CommandError
from app.cli.startup_report import print_warnings
from app.config.config_keys import shown_value, wanted_by
from app.config.profiles import profile_named
from app.settings import Settings, Shown
from app.sizes import size_text

#: The settings below each heading of the help. The most wanted come first.
HEADINGS = {
    "Models": "model_repository model profile model_control_mode load_model lazy "
    "repository_poll_secs model_memory strict_readiness allow_python reload cache_dir "
    "model_cache model_download_limit",
    "Address": "host port uds workers base_path metrics_port management_socket "
    "openai_root tei invocations no_pages",
    "Devices": "devices threads device_wait device_wait_sleep device_timeout",
    "Access": "api_key keys trust_loopback restricted_api allow_origin "
    "trusted_proxy tls_cert "
    "tls_key tls_client_ca",
    "Limits": "max_connections max_connections_per_address max_body_size max_strings "
    "request_timeout header_timeout upload_timeout send_timeout run_timeout "
    "transfer_memory load_threads load_timeout compile_timeout compile_memory "
    "shutdown_timeout drain_grace",
    "Answers": "compress_responses error_statuses server_name server_version "
    "server_extensions",
    "Shared memory": "allow_shared_memory shared_memory_limit shared_memory_lease "
    "shared_memory_prefix",
    "Logs and traces": "access_log log_level log_format log_config "
    "trace_file trace_level trace_rate trace_count",
}
_HEADINGS = {
    name: heading for heading, all_ in HEADINGS.items() for name in all_.split()
}
#: Variables that are not settings of the server (docs/explanation/architecture.md).
OTHER_VARIABLES = frozenset(
    {"POPGATE_POOL", "POPGATE_SPIN_US", "POPGATE_INJECT_FAILURES", "POPGATE_PURE"}
    | {"POPGATE_LOOP_WATCH", "POPGATE_COMPILE", "POPGATE_URL", "POPGATE_KEY"}
    | {"POPGATE_CLIENT_CERT", "POPGATE_CLIENT_CERT_KEY"}
)
_OF_A_SERVICE = re.compile(r"POPGATE_(SERVICE_|PORT_\d)")


@dataclass(frozen=True, slots=True)
class SettingsOption:
    """One option.

    `kind` is its type for Typer: mostly a string, which `Settings` parses like a
    variable of the environment. `default` is empty if it is obvious. `heading` is its
    section in the help.
    """

    name: str
    names: tuple[str, ...]
    kind: Any
    metavar: str | None
    default: str
    help: str
    heading: str | None


def declared_options() -> Iterator[SettingsOption]:
    """Yield all of them, in the order of the fields."""
    texts = _texts()
    for name, field in Settings.model_fields.items():
        kind, shown = _kind(field), _shown(field)
        names = ("--" + name.replace("_", "-"), *shown.names)
        text = " ".join(texts.get(name, "").split())
        default = shown.default or _default(field.default, shown.metavar)
        metavar, heading = shown.metavar or None, _HEADINGS.get(name)
        yield SettingsOption(name, names, kind, metavar, default, text, heading)


def _texts() -> dict[str, str]:
    """Return the docstring of each field.

    Pydantic could read them too (`use_attribute_docstrings`), but it searches for the
    file of every module, which takes a tenth of a gateway's start.
    """
    for node in ast.parse(Path(settings.__file__).read_text()).body:
        if isinstance(node, ast.ClassDef) and node.name == Settings.__name__:
            return {
                field.target.id: text.value.value
                for field, text in pairwise(node.body)
                if isinstance(field, ast.AnnAssign)
                and isinstance(field.target, ast.Name)
                and isinstance(text, ast.Expr)
                and isinstance(text.value, ast.Constant)
                and isinstance(text.value.value, str)
            }
    return {}


@cache
def settings_options() -> list[Any]:
    """Return the options for Click, which receives None for an option that is not
    given.
    """

    def options() -> None: ...

    options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=option.kind,
                default=typer.Option(
                    None,
                    *option.names,
                    metavar=option.metavar,
                    help=_help(option),
                    rich_help_panel=option.heading,
                ),
            )
            for option in declared_options()
        ]
    )
    made = typer.Typer(add_completion=False, rich_markup_mode=None)
    made.command(add_help_option=False)(options)
    return list(get_command(made).params)


def _help(option: SettingsOption) -> str:
    default = f"[default: {option.default}]" if option.default else ""
    return f"{option.help} {default}".strip()


def _kind(field: FieldInfo) -> Any:
    if field.annotation is bool:
        return bool | None
    return list[str] | None if get_origin(field.annotation) is tuple else str | None


def _shown(field: FieldInfo) -> Shown:
    if get_origin(field.annotation) is Literal:
        return Shown("|".join(get_args(field.annotation)))
    shown = [item for item in field.metadata if isinstance(item, Shown)]
    return shown[-1] if shown else Shown("")


def _default(value: Any, metavar: str) -> str:
    if metavar == "SIZE" and value:
        return size_text(value).replace(" ", "")
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value in (None, "", ()) or value is False else str(value)


def with_paths(given: dict[str, Any], paths: list[str]) -> dict[str, Any]:
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


def settings_of(given: dict[str, Any]) -> Settings:
    """Return the settings of the given options and of the environment.

    Raises `CommandError`.
    """
    style = given.get("log_format") or os.environ.get("POPGATE_LOG_FORMAT", "text")
    if os.environ.get("POPGATE_PORT", "").startswith("tcp://"):
        del os.environ["POPGATE_PORT"]  # of a service called popgate, by Kubernetes
    print_warnings(_odd_variables(Settings.model_fields), style)
    try:
        found = Settings(**given)
    except ValidationError as e:
        text = "; ".join(_problem(each, given) for each in e.errors())
        raise CommandError(text, EXIT_USAGE) from None
    return _with_profile_models(found)


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


def _problem(error: ErrorDetails, given: dict[str, Any]) -> str:
    """Return what is wrong with the value of an option or a variable; its name is left
    out if the error concerns several.
    """
    is_sentence = error["type"] == "value_error"
    if not error["loc"]:
        return str(error["ctx"]["error"]) if is_sentence else error["msg"]
    name, *inner = map(str, error["loc"])
    is_option = name in given
    shown = f"--{name.replace('_', '-')}" if is_option else f"POPGATE_{name.upper()}"
    if is_sentence:
        return f"{shown}: {error['ctx']['error']}"
    # An entry of a list may be a secret.
    got = "" if inner else f", got {shown_value(error['input'])}"
    return f"{shown} must be {wanted_by(error)}{got}"
