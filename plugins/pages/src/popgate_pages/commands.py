"""The command of this plugin, as `popgate --help` shows it."""

from __future__ import annotations

from app.cli.plugin_commands import PluginCommand

COMMANDS = (
    PluginCommand(
        "openapi",
        "Print the OpenAPI document of the HTTP API.",
        "popgate_pages.openapi:openapi",
    ),
)
