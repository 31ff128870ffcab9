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

#: Bytes of a line that are logged at most; the rest of it comes as the next one.
MAX_LINE = 1 << 15
#: The last lines are kept: they say why a process could not start.
KEPT_LINES = 20
#: What libraries read to learn how many threads they may have.
_THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
#: Of the gateway's environment: no business of a model's.
_SECRETS = ("POPGATE_API_KEY", "POPGATE_RESTRICTED_API")
#: Of an interpreter's surroundings: another one has its own.
_INTERPRETER = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
_LEVEL = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL) ")


def device_process() -> list[str]:
    """Return the command that starts a device process of this interpreter, without its
    arguments.
    """
    # Looking for garbage while modules are imported would take a tenth of the start.
    start = (
        "import gc; gc.disable(); from engine.worker.device_process import run; run()"
    )
    return [sys.executable, "-P", "-c", start]


@dataclass(frozen=True, slots=True)
class PythonOptions:
    """Options for starting the process of a Python model.

    `label` names the model in the log. `interpreter` is a path (empty: this process's),
    `environment` overrides ours, `folder` is its working folder (empty: ours). It may
    take `memory` bytes (0: any number), and `start_timeout` seconds until its first
    answer.
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
        """Return the environment of the process, which limits libraries to this many
        threads.
        """
        inherited = environment()
        for name in (*_SECRETS, *(_INTERPRETER if self.interpreter else ())):
            inherited.pop(name, None)
        counts = dict.fromkeys(_THREADS, str(threads))
        unbuffered = {"PYTHONUNBUFFERED": "1"}
        return {**counts, **unbuffered, **inherited, **self.environment}


class Output:
    """Output of a process on its way to the log. A thread reads it to its end."""

    def __init__(self, label: str, fd: int) -> None:
        self._label = label
        self._fd = fd
        self._last: deque[str] = deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(
            target=self._read, name=f"output of {label}", daemon=True
        )
        self._thread.start()

    def last_words(self, timeout: float) -> str:
        """Return the last line of a process that has ended, once all is read; empty if
        it printed nothing.
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
