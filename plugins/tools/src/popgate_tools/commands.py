"""The commands of this plugin, as `popgate --help` shows them."""

from __future__ import annotations

from app.cli.plugin_commands import PluginCommand

COMMANDS = (
    PluginCommand(
        "pack",
        "Make a model in Python from a file of another library.",
        "popgate_tools.pack:pack",
    ),
    PluginCommand(
        "infer",
        "Run a model of a running gateway on your data.",
        "popgate_tools.infer:infer",
    ),
    PluginCommand(
        "batch",
        "Run a model of a running gateway on every row of a file.",
        "popgate_tools.batch:batch",
    ),
    PluginCommand(
        "perf",
        "Measure a model of a running server: PopGate, Triton, KServe.",
        "popgate_tools.perf:perf",
    ),
    PluginCommand(
        "tune",
        "Find the settings for the most throughput within a latency.",
        "popgate_tools.tune:tune",
    ),
    PluginCommand(
        "models",
        "List the models of a running gateway.",
        "popgate_tools.running:models",
    ),
    PluginCommand(
        "load",
        "Load a model of a running gateway, or load it again.",
        "popgate_tools.running:load",
    ),
    PluginCommand(
        "unload",
        "Unload a model of a running gateway, after its last request.",
        "popgate_tools.running:unload",
    ),
    PluginCommand(
        "top",
        "Watch a running gateway: models, devices, the last requests.",
        "popgate_tools.running:top",
    ),
    PluginCommand(
        "drain",
        "Take a running gateway out of service; wait until it is idle.",
        "popgate_tools.running:drain",
    ),
)
