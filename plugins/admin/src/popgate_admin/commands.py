"""The commands of this plugin, as `popgate --help` shows them."""

from __future__ import annotations

from app.cli.plugin_commands import PluginCommand

COMMANDS = (
    PluginCommand(
        "validate",
        "Show the models that a folder would serve, and its problems.",
        "popgate_admin.validate:validate",
    ),
    PluginCommand(
        "dump",
        "Show what is in a PopEF file: blobs, anchors, programs, options.",
        "popgate_admin.dump:dump",
    ),
    PluginCommand(
        "devices",
        "Show the devices of this machine, and their processes.",
        "popgate_admin.devices:devices",
    ),
    PluginCommand(
        "cache",
        "List the files that the cache keeps, or remove them.",
        "popgate_admin.cache:cache",
    ),
    PluginCommand(
        "key", "Make a key for a client of the server.", "popgate_admin.key:key"
    ),
)
