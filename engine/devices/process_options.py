"""`ProcessOptions`: how the process of a device that runs code is started."""

from __future__ import annotations

import sys
from typing import Protocol


def device_process() -> list[str]:
    """Return the command that starts a device process with this interpreter, without
    its arguments.
    """
    # Collecting garbage during the imports would take a tenth of the start-up time.
    start = (
        "import gc; gc.disable(); from engine.worker.device_process import run; run()"
    )
    return [sys.executable, "-P", "-c", start]


class ProcessOptions(Protocol):
    """Options for starting the process of a Python model.

    `label` names the model in the log. `folder` is the working folder (empty: ours).
    The process may use `start_timeout` seconds until its first answer.
    """

    @property
    def label(self) -> str: ...

    @property
    def folder(self) -> str: ...

    @property
    def start_timeout(self) -> float: ...

    def command(self) -> list[str]:
        """Return the command that starts `engine.worker.device_process`, without the
        arguments that every device process has.
        """

    def variables(self, threads: int) -> dict[str, str]:
        """Return the environment of the process. It limits libraries to this many
        threads.
        """
