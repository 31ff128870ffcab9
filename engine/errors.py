"""Errors of the engine, named by who must act.

EngineError
  Refused              not possible now: try again, or on another server
    Overloaded         too much work; `retry_after` estimates when to try again
      QueueFull            the runner's bounded queue is full
      DeadlineUnreachable  the queue takes longer than the deadline allows
    NoDeviceAvailable  no free device, and the wait policy does not wait
    DeviceBusy         another session is running programs on the device
  TimedOut             too late
    DeviceWaitTimeout  no device came free within the wait policy's timeout
    DeadlineExceeded   the request's deadline passed
  Closed               you closed it
    RunnerClosed, SessionClosed, QueueClosed, DeviceClosed
    Cancelled          you cancelled the request
  Gone                 the other side went away
    DeviceLost         the device process died; its requests died with it
      DeviceFailed     the process reported a fault first, which a reset may cure
  Invalid              your input is wrong
    InvalidInput       tensors of a request: name, shape, data type, bytes
    UnknownAnchor      a name the model does not have
    AnchorsNotConnected a program needs data, or room for it, that is not connected
    InvalidModel       a model that cannot be loaded or run
    InvalidConfig      an option with a value it cannot have
    CallbackFailed     a callback of yours failed, or gave what cannot be used
    WrongProcess       a forked child used what its parent made
  ExecutionFailed      the graph failed on this input
    OutOfMemory        there was no memory for it now
    NotFound, Unsupported, AlreadyExists, CancelledByModel
                       the code of a Python model raised this error
  EngineBug            a broken invariant; the message ends in "this is a bug"

The engine knows no HTTP: which status an error becomes is decided in `app`.
"""

from __future__ import annotations

from engine import faults


class EngineError(RuntimeError):
    """Root of everything the engine raises on purpose.

    It is a RuntimeError, as are the errors of Graphcore's Python libraries.
    """

    def again(self) -> EngineError:
        """Return a copy of the error to raise while this one is kept.

        A stored error would keep the frames through which it was raised, and with them
        a runner without other references and its device. Besides, several threads may
        raise it.
        """
        error = type(self).__new__(type(self), *self.args)
        error.__dict__.update(self.__dict__)
        error.__cause__ = self.__cause__
        return error

    def named(self, label: str) -> EngineError:
        """Return a copy of the error that names the place."""
        error = self.again()
        error.args = (f"{label}: {self}", *self.args[1:])
        return error


class Refused(EngineError):
    """The call was refused: nothing was queued or lost; try again."""


class Overloaded(Refused):
    """There is more work than the runner accepts at the moment.

    `retry_after` estimates, in seconds, when the same request would be accepted.
    """

    def __init__(self, message: str, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class QueueFull(Overloaded):
    """The bounded queue of a runner has no room for one more request."""


class DeadlineUnreachable(Overloaded):
    """The waiting requests already need more time than this request's deadline
    allows.
    """


class NoDeviceAvailable(Refused):
    """No device was free, and the policy is not to wait."""


class DeviceBusy(Refused):
    """Programs of another session, or another thread, run on the device."""


class TimedOut(EngineError):
    """The caller's time limit passed."""


class DeviceWaitTimeout(TimedOut):
    """No device became free within `DeviceWaitConfig.timeout`."""


class DeadlineExceeded(TimedOut):
    """The deadline of a request, or the timeout of a wait, has passed."""

    def __init__(self, message: str = "Request timeout expired") -> None:
        super().__init__(message)


class Closed(EngineError):
    """The caller closed the thing that is being used."""


class RunnerClosed(Closed):
    """The `ModelRunner` is closed or closing."""


class SessionClosed(Closed):
    """The `Session` is stopped or closed."""


class QueueClosed(Closed):
    """The queue or ring was disconnected or invalidated."""


class DeviceClosed(Closed):
    """The `Device` was closed (detached)."""


class Cancelled(Closed):
    """The request was cancelled by its owner before it finished."""


class Gone(EngineError):
    """The peer of a channel has died."""


class DeviceLost(Gone):
    """The device process died; every request in it failed with this.

    `culprit` is the name of the model that ran when the process crashed; empty without
    a crash, or if that is unknown.
    """

    def __init__(self, message: str = "", culprit: str = "") -> None:
        super().__init__(message)
        self.culprit = culprit


class DeviceFailed(DeviceLost):
    """The device reported a fault and gave up; every request in it failed with this.

    If `fault.resettable` is False, a new process alone is not expected to help. Then
    none starts until `Device.recover` is called.
    """

    def __init__(self, message: str, fault: faults.DeviceFault | None = None) -> None:
        super().__init__(message)
        self.fault = fault or faults.DeviceFault(faults.FaultKind.UNKNOWN, message)


class Invalid(EngineError):
    """The caller's input is wrong; the same call will fail again."""


class InvalidInput(Invalid):
    """A tensor of a request does not fit the model."""


class UnknownAnchor(Invalid):
    """A tensor name that the model does not have."""


class AnchorsNotConnected(Invalid):
    """A program reads or writes anchors that no callback, queue or data serves."""


class InvalidModel(Invalid):
    """A model that cannot be loaded or run; the message names why."""


class InvalidConfig(Invalid):
    """An option has a value that it cannot have."""


class CallbackFailed(Invalid):
    """A callback of the caller failed, or returned an unusable value.

    `__cause__` is what it raised, if it did.
    """


class WrongProcess(Invalid):
    """A forked child used an object that was made before the fork.

    The object belongs to the parent process, which the message names. The child must
    make its own.
    """


class ExecutionFailed(EngineError):
    """The graph failed on this input.

    `callers_fault` is True if the graph failed on what the request brought (a shape
    that does not fit, an index out of range), and False if the device or the program
    is at fault.
    """

    def __init__(self, message: str, *, callers_fault: bool = False) -> None:
        super().__init__(message)
        self.callers_fault = callers_fault


class OutOfMemory(ExecutionFailed):
    """Memory for a request was missing, on the device or in this process.

    It may succeed when other requests need less; a request that exceeds the total never
    does.
    """


class NotFound(ExecutionFailed):
    """The code of a model reports that the requested object does not exist."""


class Unsupported(ExecutionFailed):
    """The code of a model reports that it does not support the request."""


class AlreadyExists(ExecutionFailed):
    """The code of a model reports that the object to be made exists already."""


class CancelledByModel(ExecutionFailed):
    """The code of a model has cancelled the request."""


class EngineBug(EngineError):
    """A broken invariant of ours."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}; this is a bug")


def counted(number: int, noun: str) -> str:
    """Return ``1 row``, ``2 rows``: for messages."""
    return f"{number} {noun}" + "s" * (number != 1)
