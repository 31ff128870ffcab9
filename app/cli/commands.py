"""How the commands show their help: options under headings, names without types."""

from __future__ import annotations

import re
from typing import Any

from typer.core import TyperCommand

#: Typer says of what kind a list of arguments is; that is no help.
_KIND = re.compile(r" <list\[\w+\]>")


class Command(TyperCommand):
    """Shows each option under the heading that is its `rich_help_panel`."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": []}
        for param in self.get_params(ctx):
            heading = getattr(param, "rich_help_panel", None) or (
                "Arguments" if param.param_type_name == "argument" else "Options"
            )
            if record := param.get_help_record(ctx):
                name, text = record
                shown = (_KIND.sub("", name), text)
                sections.setdefault(heading, []).append(shown)
        # What everybody has, last.
        for heading in sorted(sections, key="Options".__eq__):
            if records := sections[heading]:
                with formatter.section(heading):
                    formatter.write_dl(records)
