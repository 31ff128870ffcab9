"""Options that several commands share, declared once as fields of a dataclass.

A command takes a parameter of that class. `grouped` turns the parameter into one option
for each field.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, get_type_hints


class OptionGroup:
    """The base of such classes: frozen dataclasses whose fields are `Annotated` with
    `typer.Option` and have defaults."""


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """Give `command` the options of each of its parameters that is a group.

    The groups' options come after those of the command itself.
    """
    signature = inspect.signature(command, eval_str=True)
    groups = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if _is_group(parameter.annotation)
    }
    parameters = [p for name, p in signature.parameters.items() if name not in groups]
    for group in groups.values():
        hints = get_type_hints(group, include_extras=True)
        parameters += [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=field.default,
                annotation=hints[field.name],
            )
            for field in fields(group)
        ]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        made = {
            name: group(
                **{field.name: given.pop(field.name) for field in fields(group)}
            )
            for name, group in groups.items()
        }
        command(**given, **made)

    run.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters
    )
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def _is_group(annotation: Any) -> bool:
    return (
        isinstance(annotation, type)
        and issubclass(annotation, OptionGroup)
        and is_dataclass(annotation)
    )
