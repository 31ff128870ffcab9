"""The commands of this plugin, as `popgate --help` shows them."""

from __future__ import annotations

from app.cli.plugin_commands import PluginCommand

COMMANDS = (
    PluginCommand(
        "compile",
        "Compile ONNX models into PopEF files that the gateway serves.",
        "popgate_onnx.compile_command:compile_models",
    ),
)
