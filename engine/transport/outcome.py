"""Outcomes of a request in the device process, and the errors for its caller."""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from engine.errors import (
    AlreadyExists,
    Cancelled,
    CancelledByModel,
    DeadlineExceeded,
    EngineBug,
    EngineError,
    ExecutionFailed,
    Gone,
    Invalid,
    InvalidInput,
    NotFound,
    OutOfMemory,
    Refused,
    Unsupported,
)
from popef_io import PopefError


class DeviceOutcome(IntEnum):
    """Outcomes of a request in the device process.

    REFUSED means: not now, because a model that the request's model calls is missing or
    overloaded. NEEDS_ROWS does not end a request. It means that the channel's requests
    up to that one wait for data of the named input.
    """

    DONE = 0
    CANCELLED = 1
    EXPIRED = 2
    INVALID = 3
    FAILED = 4
    FAILED_BY_INPUT = 5
    BUG = 6
    NEEDS_ROWS = 7
    REFUSED = 8
    OUT_OF_MEMORY = 9
    NOT_FOUND = 10
    UNSUPPORTED = 11
    ALREADY_EXISTS = 12
    CANCELLED_BY_MODEL = 13


#: A plain name, because each request reads it and enumeration members are slow to look
#: up.
DONE: Final = int(DeviceOutcome.DONE)
NEEDS_ROWS: Final = int(DeviceOutcome.NEEDS_ROWS)

#: Outcomes that the code of a model reports.
_SAID: Final[dict[DeviceOutcome, type[ExecutionFailed]]] = {
    DeviceOutcome.NOT_FOUND: NotFound,
    DeviceOutcome.UNSUPPORTED: Unsupported,
    DeviceOutcome.ALREADY_EXISTS: AlreadyExists,
    DeviceOutcome.CANCELLED_BY_MODEL: CancelledByModel,
}


def outcome_of(error: Exception) -> tuple[DeviceOutcome, str]:
    """Return the outcome and the message of a request that failed with `error`."""
    if isinstance(error, Invalid | PopefError):
        return DeviceOutcome.INVALID, str(error)
    if isinstance(error, OutOfMemory):
        return DeviceOutcome.OUT_OF_MEMORY, str(error)
    if isinstance(error, ExecutionFailed):
        for outcome, kind in _SAID.items():
            if isinstance(error, kind):
                return outcome, str(error)
        by_input = error.callers_fault
        return DeviceOutcome.FAILED_BY_INPUT if by_input else DeviceOutcome.FAILED, str(
            error
        )
    if isinstance(error, EngineBug):
        return DeviceOutcome.BUG, str(error).removesuffix("; this is a bug")
    if isinstance(error, DeadlineExceeded):
        return DeviceOutcome.EXPIRED, ""
    if isinstance(error, Refused | Gone):
        return DeviceOutcome.REFUSED, str(error)
    if isinstance(error, EngineError):
        return DeviceOutcome.FAILED, str(error)
    if isinstance(error, MemoryError):
        text = f"the device does not have enough memory for the request: {error}"
        return DeviceOutcome.OUT_OF_MEMORY, text.removesuffix(": ")
    return DeviceOutcome.BUG, f"{type(error).__name__}: {error}"


#: Made in advance, because a lack of memory leaves none for an error.
NO_MEMORY: Final = OutOfMemory("not enough memory for the request")
INTERRUPTED: Final = Cancelled("reading the result of the request was interrupted")


def not_copied(output: str, error: Exception) -> EngineError:
    """Return the caller's error for a request whose result could not be copied."""
    try:
        if isinstance(error, MemoryError):
            return OutOfMemory(f"not enough memory to copy output {output!r}")
        return EngineBug(
            f"cannot copy output {output!r}: {type(error).__name__}: {error}"
        )
    except MemoryError:
        return NO_MEMORY


def broken_off(error: Exception) -> EngineError:
    """Return the caller's error for a request whose handling raised this one."""
    if isinstance(error, EngineError):
        return error
    if isinstance(error, MemoryError):
        return NO_MEMORY
    return EngineBug(f"{type(error).__name__}: {error}")


def error_of(outcome: int, text: str) -> EngineError:
    """Return the caller's error for a request with this outcome."""
    match outcome:
        case DeviceOutcome.EXPIRED:
            return DeadlineExceeded()
        case DeviceOutcome.CANCELLED:
            return Cancelled("the request was cancelled")
        case DeviceOutcome.INVALID:
            return InvalidInput(text)
        case DeviceOutcome.REFUSED:
            return Refused(text)
        case DeviceOutcome.OUT_OF_MEMORY:
            return OutOfMemory(text)
        case DeviceOutcome.FAILED | DeviceOutcome.FAILED_BY_INPUT:
            return ExecutionFailed(
                text, callers_fault=outcome == DeviceOutcome.FAILED_BY_INPUT
            )
    said = _SAID.get(DeviceOutcome(outcome))
    if said is not None:
        return said(text)
    return EngineBug(text or f"a request ended as {DeviceOutcome(outcome).name}")
