"""Failures on demand, so that tests can check the consequences.

A device process obeys only if its environment had `POPGATE_INJECT_FAILURES=1` when it
started. The first failure replaces a run of a main program.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable
from enum import Enum

from engine.errors import EngineBug, InvalidInput
from engine.faults import DeviceFault, DeviceFaulted, FaultKind, RecoveryAction
from engine.programs.executor import Executor
from engine.programs.session import RunOptions
from engine.programs.streams import Streams
from engine.worker.replica import Replica

#: The environment variable that enables injected failures in a device process if it
#: is "1".
VARIABLE = "POPGATE_INJECT_FAILURES"


class Failure(Enum):
    """A failure that tests can order: a fault of each kind, an unexpected error, a run
    that never ends, or the death of the process.
    """

    APPLICATION = "application"
    IPU_RESET = "ipu_reset"
    LINK_RESET = "link_reset"
    PARTITION_RESET = "partition_reset"
    FULL_RESET = "full_reset"
    UNRECOVERABLE = "unrecoverable"
    UNKNOWN = "unknown"
    HANG = "hang"
    DEATH = "death"

    def strike(self) -> None:
        """Fail as ordered. Never returns. For the thread that runs programs."""
        if self is Failure.DEATH:
            os.kill(os.getpid(), signal.SIGKILL)
        while self in (Failure.DEATH, Failure.HANG):
            time.sleep(3600)
        raise DeviceFaulted(self._fault())

    def _fault(self) -> DeviceFault:
        text = "injected by a test"
        if self.name in FaultKind.__members__:
            return DeviceFault(FaultKind[self.name], text)
        return DeviceFault(FaultKind.RECOVERABLE, text, RecoveryAction[self.name])


def obey(replicas: Iterable[Replica], failure: str, after: int) -> None:
    """Carry out the order. For the thread that runs programs."""
    if os.environ.get(VARIABLE) != "1":
        raise InvalidInput(
            f"failure injection is off: start the device process with {VARIABLE}=1"
        )
    for replica in replicas:
        executor = FailingExecutor(replica.executor, Failure(failure), after)
        replica.replace_executor(executor)


class FailingExecutor(Executor):
    """An executor that runs a number of times and then fails."""

    def __init__(self, executor: Executor, failure: Failure, after: int) -> None:
        self._inner = executor
        self.new_options = executor.new_options
        self._failure = failure
        self._left = after

    def run(
        self, programs: Iterable[int], streams: Streams, run_options: RunOptions = None
    ) -> None:
        if self._left <= 0:
            self._failure.strike()
        self._left -= 1
        self._inner.run(programs, streams, run_options)

    def clone(self) -> Executor:
        raise EngineBug("an executor that is to fail was cloned")

    def close(self) -> None:
        self._inner.close()

    def __repr__(self) -> str:
        return f"<FailingExecutor {self._failure.value} after {self._left} runs>"
