"""The output of the process of a Python model, which goes to the owner's log."""

from __future__ import annotations

import logging
import os
import re
import threading
from collections import deque

from engine.logs import LINE_END

logger = logging.getLogger("engine.python")

#: The longest line that is logged, in bytes. The rest is logged as the next line.
MAX_LINE = 1 << 15
#: The number of last lines that are kept. They explain why a process could not start.
KEPT_LINES = 20
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ")


class ProcessOutput:
    """The output of a process, which goes to the log. A thread reads it to its end."""

    def __init__(self, label: str, fd: int) -> None:
        self._label = label
        self._fd = fd
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(
            target=self._read, name=f"output of {label}", daemon=True
        )
        self._thread.start()

    def last_words(self, timeout: float) -> str:
        """Return the last line of a process that has ended, after reading all its
        output. Empty if the process printed nothing.
        """
        self._thread.join(timeout)
        return self._last[-1].splitlines()[-1] if self._last else ""

    def _read(self) -> None:
        rest = b""
        with os.fdopen(self._fd, "rb", buffering=0) as stream:
            while part := stream.read(1 << 16):
                *lines, rest = (rest + part).split(b"\n")
                for line in lines:
                    self._pass_on(line)
                while len(rest) > MAX_LINE:
                    self._pass_on(rest[:MAX_LINE])
                    rest = rest[MAX_LINE:]
        if rest:
            self._pass_on(rest)

    def _pass_on(self, line: bytes) -> None:
        text = line[:MAX_LINE].decode(errors="backslashreplace").rstrip("\r")
        if not text.strip():
            return
        self._last.append(text)
        match = _LEVEL.match(text)
        level = logging.getLevelNamesMapping()[match[1]] if match else logging.INFO
        if match:
            text = text[match.end() :].replace(LINE_END, "\n")
            self._last[-1] = text
        logger.log(level, "model %s: %s", self._label, text)

    def __repr__(self) -> str:
        return f"<ProcessOutput of {self._label}>"
