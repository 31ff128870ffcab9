"""The process of a Python model from its owner's view: its interpreter, its
environment, and the destination of its output.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from engine.devices import other_interpreter
from engine.logs import LINE_END
from engine.owner import environment

logger = logging.getLogger("engine.python")

#: The longest line that is logged, in bytes. The rest is logged as the next line.
MAX_LINE = 1 << 15
#: The number of last lines that are kept. They explain why a process could not start.
KEPT_LINES = 20
#: The variables that tell libraries how many threads they may have.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
#: Variables of the gateway that a model must not see.
_SECRETS = ("POPGATE_API_KEY", "POPGATE_RESTRICTED_API")
#: Variables of this interpreter's environment, which another interpreter must not
#: inherit.
_INTERPRETER = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ")


def device_process() -> list[str]:
    """Return the command that starts a device process with this interpreter, without
    its arguments.
    """
    # Collecting garbage during the imports would take a tenth of the start-up time.
    start = (
        "import gc; gc.disable(); from engine.worker.device_process import run; run()"
    )
    return [sys.executable, "-P", "-c", start]


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """Options for starting the process of a Python model.

    `label` names the model in the log. `interpreter` is a path (empty: this process's).
    `environment` overrides our variables. `folder` is the working folder (empty: ours).
    The process may use `memory` bytes (0: no limit), and `start_timeout` seconds until
    its first answer.
    """

    label: str = "model"
    interpreter: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str = ""
    memory: int = 0
    start_timeout: float = 60.0

    def command(self) -> list[str]:
        """Return the command that starts `engine.worker.device_process`, without its
        arguments.
        """
        memory = ["--python", "--memory", str(self.memory)]
        if self.interpreter:
            return [self.interpreter, "-P", other_interpreter.__file__, *memory]
        return [*device_process(), *memory]

    def variables(self, threads: int) -> dict[str, str]:
        """Return the environment of the process. It limits libraries to this many
        threads.
        """
        inherited = environment()
        for name in (*_SECRETS, *(_INTERPRETER if self.interpreter else ())):
            inherited.pop(name, None)
        counts = dict.fromkeys(_THREADS, str(threads))
        unbuffered = {"PYTHONUNBUFFERED": "1"}
        return {**counts, **unbuffered, **inherited, **self.environment}


class Output:
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
        return f"<Output of {self._label}>"
