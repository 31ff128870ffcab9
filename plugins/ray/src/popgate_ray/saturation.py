"""Load of a server: that of its busiest model, or of its process.

A mean over all devices is useless: a Python model may be full while the devices of
other models are idle. A request can go to any device that has its model. So a model is
as busy as these devices on average, and a server is as busy as its busiest model.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from app.gateway import Gateway
from engine import ModelRunner

#: Target for the busy share of a server's time, if the number of servers can change.
TARGET_UTILIZATION = 0.7


def saturation_of(
    models: Iterable[Collection[str]], shares: Mapping[str, float]
) -> float:
    """Return the share of the time that the devices of the busiest model run.

    Each item of `models` has the devices of one model; `shares` is by device.
    """
    means = (
        sum(shares.get(device, 0.0) for device in devices) / len(devices)
        for devices in models
        if devices
    )
    return max(means, default=0.0)


@dataclass(frozen=True, slots=True)
class Look:
    """Busy time so far, in seconds: of the clock, of each device, of the process."""

    at: float
    devices: Mapping[str, float]
    process: float


class Utilization:
    """Utilization of a server since the last reading, from 0 to 1 and more: the maximum
    of its models' devices and its own process.

    With small models HTTP reaches its limit first.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._before = self._look()

    def __call__(self) -> float:
        before, now = self._before, self._look()
        self._before = now
        seconds = now.at - before.at
        if seconds <= 0:
            return 0.0
        shares = {
            device: max(0.0, busy - before.devices.get(device, 0.0)) / seconds
            for device, busy in now.devices.items()
        }
        process = (now.process - before.process) / seconds
        return max(process, saturation_of(self._models(), shares))

    def _models(self) -> Iterable[Collection[str]]:
        for record in self._gateway.records.all():
            for loaded in record.serving.values():
                if isinstance(loaded.runner, ModelRunner):
                    yield {device.id for device in loaded.runner.devices}

    def _look(self) -> Look:
        summaries = self._gateway.devices.summaries()
        busy = {device.id: device.busy_ns / 1e9 for device in summaries}
        return Look(time.monotonic(), busy, time.process_time())

    def __repr__(self) -> str:
        return f"<Utilization since {self._before.at:.0f}>"


def replicas_wanted(shares: Collection[float], target: float) -> float:
    """Return the number of servers, as a fraction, at which each is busy for the share
    `target` of its time. `shares` has the present busy share of each.
    """
    return sum(shares) / target
