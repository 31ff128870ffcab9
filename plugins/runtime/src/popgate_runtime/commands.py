"""The commands of this plugin, as `popgate --help` shows them."""

from __future__ import annotations

from app.cli.plugin_commands import PluginCommand

COMMANDS = (
    PluginCommand(
        "run", "Run a model here, without a gateway.", "popgate_runtime.run:run"
    ),
    PluginCommand(
        "bench",
        "Measure sessions: a model run by callbacks, or through queues.",
        "popgate_runtime.bench:bench",
    ),
)
