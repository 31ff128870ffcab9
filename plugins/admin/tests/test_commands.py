"""Each command's line in `popgate --help` is the first line of its own help."""

from __future__ import annotations

import pytest

from app.cli.plugin_commands import PluginCommand, plugin_commands
from popgate_admin.commands import COMMANDS


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_lines_of_commands(command: PluginCommand) -> None:
    assert command in list(plugin_commands())
    assert command.load().help.partition("\n")[0] == command.help
