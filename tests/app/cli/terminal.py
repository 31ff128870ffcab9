"""A terminal for commands: what a person sees of them when they have ended."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import struct
import subprocess
import termios
from fcntl import ioctl
from pathlib import Path
from typing import NamedTuple

from tests.app.served import POPGATE
from tests.support import WAIT

COLUMNS, ROWS = 100, 50
_PIECE = re.compile(r"\x1b\[(?P<numbers>[?0-9;]*)(?P<order>[A-Za-z])|(?P<char>.)", re.S)


class Seen(NamedTuple):
    """The exit code, what the screen shows, and all that was ever written to it."""

    code: int
    lines: list[str]
    written: str


def in_terminal(*arguments: str | Path, cwd: Path | None = None) -> Seen:
    """Run `popgate` in a terminal of its own, to its end."""
    ours, theirs = pty.openpty()
    ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
    # No other command's devices are met.
    environment |= {"POPGATE_POOL": f"terminal-{os.getpid()}", "TERM": "xterm-256color"}
    environment["PYTHONPATH"] = str(Path(__file__).parents[3])
    process = subprocess.Popen(
        [*POPGATE, *map(str, arguments)],
        cwd=cwd,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    data = b""
    with contextlib.suppress(OSError):  # EIO: nobody has the other end any more
        while part := os.read(ours, 1 << 16):
            data += part
    os.close(ours)
    text = data.decode()
    return Seen(process.wait(WAIT), shown(text), text)


def shown(text: str) -> list[str]:
    """The lines that a terminal shows after `text`, without empty ones at the end."""
    lines, row, column = [""], 0, 0
    for piece in _PIECE.finditer(text):
        char, order = piece["char"], piece["order"]
        number = int(piece["numbers"]) if (piece["numbers"] or "").isdigit() else None
        if char == "\r":
            column = 0
        elif char == "\n":
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif char is not None:
            line = lines[row].ljust(column)
            lines[row] = line[:column] + char + line[column + 1 :]
            column += 1
        elif order == "A":
            row = max(0, row - (number or 1))
        elif order == "K":
            lines[row] = "" if number == 2 else lines[row][:column]
        else:  # colours, and whether the cursor is seen
            assert order in "mhl", piece[0]
    while lines and not lines[-1].strip():
        lines.pop()
    return [line.rstrip() for line in lines]
