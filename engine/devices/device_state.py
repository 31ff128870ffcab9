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


#: Seconds that a device process may take to end by itself before it is killed, or to
#: answer a message that ends something.
STOP_TIMEOUT = 5.0
#: A plain name, because each request reads it and enumeration members are slow to look
#: up.
READY: Final = DeviceState.READY
