"""The commands' lines in `popgate --help`, and what they refuse."""

from __future__ import annotations

import pytest

from app.cli.plugin_commands import PluginCommand, plugin_commands
from popgate_runtime.commands import COMMANDS
from tests.app.cli.calls import Call


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: str(command.name))
def test_lines_of_commands(command: PluginCommand) -> None:
    assert command in list(plugin_commands())
    assert command.load().help.partition("\n")[0] == command.help


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "--bogus", "x"], "No such option"),
        (["run", "-n", "many", "x"], "Invalid value for '--iterations' / '-n'"),
        (["run", "-n", "many", "x"], "'many'"),
        (["run", "-n", "0", "x"], "got '0'"),
        (["bench", "callbacks", "--threads"], "--threads"),
    ],
)
def test_wrong_use_is_one_line(popgate: Call, arguments: list[str], said: str) -> None:
    done = popgate(*arguments)
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith("popgate: error: ")
    assert said in line
