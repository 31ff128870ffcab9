"""The options of `popgate serve`, made of the fields of `Settings`."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.main import get_command

from app import settings
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
