"""Help of the commands: options under headings, names without types."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

#: The type that Typer shows for a value without `metavar`.
_KIND = re.compile(r" <([a-z]+)[^>]*>")
#: Typer's braces around an argument that is required.
_REQUIRED = re.compile(r"\{(.+?)\}(?=$|\.\.\.)")


class Command(TyperCommand):
    """Command whose help shows each option under a heading, its `rich_help_panel`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return ``FILE...`` for Typer's ``{FILE}...``, and ``NAME`` for ``{name}``."""
        pieces = super().collect_usage_pieces(ctx)
        return [_REQUIRED.sub(lambda m: _upper(m[1]), piece) for piece in pieces]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            is_argument = param.param_type_name == "argument"
            heading = getattr(param, "rich_help_panel", None) or (
                "Arguments" if is_argument else "Options"
            )
            if record := param.get_help_record(ctx):
                name, text = record
                if is_argument:
                    name = _upper(_KIND.sub("", name))
                elif kind := _KIND.search(name):
                    is_count = kind[1] == "int"
                    value = "N" if is_count else param.name.upper().replace("_", "-")
                    name = name.replace(kind[0], f" {value}")
                sections.setdefault(heading, []).append((name, text))
        # The options that every command has come last.
        for heading in sorted(sections, key="Options".__eq__):
            if records := sections[heading]:
                with formatter.section(heading):
                    formatter.write_dl(records)


def _upper(name: str) -> str:
    return name.upper() if name.islower() else name
