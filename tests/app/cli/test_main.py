"""The command itself: help, version, what it does not know.

Covers: app/about.py, app/cli/commands.py, app/cli/pairs.py,
    app/cli/plugin_commands.py.
"""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from app.about import VERSION
from app.cli import app
from app.cli.errors import CommandError
from app.cli.pairs import parse_shapes
from app.cli.plugin_commands import plugin_commands
from app.cli.settings_options import HEADINGS
from app.settings import Settings
from app.sizes import parse_size
from tests.app.cli.calls import Call
from tests.app.served import run_popgate

COMMANDS = ("serve",)


def test_help_lists_the_commands(popgate: Call) -> None:
    done = popgate("--help")
    assert done.code == 0
    for command in COMMANDS:
        assert re.search(rf"^  {command}  ", done.out, re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(popgate: Call, command: str) -> None:
    done = popgate(command, "--help")
    assert done.code == 0
    assert done.out.startswith(f"Usage: popgate {command}")
    assert popgate(command, "-h") == done


@pytest.mark.parametrize(
    ("typed", "complete"),
    [("popgate dr", "drain"), ("popgate serve --access-l", "--access-log")],
)
def test_shells_complete_commands_and_options(typed: str, complete: str) -> None:
    done = run_popgate(
        _POPGATE_COMPLETE="complete_bash",
        COMP_WORDS=typed,
        COMP_CWORD=str(typed.count(" ")),
    )
    assert done.stdout.split() == [complete]


def test_version(popgate: Call) -> None:
    assert popgate("--version") == (0, f"popgate {VERSION}\n", "")


def test_no_command_shows_the_help(popgate: Call) -> None:
    done = popgate()
    assert done.code == 2
    assert "Commands:" in done.out + done.err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["severe"], "No such command 'severe'"),
        (["serve", "--bogus", "x"], "No such option"),
        (["serve", "--port", "many"], "'many'"),
        (["serve", "--port"], "--port"),
    ],
)
def test_wrong_use_is_one_line(popgate: Call, arguments: list[str], said: str) -> None:
    done = popgate(*arguments)
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith("popgate: error: ")
    assert said in line


@pytest.mark.parametrize("size", ["-5", "3.5", "1e3", "1_0", "\u0663", "9" * 21])
def test_a_number_that_is_no_size_is_no_name(size: str) -> None:
    with pytest.raises(CommandError, match="is not a size; expected a whole number"):
        parse_shapes([f"image=n,{size}"])


def test_sizes_and_names() -> None:
    given = ["a=-1,3", "b= n , 2*n ", "c="]
    assert parse_shapes(given) == {"a": (-1, 3), "b": ("n", "2*n"), "c": ()}


def test_help_names_values_and_no_types() -> None:
    group: Any = get_command(app)
    commands = dict(group.commands)
    for added in plugin_commands():
        loaded = added.load()
        commands |= getattr(loaded, "commands", {added.name: loaded})
    assert len(commands) > 15
    for name, command in commands.items():
        shown = command.get_help(command.make_context(name, [], resilient_parsing=True))
        assert not re.search(r" <\w|range>|[{}]|made.up", shown), shown
        # The name of an option says nothing of its value.
        assert not re.search(r"--([a-z]+-[a-z-]+) (?i:\1)\b", shown), shown
        assert re.fullmatch(
            rf"Usage: {name} \[OPTIONS\][A-Z \[\]|=.]*", shown.split("\n")[0]
        )


def test_help_of_serve_has_headings(popgate: Call) -> None:
    shown = popgate("serve", "--help").out
    names = [name for all_ in HEADINGS.values() for name in all_.split()]
    assert set(names) == Settings.model_fields.keys()
    assert len(set(names)) == len(names)
    headings = re.findall(r"^(\w[^\n:]*):$", shown, re.MULTILINE)
    assert headings[0] == "Arguments"
    assert set(headings) == {"Arguments", "Options", *HEADINGS}
    assert headings[-1] == "Options"


def test_help_is_as_wide_as_the_terminal(
    popgate: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert "..." not in popgate("--help").out.split("Commands:")[1]
    monkeypatch.setenv("COLUMNS", "120")
    assert "..." not in popgate("--help").out.split("Commands:")[1]
    assert max(map(len, popgate("serve", "--help").out.splitlines())) > 85


def test_help_shows_commands_of_plugins_without_importing_them() -> None:
    """Their lines in the list are the first lines of their own help."""
    code = (
        "import sys; from app.cli import main; sys.argv = ['popgate', '--help']\n"
        "try: main()\n"
        "finally: print(sorted(name for name in sys.modules"
        " if name.startswith('popgate_') and not name.endswith('.commands')"
        " and name != 'popgate_compiled'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    modules = done.stdout.splitlines()[-1]
    assert modules == str(sorted({c.target.split(".")[0] for c in plugin_commands()}))
    assert len(list(plugin_commands())) > 10
    for command in plugin_commands():
        assert f"  {command.name} " in done.stdout


def test_help_needs_none_of_the_heavy_packages() -> None:
    code = (
        "import sys; from app.cli import app\n"
        "print(sorted(set(sys.modules) & {'fastapi', 'numpy', 'onnx', 'onnxruntime',"
        " 'pydantic', 'uvicorn', 'engine', 'popef_io', 'httpx', 'rich.table'}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


def test_help_of_serve_tells_the_real_defaults(
    popgate: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("POPGATE_TRUST_LOOPBACK")  # as conftest.py has it
    words = " ".join(popgate("serve", "--help").out.split())
    options = words.replace("- ", "-").split(" --")  # lines are cut behind a hyphen
    shown = {
        option.split()[0].rstrip(","): match.group(1)
        for option in options
        if (match := re.search(r"\[default: ([^]]*)\]", option))
    }
    defaults = Settings()
    for name in Settings.model_fields:
        value = getattr(defaults, name)
        text = shown.get(name.replace("_", "-"))
        if name == "max_body_size":
            assert shown["http-max-input-size"] == "256MiB"
            assert value == 256 << 20
        elif name == "cache_dir":
            assert text == "~/.cache/popgate"
        elif text is not None and re.fullmatch("[0-9.]+[KMG]iB", text):
            assert value == parse_size(text), name
        elif value is None or value is False or value in ("", ()):
            # In words, if at all: what it means that there is none.
            assert text is None or re.fullmatch("[A-Za-z ]+", text), name
        else:
            number = f"{value:g}" if isinstance(value, float) else str(value)
            assert text == number, name


def test_closed_standard_streams_are_opened() -> None:
    # Or the first socket would be what warnings are written to.
    code = (
        "import os, sys; [os.close(n) for n in range(3)]\n"
        "sys.argv[1:] = ['--version']\n"
        "from app.cli import main\n"
        "try:\n    main()\nfinally:\n"
        "    os._exit(0 if os.readlink('/proc/self/fd/2') == os.devnull else 1)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
