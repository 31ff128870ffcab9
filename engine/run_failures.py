"""The failures of a run, and their consequences for the request, the model and the
device.

`RUN_FAILURES` decides what the engine does. The owner of a device looks up a failure
before counting it (engine/devices/device.py). The device process looks it up before
running a failed batch again (engine/worker/replica.py). The table in
docs/explanation/failures.md is generated from it.

A model goes out of service only after `MOST` counted failures in a row. One successful
run in between, for any client, restarts the count.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from engine.errors import ExecutionFailed, Invalid, OutOfMemory

#: The counted failures in a row after which a model goes out of service.
MOST = 5
#: The limit for failures in which the model crashes the process while it is loaded
#: again.
MOST_LOADS = 3
#: Seconds before a model is loaded again after its second failure in a row. Each
#: further failure doubles the pause. After the first failure the model is loaded with
#: its device.
FIRST_PAUSE = 1.0
#: Seconds after which a failure no longer counts.
WINDOW = 600.0
#: Signals that a process causes itself. SIGKILL comes from outside: from an operator,
#: or from the kernel if memory is short.
CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"})


class RunFailure(Enum):
    """The ways in which a run can fail."""

    INVALID = "the model refuses the values of a request (`popgate.InvalidInput`)"
    EXCEPTION = "an operator fails, or a Python model raises an exception"
    NO_MEMORY = "the run needs more memory than it may have (`memory_limit`)"
    WRONG_ROWS = "an output has another number of rows than the batch"
    TOO_LARGE = "an output is larger than `channel_memory` allows"
    NOT_TAKEN = "the client reads no results for 10 s, so its ring is full"
    TOO_LONG = "the run exceeds `--run-timeout` and ends when it is cancelled"
    STUCK = "the run exceeds `--run-timeout` and has not ended 5 s later"
    UNWANTED = "a Python model continues for 5 s after its clients have left"
    CRASH = "the process crashes (SIGSEGV, SIGBUS, SIGABRT, SIGILL, SIGFPE)"
    EXIT = "a Python model ends its process (`os._exit`)"
    KILLED = "the process is killed (SIGKILL), by an operator or by the kernel"
    HANG = "the process answers no ping for `--device-timeout` seconds"


class Price(NamedTuple):
    """The consequences of a failure for request, model and device.

    `request` is the code of the answer to the requests of the run. `halves`: the batch
    runs again in halves, so that only requests fail that also fail alone. `device`: the
    device process is started again. `counts`: the failure counts against the model.
    """

    request: str
    halves: bool
    device: bool
    counts: bool


RUN_FAILURES: dict[RunFailure, Price] = {
    RunFailure.INVALID: Price("invalid_input", True, False, False),
    RunFailure.EXCEPTION: Price("execution_failed", True, False, False),
    RunFailure.NO_MEMORY: Price("out_of_memory", True, False, False),
    RunFailure.WRONG_ROWS: Price("execution_failed", True, False, False),
    RunFailure.TOO_LARGE: Price("execution_failed", True, False, False),
    RunFailure.NOT_TAKEN: Price("execution_failed", False, False, False),
    RunFailure.TOO_LONG: Price("execution_failed", False, False, True),
    RunFailure.STUCK: Price("execution_failed", False, True, True),
    RunFailure.UNWANTED: Price("", False, True, False),
    RunFailure.CRASH: Price("device_lost", False, True, True),
    RunFailure.EXIT: Price("device_lost", False, True, True),
    RunFailure.KILLED: Price("device_lost", False, True, False),
    RunFailure.HANG: Price("device_lost", False, True, False),
}


class ResultsNotTaken(ExecutionFailed):
    """A client has not taken the results of earlier runs, so its ring is full."""


def too_long(limit: float) -> str:
    """Return why the requests of a run fail that exceeds `limit` seconds."""
    return f"a run exceeded the limit of {limit:g} s (--run-timeout)"


def failure_of_error(error: Exception) -> RunFailure:
    """Return the failure of a run that has raised an error."""
    if isinstance(error, ResultsNotTaken):
        return RunFailure.NOT_TAKEN
    if isinstance(error, OutOfMemory | MemoryError):
        return RunFailure.NO_MEMORY
    return RunFailure.INVALID if isinstance(error, Invalid) else RunFailure.EXCEPTION


def failure_of(how: str) -> RunFailure:
    """Return the failure of a process that ended by a signal of this name, or by an
    exit code."""
    if how in CRASHES:
        return RunFailure.CRASH
    return RunFailure.EXIT if how.startswith("exit code") else RunFailure.KILLED


class Death(NamedTuple):
    """The end of a process in words. `culprit` is the model that crashed it, if known.
    `times` counts its failures in a row.
    """

    text: str
    culprit: str = ""
    times: int = 0
    most: int = MOST

    @property
    def is_once_too_often(self) -> bool:
        """Return whether the model has failed too often and goes out of service."""
        return self.times >= self.most

    def __str__(self) -> str:
        by = f", while model {self.culprit!r} was running" if self.culprit else ""
        return f"{self.text}{by}"


class FailureCounts:
    """The models that are being loaded on a device, and each model's failures in a row.

    The caller holds the device's lock, except for `loading`.
    """

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}
        self._loading: list[str] = []

    @contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """Record that a model is being loaded while the block runs."""
        self._loading.append(name)
        try:
            yield
        finally:
            self._loading.remove(name)

    def judge(self, how: str, *running: str, succeeded: bool = False) -> Death:
        """Return the death of a process, which ended by a signal of this name or in
        another way.

        `running` are the models that ran. `succeeded` means that a run of each of them
        has succeeded since its last failure. No model is named if several ran.
        """
        suspects = {*self._loading, *running} - {""}
        text = f"its process died of {how}"
        failure = failure_of(how)
        if not RUN_FAILURES[failure].counts or len(suspects) != 1:
            return Death(text)
        (culprit,) = suspects
        times = self.count(failure, culprit, succeeded=succeeded)
        return Death(text, culprit, times, MOST if any(running) else MOST_LOADS)

    def count(self, failure: RunFailure, name: str, *, succeeded: bool) -> int:
        """Count a failure of a model. Return the number of failures in a row."""
        if not RUN_FAILURES[failure].counts:
            return 0
        now = time.monotonic()
        before = [] if succeeded else self._times.get(name, [])
        times = self._times[name] = [*(t for t in before if now - t < WINDOW), now]
        return len(times)

    def times(self, name: str) -> int:
        """Return how many failures in a row a model has had."""
        return len(self._times.get(name, ()))

    def forget(self, name: str) -> None:
        """Restart the count, because the model was taken out of service and may be
        loaded again.
        """
        self._times.pop(name, None)

    def pause(self, name: str) -> float:
        """Return the seconds until a failed model may be loaded again."""
        times = self._times.get(name, ())
        if len(times) < 2:
            return 0.0
        end = times[-1] + FIRST_PAUSE * 2.0 ** (len(times) - 2)
        return max(0.0, end - time.monotonic())

    def __repr__(self) -> str:
        return f"<FailureCounts { ({n: len(t) for n, t in self._times.items()}) }>"
