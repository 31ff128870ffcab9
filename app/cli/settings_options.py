"""The options of `popgate serve`, made of the fields of `Settings`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo
from typer.main import get_command

from app.settings import Settings, Shown
from app.sizes import size_text


@dataclass(frozen=True, slots=True)
class SettingsOption:
    """One option: `kind` is what typer is to make of what is given, mostly text, which
    `Settings` reads as it reads the environment. `default` is empty where it goes
    without saying."""

    name: str
    names: tuple[str, ...]
    kind: Any
    metavar: str | None
    default: str
    help: str


def declared_options() -> Iterator[SettingsOption]:
    """All of them, in the order of the fields."""
    for name, field in Settings.model_fields.items():
        kind, shown = _kind(field), _shown(field)
        names = ("--" + name.replace("_", "-"), *shown.names)
        text = " ".join((field.description or "").split())
        default = shown.default or _default(field.default, shown.metavar)
        yield SettingsOption(name, names, kind, shown.metavar or None, default, text)


@cache
def settings_options() -> list[Any]:
    """The same for Click, which gets None for an option that is not given."""

    def options() -> None: ...

    options.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                option.name,
                inspect.Parameter.KEYWORD_ONLY,
                annotation=option.kind,
                default=typer.Option(
                    None, *option.names, metavar=option.metavar, help=_help(option)
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
