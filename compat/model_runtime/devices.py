# ruff: noqa: N802, N815 - the names are the original's
"""Devices and how to get one (Model Runtime User Guide, "Managing devices")."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from popef import Model

import engine
from model_runtime.device_wait import DeviceWaitConfig

#: What the original says of an IPU whose architecture it does not know.
_UNKNOWN_ARCHITECTURE = -1

DeviceOptions: TypeAlias = Mapping[str, str]


class Device:
    """An attached device; made by `DeviceManager`. Detached when nobody holds it."""

    def __init__(self, device: engine.Device) -> None:
        self.engine = device
        """The device beneath."""
        weakref.finalize(self, device.close)

    def ipuVersion(self) -> int:
        """-1: the architecture is none that the original knows."""
        return _UNKNOWN_ARCHITECTURE

    def __repr__(self) -> str:
        return repr(self.engine)


@dataclass(slots=True)
class DeviceConstraints:
    """What a device must be able to do; every device of ours has it all."""

    requiresRemoteBuffersSupport: bool = False

    def __bool__(self) -> bool:
        return self.requiresRemoteBuffersSupport


class DeviceManager:
    """Attaches devices of the pool.

    A device is asked for by a number of units or for a model. `device_options` are
    Poplar's: accepted, and without effect. A device is known by its place in the pool,
    or by its own id ("cpu:1").
    """

    def __init__(self) -> None:
        self._manager = engine.DeviceManager()

    def ipuHardwareVersion(self) -> int:
        """-1: the architecture is none that the original knows."""
        return _UNKNOWN_ARCHITECTURE

    def getDevice(
        self,
        num_ipus: int | Model,
        device_options: DeviceOptions | DeviceWaitConfig | None = None,
        wait_config: DeviceWaitConfig | None = None,
        constraints: DeviceConstraints | bool | None = None,
    ) -> Device:
        """A device of `num_ipus` units, or for a model; raises where there is none."""
        wait = _wait(device_options, wait_config)
        return Device(self._manager.get_device(_units(num_ipus), wait))

    def tryGetDevice(
        self,
        num_ipus: int | Model,
        device_options: DeviceOptions | DeviceWaitConfig | None = None,
        wait_config: DeviceWaitConfig | None = None,
        constraints: DeviceConstraints | bool | None = None,
    ) -> Device | None:
        """`getDevice`, but None where there is none."""
        wait = _wait(device_options, wait_config)
        device = self._manager.try_get_device(_units(num_ipus), wait)
        return None if device is None else Device(device)

    def getSpecificDevice(
        self,
        device_id: int | str,
        device_options: DeviceOptions | Model | DeviceWaitConfig | None = None,
        wait_config: DeviceWaitConfig | None = None,
    ) -> Device:
        """This device; raises where it cannot be attached. Instead of options a model
        can be given."""
        wait = _wait(device_options, wait_config)
        return Device(self._manager.get_specific_device(self._id(device_id), wait))

    def tryGetSpecificDevice(
        self,
        device_id: int | str,
        device_options: DeviceOptions | Model | DeviceWaitConfig | None = None,
        wait_config: DeviceWaitConfig | None = None,
    ) -> Device | None:
        """`getSpecificDevice`, but None where it cannot be attached."""
        wait = _wait(device_options, wait_config)
        device = self._manager.try_get_specific_device(self._id(device_id), wait)
        return None if device is None else Device(device)

    def _id(self, device_id: int | str) -> str:
        if isinstance(device_id, str):
            return device_id
        units = self._manager.units
        return units[device_id] if 0 <= device_id < len(units) else str(device_id)

    def __repr__(self) -> str:
        return repr(self._manager)


def _units(num_ipus: int | Model) -> int:
    if isinstance(num_ipus, Model):
        return max(1, num_ipus.metadata.numIpus())
    return num_ipus


def _wait(options: object, config: DeviceWaitConfig | None) -> engine.DeviceWaitConfig:
    if isinstance(options, DeviceWaitConfig):
        config = options
    return (config or DeviceWaitConfig()).to_engine()
