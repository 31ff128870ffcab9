"""Options of the requests that a command sends: parameters, and their sequence."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from app.cli.errors import EXIT_USAGE, CommandError
from app.cli.pairs import parse_pairs
from popgate_tools.asking.option_groups import OptionGroup

_PANEL = "Request"


@dataclass(frozen=True, slots=True)
class RequestOptions(OptionGroup):
    """Parts of a request other than its tensors."""

    version: Annotated[
        str,
        typer.Option(
            help="Version of the model. [default: the highest]", rich_help_panel=_PANEL
        ),
    ] = ""
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            "-p",
            metavar="NAME=VALUE",
            help="Parameter of the request: a JSON value or a string. May be repeated.",
            rich_help_panel=_PANEL,
        ),
    ] = None
    sequence_id: Annotated[
        str,
        typer.Option(
            metavar="ID",
            help="Sequence of the request: a number or a string.",
            rich_help_panel=_PANEL,
        ),
    ] = ""
    sequence_start: Annotated[
        bool,
        typer.Option(
            "--sequence-start",
            help="The request starts its sequence.",
            rich_help_panel=_PANEL,
        ),
    ] = False
    sequence_end: Annotated[
        bool,
        typer.Option(
            "--sequence-end",
            help="The request ends its sequence.",
            rich_help_panel=_PANEL,
        ),
    ] = False

    @property
    def is_sequence(self) -> bool:
        """Return whether any option for sequences is given."""
        return bool(self.sequence_id or self.sequence_start or self.sequence_end)

    def parameters(self) -> dict[str, Any]:
        """Return the parameters of a request, without those of its sequence."""
        return {
            name: _value(text)
            for name, text in parse_pairs(self.parameter, "--parameter").items()
        }

    def all_parameters(self) -> dict[str, Any]:
        """Return all parameters of a request."""
        if not self.is_sequence:
            return self.parameters()
        if not self.sequence_id:
            msg = "--sequence-start and --sequence-end require --sequence-id"
            raise CommandError(msg, EXIT_USAGE)
        return self.parameters() | sequence_parameters(
            self.identifier(), start=self.sequence_start, end=self.sequence_end
        )

    def identifier(self) -> int | str:
        """Return the sequence's id; 1 if there is none."""
        text = self.sequence_id or "1"
        return int(text) if text.isdecimal() and len(text) < 20 else text


def sequence_parameters(
    identifier: int | str, *, start: bool, end: bool
) -> dict[str, Any]:
    """Return the sequence parameters of a request."""
    return {"sequence_id": identifier, "sequence_start": start, "sequence_end": end}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
