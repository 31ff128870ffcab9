"""Commands that plugins add. A command is imported only when it is used.

An entry point of the group `popgate.commands` names a tuple of commands
(docs/how-to/write-a-plugin.md):

    COMMANDS = (PluginCommand("scales", "Print the scales.", "demo_commands:scales"),)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from app.cli.commands import Command
from app.cli.errors import CommandError
from app.plugins import COMMANDS, ignore_plugin, plugins


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """A command, as `popgate --help` shows it.

    `help` is the first line of its help. `target` names its function or `typer.Typer`,
    as ``module:name``.
    """

    name: str
    help: str
    target: str

    def load(self) -> Any:
        """Import the command and return it as Typer makes it."""
        module, _, name = self.target.partition(":")
        target = getattr(import_module(module), name)
        if isinstance(target, typer.Typer):
            group = typer.main.get_group(target)
            group.name = self.name
            return group
        single = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None
        )
        single.command(self.name, cls=Command)(target)
        return typer.main.get_command(single)


class LazyCommand(TyperCommand):
    """Stands for a plugin's command until the command is used."""

    def __init__(self, command: PluginCommand) -> None:
        super().__init__(command.name, help=command.help, rich_markup_mode=None)
        self.command = command

    def make_context(
        self, info_name: Any, args: list[str], parent: Any = None, **extra: Any
    ) -> Any:
        """Return the context of the command itself."""
        real = self.command.load()
        return real.make_context(info_name, args, parent=parent, **extra)


class Commands(TyperGroup):
    """The commands of the server itself, and those of plugins.

    Plugins are only searched for an unknown command, and for the help.
    """

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments begin with."""
        if args and args[0] not in self.commands:
            self._add_plugins()
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands."""
        self._add_plugins()
        return super().list_commands(ctx)

    def _add_plugins(self) -> None:
        for command in plugin_commands():
            self.commands.setdefault(command.name, LazyCommand(command))


@cache
def plugin_commands() -> Sequence[PluginCommand]:
    """Return the commands of all plugins, in the order of the plugins' names."""
    found: list[PluginCommand] = []
    for name, commands in plugins(COMMANDS).items():
        if isinstance(commands, tuple) and all(map(_is_command, commands)):
            found += commands
        else:
            ignore_plugin(COMMANDS, name, "a tuple of PluginCommand", commands)
    return found


def _is_command(found: object) -> bool:
    return isinstance(found, PluginCommand)


def plugin_command(name: str) -> PluginCommand:
    """Return the command with this name. Raises `CommandError` if no plugin has it."""
    for command in plugin_commands():
        if command.name == name:
            return command
    raise CommandError(f"no installed plugin has the command {name}")
