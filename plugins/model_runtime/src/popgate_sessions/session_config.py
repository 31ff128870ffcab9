"""Options of a session: frozen values, checked once when made."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from engine.config import DeviceWaitConfig
from engine.errors import InvalidConfig
from popgate_sessions.callbacks import PopefDataUsagePredicate

UNLIMITED = "unlimited"
_MOST = (1 << 32) - 1


class LaunchPolicy(Enum):
    """DEFERRED: the caller binds a device. IMMEDIATE: the session attaches a device
    itself.
    """

    DEFERRED = 0
    IMMEDIATE = 1


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Options of a session, with the defaults of Model Runtime's `SessionConfig`.

    - `policy`: whether the caller or the session attaches the device.
    - `pred_tensor_data`: the anchors that use the data of the file. None: all anchors
      with data in the file.
    - `check_package_hash`: whether to compare the recorded digests of the executable
      with the executable.
    - `wait_config`: how an IMMEDIATE session waits for a device.
    - `max_look_ahead`: how many inputs may be read before the program needs them.
      "unlimited": the device decides, up to 64 inputs and 64 MiB. A number as a
      string; "0": none.
    """

    policy: LaunchPolicy = LaunchPolicy.DEFERRED
    pred_tensor_data: PopefDataUsagePredicate | None = None
    check_package_hash: bool = True
    wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    max_look_ahead: str = UNLIMITED

    def __post_init__(self) -> None:
        text = self.max_look_ahead
        known = isinstance(text, str) and (
            text == UNLIMITED or (text.isascii() and text.isdigit() and len(text) <= 10)
        )
        if not known:
            msg = (
                f'max_look_ahead must be "{UNLIMITED}" or an unsigned integer as text, '
                f"got {text!r}"
            )
            raise InvalidConfig(msg)

    @property
    def look_ahead(self) -> int:
        """Return `max_look_ahead` as a number."""
        text = self.max_look_ahead
        return _MOST if text == UNLIMITED else min(int(text), _MOST)
