# ruff: noqa: N803 - the names are the original's
"""`DeviceWaitConfig`: how attaching to a device retries."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias, overload

import engine
from engine import DeviceWaitStrategy

Duration: TypeAlias = timedelta | float
"""A `timedelta`, or a number of seconds."""

_SLEEP_TIME = timedelta(seconds=15)


class DeviceWaitConfig:
    """`timeout` counts for WAIT_WITH_TIMEOUT, `sleepTime` for the waiting strategies.

    Without a strategy, a timeout means WAIT_WITH_TIMEOUT.
    """

    __slots__ = ("sleepTime", "strategy", "timeout")

    @overload
    def __init__(
        self,
        strategy: DeviceWaitStrategy = ...,
        timeout: Duration = ...,
        sleepTime: Duration = ...,
    ) -> None: ...
    @overload
    def __init__(self, timeout: Duration, sleepTime: Duration = ..., /) -> None: ...
    @overload
    def __init__(self, timeout: Duration, /, *, sleepTime: Duration) -> None: ...

    def __init__(
        self,
        strategy: DeviceWaitStrategy | Duration | None = None,
        timeout: Duration | None = None,
        sleepTime: Duration | None = None,
    ) -> None:
        if strategy is not None and not isinstance(strategy, DeviceWaitStrategy):
            pause = timeout if sleepTime is None else sleepTime
            strategy, timeout = None, strategy
        else:
            pause = sleepTime
        if strategy is None:
            strategy = DeviceWaitStrategy.NO_WAIT
            if timeout is not None:
                strategy = DeviceWaitStrategy.WAIT_WITH_TIMEOUT
        self.strategy = strategy
        self.timeout = _delta(timeout, timedelta())
        self.sleepTime = _delta(pause, _SLEEP_TIME)

    def to_engine(self) -> engine.DeviceWaitConfig:
        return engine.DeviceWaitConfig(
            DeviceWaitStrategy(self.strategy),
            _delta(self.timeout, timedelta()).total_seconds(),
            _delta(self.sleepTime, _SLEEP_TIME).total_seconds(),
        )

    def __repr__(self) -> str:
        return (
            f"<DeviceWaitConfig {self.strategy.name} timeout={self.timeout} "
            f"sleepTime={self.sleepTime}>"
        )


def _delta(duration: Duration | None, default: timedelta) -> timedelta:
    if duration is None:
        return default
    return duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
