"""Reads a page as a newcomer does: every block in order, beginning in an empty folder.
It gets a copy of `examples` when a block names them.

The language of a block says what is done with it:

- `sh`: the commands are run. `popgate serve` goes to the background until it is ready;
  a page's next server takes the place of the one before.
- `python`: run, with the names that the page's blocks before it have made.
- `js`: run as a module, where there is Node.js.
- anything whose first line is a comment with a path, as in `# models/m/config.toml`:
  put into that file. `toml` needs such a line; where nothing is served after it,
  `models` must pass `popgate validate` at the end of the page.
- `console`: what the block before it must have printed; `...` is anything. Behind
  `popgate serve` that is what the commands after it print, or the server if it is
  the last.
- `json`: the same, as a value: numbers to four digits, `"..."` is anything.
- `text`, `mermaid`: drawings.

Pages say localhost:8000. Where the server really is, is put in its place here, and
taken out of what is printed.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

from app.cli import main as popgate
from tests.app.served import ROOT, ServedGateway
from tests.leaks import keeping
from tests.support import WAIT
from tests.warm import forked

#: What cannot be run here, by how its commands begin, and why.
NOT_RUN = {
    "make ": "installs, or runs the tests, this one among them",
    ".venv/bin/python -m pytest": "the same",
    ". .venv/bin/activate": "the tests' own environment is active",
    "pip install": "the tests run with what is installed",
    "popgate serve digits=s3:": "there is no bucket",
    "popgate validate digits=s3:": "the same",
    "popgate drain unix:/run/": "there is no service of systemd",
    "docker ": "there is no container engine; tests/deploy reads its files",
    "POPGATE_COMPILE=1 pip": "takes minutes; tests/native compiles",
}
#: What stands for a command that does the same, and more than is wanted here.
STANDS_FOR = {"make serve": "popgate serve examples/digits/digits.onnx"}
#: What a page leaves at its defaults, which take a minute.
QUICKER = {
    "popgate perf": "--seconds 0.1 --warm-up 0 --within 1000",
    "popgate tune": "--p99 30s --seconds 0.05 --time 0.1",
}
LANGUAGES = {"sh", "python", "js", "toml", "console", "json", "text", "mermaid"}
_PLACE = re.compile(r"(?:#|//) ([\w.-]+(?:/[\w.-]+)+)\n")
#: A command of ours that needs no shell.
_PLAIN = re.compile(r"popgate (?!serve|openapi)[^|<>;&$`*?\\\n]+\n?")
#: A script in Python that needs no shell.
_SCRIPT = re.compile(r"python [\w/]+\.py[^|<>;&$`*?\\\n]*\n?")
#: A command that changes what those behind it find.
_STATE = re.compile(r"cd |export |for |if |\w+=\S*\n?$")
_ADDRESS = re.compile(r"(?:localhost|127\.0\.0\.1):8000")


@dataclass(frozen=True)
class Block:
    """A block of a page, below `headings` of the second and the third level.

    `line` is that of its fence, from 1.
    """

    page: str
    line: int
    language: str
    text: str
    headings: tuple[str, ...] = ()

    @property
    def section(self) -> str:
        return next(iter(self.headings), "")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: str) -> list[Block]:
    """All blocks of a page. Raises AssertionError for one that has no language."""
    blocks = []
    headings: tuple[str, ...] = ()
    tokens = MarkdownIt().parse((ROOT / page).read_text(encoding="utf-8"))
    for at, token in enumerate(tokens):
        if token.type == "heading_open" and token.tag in ("h2", "h3"):
            above = headings[:1] if token.tag == "h3" else ()
            headings = (*above, tokens[at + 1].content)
        elif token.type in ("fence", "code_block"):
            assert token.map is not None
            block = Block(
                page, token.map[0] + 1, token.info.strip(), token.content, headings
            )
            assert block.language in LANGUAGES, f"{block} is {block.language!r}"
            blocks.append(block)
    return blocks


def commands(text: str) -> Iterator[str]:
    """The commands of a script, each with all of its lines."""
    command = ""
    for line in text.splitlines(keepends=True):
        command += line
        with contextlib.suppress(ValueError):  # a quotation goes on in the next line
            shlex.split(command, comments=True)
            if not command.endswith("\\\n"):
                yield command
                command = ""
    assert not command, f"no end: {command}"


class Servers:
    """What `popgate serve` starts. Those that serve nothing of the page's own folder
    are shared by all pages. A context manager: leaving it ends what it has started."""

    def __init__(self, **shared: ServedGateway) -> None:
        self._shared = shared
        self._stack = ExitStack()

    def start(self, command: str, folder: Path, stack: ExitStack) -> ServedGateway:
        arguments = shlex.split(command, comments=True)[2:]
        if served := self._shared.get(" ".join(arguments)):
            return served
        own = [a for a in arguments if (folder / a).exists() and "examples" not in a]
        # As a reader has it: what a page needs, the page says.
        variables = {"POPGATE_TRUST_LOOPBACK": ""}
        if own:
            served = ServedGateway(None, *arguments, cwd=folder, **variables)
            return stack.enter_context(served).wait_ready()
        with keeping():
            served = ServedGateway(None, *arguments, cwd=folder, **variables)
            self._shared[" ".join(arguments)] = self._stack.enter_context(served)
            return served.wait_ready()

    def __enter__(self) -> Servers:
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()


@dataclass
class Reader:
    """Follows one page in `folder`. A context manager; leaving it ends its server."""

    folder: Path
    servers: Servers
    output: str = ""
    served: ServedGateway | None = None
    _names: dict[str, Any] = field(default_factory=lambda: {"__name__": "page"})
    _stack: ExitStack = field(default_factory=ExitStack)
    _configured: bool = False

    def __enter__(self) -> Reader:
        self._stack.enter_context(contextlib.chdir(self.folder))
        return self

    def __exit__(self, *exception: object) -> None:
        self._stack.close()

    def follow(self, block: Block) -> None:
        """Does what a block says. Raises AssertionError where that does not work."""
        self._bring_examples(block.text)
        if place := _PLACE.match(block.text):
            self._write(self.folder / place[1], block)
            return
        match block.language:
            case "sh":
                self._run(block)
            case "python":
                self._execute(block)
            case "js" if node := shutil.which("node"):
                script = self.address(block.text)
                self.output = self._call([node, "--input-type=module", "-"], script)
            case "console":
                self._compare(block)
            case "json":
                want, got = json.loads(block.text), json.loads(self.output)
                assert _agree(want, got), f"{block}: the answer is\n{self.output}"
            case "toml":
                raise AssertionError(f"{block}: which file is it?")

    def finish(self) -> None:
        """What the page has configured and not served must be right."""
        if self._configured:
            self._popgate("popgate validate models --allow-python")

    def _bring_examples(self, text: str) -> None:
        """Copy the examples if `text` names them, and they are not there yet."""
        if "examples" in text and not (self.folder / "examples").exists():
            shutil.copytree(ROOT / "examples", self.folder / "examples")

    def _write(self, path: Path, block: Block) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text, encoding="utf-8")
        self._configured |= path.name == "config.toml"

    def _run(self, block: Block) -> None:
        found: list[str] = []
        self.output = ""
        for command in commands(block.text):
            command = STANDS_FOR.get(command.split("#")[0].strip(), command)
            self._bring_examples(command)
            if command.startswith(tuple(NOT_RUN)):
                continue
            if command.startswith("popgate serve"):
                self._shell(found)
                found = []
                self.served = self.servers.start(command, self.folder, self._stack)
                self.output = self.served.output
                self._configured = False
            else:
                for begun, options in QUICKER.items():
                    if command.startswith(begun):
                        command = f"{command.rstrip()} {options}\n"
                found.append(command)
        self._shell(found)

    def _shell(self, found: list[str]) -> None:
        found = [command for command in found if command.strip()]
        if any(_STATE.match(command) for command in found):
            found = ["".join(found)]
        if found:
            self.output = "".join(map(self._command, found))

    def _command(self, command: str) -> str:
        """What a command prints, without a shell and a new process where it can be."""
        if _PLAIN.fullmatch(command):
            return self._popgate(command)
        if _SCRIPT.fullmatch(command):
            _, path, *arguments = shlex.split(self.address(command), comments=True)
            return self._call(forked(path, *arguments))
        command = self.address(command)
        return self._call(["bash", "-euo", "pipefail", "-c", command])

    def _popgate(self, command: str) -> str:
        """What a command of ours prints, in this process: a new one would take longer
        to start than most of them take."""
        before = dict(os.environ), sys.argv
        os.environ |= self._variables()
        sys.argv = shlex.split(self.address(command), comments=True)
        said, told = io.StringIO(), io.StringIO()
        code: object = 0
        try:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
                popgate()
        except SystemExit as e:
            code = e.code
        finally:
            os.environ.clear()
            os.environ |= before[0]
            sys.argv = before[1]
        assert not code, f"code {code}: {command}{told.getvalue()}"
        return said.getvalue()

    def _variables(self) -> dict[str, str]:
        found = {"COLUMNS": "80"}
        return found | ({"POPGATE_URL": self.served.url} if self.served else {})

    def _call(self, command: list[str], stdin: str = "") -> str:
        """What it prints. It may use this page's server and pool of devices."""
        binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": binaries, **self._variables()}
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=WAIT,
            check=False,
        )
        said = f"{shlex.join(command)}\n{done.stdout}{done.stderr}"
        assert done.returncode == 0, f"code {done.returncode}: {said}"
        return done.stdout

    def _execute(self, block: Block) -> None:
        # Lines of a traceback are those of the page.
        text = "\n" * block.line + self.address(block.text)
        with (
            contextlib.redirect_stdout(io.StringIO()) as printed,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("default", FutureWarning)  # torch's of its own parts
            exec(compile(text, block.page, "exec"), self._names)
        self.output = printed.getvalue()

    def address(self, text: str) -> str:
        """Return `text` with the server's address in the place of localhost:8000."""
        if not _ADDRESS.search(text):
            return text
        assert self.served is not None, "nothing is served yet"
        return _ADDRESS.sub(self.served.url.removeprefix("http://"), text)

    def _compare(self, block: Block) -> None:
        got = self.output
        if self.served is not None:
            got = got.replace(self.served.url, "http://127.0.0.1:8000")
        options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
        same = doctest.OutputChecker().check_output(block.text, got, options)
        assert same, f"{block}: what was printed is\n{got}"


def _agree(want: Any, got: Any) -> bool:
    if want == "...":
        return True
    if isinstance(want, dict) and isinstance(got, dict):
        return want.keys() == got.keys() and all(_agree(want[k], got[k]) for k in want)
    if isinstance(want, list) and isinstance(got, list):
        return len(want) == len(got) and all(map(_agree, want, got))
    if isinstance(want, float) and isinstance(got, (float, int)):
        return math.isclose(want, got, rel_tol=1e-3, abs_tol=1e-4)
    return type(want) is type(got) and bool(want == got)
