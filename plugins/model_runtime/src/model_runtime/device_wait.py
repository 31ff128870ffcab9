# ruff: noqa: N803, N815 - the names are the original's
"""`DeviceWaitConfig`: how attaching to a device retries."""

from __future__ import annotations

from datetime import timedelta
from typing import overload

import engine
from engine import DeviceWaitStrategy
from model_runtime.durations import Seconds, seconds
from model_runtime.members import Member, Options
from popef.taking import expected


def _strategy(value: DeviceWaitStrategy) -> DeviceWaitStrategy:
    return expected(value, DeviceWaitStrategy)


class DeviceWaitConfig(Options):
    """Retries when attaching to a device. By default there are none.

    `DeviceWaitConfig(strategy, timeout, sleepTime)`, or `DeviceWaitConfig(timeout,
    sleepTime)` for WAIT_WITH_TIMEOUT. Durations are `timedelta`, or a number of
    seconds; they read back as `timedelta`.
    """

    __slots__ = ()

    strategy = Member(
        _strategy,
        DeviceWaitStrategy.NO_WAIT,
        "What to do if no device is free: NO_WAIT (raise an error), "
        "WAIT_WITH_TIMEOUT or WAIT_FOREVER. Default: NO_WAIT.",
    )
    timeout = Member[timedelta, Seconds](
        seconds,
        timedelta(),
        "How long WAIT_WITH_TIMEOUT waits at most; other strategies ignore it. "
        "Default: 0 s.",
    )
    sleepTime = Member[timedelta, Seconds](
        seconds,
        timedelta(seconds=15),
        "How long the waiting strategies pause between two attempts. Default: 15 s.",
    )

    @overload
    def __init__(
        self,
        strategy: DeviceWaitStrategy = ...,
        timeout: Seconds = ...,
        sleepTime: Seconds = ...,
    ) -> None: ...
    @overload
    def __init__(self, timeout: Seconds, sleepTime: Seconds = ..., /) -> None: ...
    @overload
    def __init__(self, timeout: Seconds, /, *, sleepTime: Seconds) -> None: ...

    def __init__(
        self,
        strategy: DeviceWaitStrategy | Seconds | None = None,
        timeout: Seconds | None = None,
        sleepTime: Seconds | None = None,
    ) -> None:
        if strategy is not None and not isinstance(strategy, DeviceWaitStrategy):
            pause = timeout if sleepTime is None else sleepTime
            strategy, timeout = None, strategy
        else:
            pause = sleepTime
        given = {"strategy": strategy, "timeout": timeout, "sleepTime": pause}
        super().__init__(**{k: v for k, v in given.items() if v is not None})
        if strategy is None and timeout is not None:
            self.strategy = DeviceWaitStrategy.WAIT_WITH_TIMEOUT

    def to_engine(self) -> engine.DeviceWaitConfig:
        """Return the engine's configuration (an addition of PopGate)."""
        return engine.DeviceWaitConfig(
            self.strategy, self.timeout.total_seconds(), self.sleepTime.total_seconds()
        )

    def __repr__(self) -> str:
        return (
            f"<DeviceWaitConfig {self.strategy.name} timeout={self.timeout} "
            f"sleepTime={self.sleepTime}>"
        )
