"""Faults that a device reports before its process ends, and ways to recover.

The kinds are those of Model Runtime (User Guide, "Error handling"). A process that dies
without a report has no fault in this sense, but is lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class FaultKind(Enum):
    """APPLICATION: the program failed.

    RECOVERABLE: the device failed, and the report names the action that recovers it.
    UNRECOVERABLE: no action recovers the device. UNKNOWN: the device does not know.
    """

    APPLICATION = "application_runtime_error"
    RECOVERABLE = "recoverable_runtime_error"
    UNRECOVERABLE = "unrecoverable_runtime_error"
    UNKNOWN = "unknown_runtime_error"


class RecoveryAction(Enum):
    """Actions that cure a RECOVERABLE fault (Poplar: `RecoveryAction`)."""

    IPU_RESET = "IPU_RESET"
    LINK_RESET = "LINK_RESET"
    PARTITION_RESET = "PARTITION_RESET"
    FULL_RESET = "FULL_RESET"


@dataclass(frozen=True, slots=True)
class DeviceFault:
    """A fault that a device has reported. The device process then ends."""

    kind: FaultKind
    message: str
    action: RecoveryAction | None = None

    @property
    def resettable(self) -> bool:
        """Return whether a reset of this device alone cures the fault. A reset is a new
        process.
        """
        return (
            self.kind is FaultKind.APPLICATION
            or self.action is RecoveryAction.IPU_RESET
        )

    def __str__(self) -> str:
        action = f" (recovery action {self.action.value})" if self.action else ""
        return f"{self.kind.value}: {self.message}{action}"


class DeviceFaulted(BaseException):
    """Ends the thread that runs programs. The process reports the fault, then ends.

    It is no `Exception`, because handlers of failed requests must not catch it.
    """

    def __init__(self, fault: DeviceFault) -> None:
        super().__init__(str(fault))
        self.fault = fault
