"""States of a device: whether it can run, and how it recovers."""

from __future__ import annotations

from enum import Enum
from typing import Final


class DeviceState(Enum):
    """READY, LOST (its process died; `recover` starts another), FAILED (it reported a
    fault that only `recover(by_hand=True)` may cure) or CLOSED."""

    READY = "ready"
    LOST = "lost"
    FAILED = "failed"
    CLOSED = "closed"


#: For every request: enumerations are slow to ask.
READY: Final = DeviceState.READY
