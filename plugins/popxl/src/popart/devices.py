"""Devices: descriptions that can be attached."""

# ruff: noqa: N802, N803 - the names are the original's
from __future__ import annotations

import itertools
from enum import Enum
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from popir import DeviceError, IrError
from popir.session import ProgramSession

if TYPE_CHECKING:
    from engine import Device

_numbers = itertools.count()
#: Seconds between two attempts to attach a device.
_PAUSE = 0.05
#: Kinds of devices.
DeviceType = Enum("DeviceType", "Cpu IpuModel Ipu OfflineIpu Sim", start=0)
#: Accepted, without effect.
SyncPattern = Enum("SyncPattern", "Full SinglePipeline ReplicaAndLadder", start=0)
#: Times at which a device is attached.
DeviceConnectionType = Enum("DeviceConnectionType", "Always OnDemand Never", start=0)
#: Accepted, without effect.
DeviceSelectionCriterion = Enum("DeviceSelectionCriterion", "First Random", start=0)


class DeviceInfo:
    """One device. An attached device of kind Ipu is a device of the pool. Other kinds
    run in the caller's process.
    """

    def __init__(self, type_: DeviceType, units: int = 1, wait: float = 0.0) -> None:
        self.type = type_
        self.numIpus = units
        self.id = next(_numbers)
        self.isAttached = False
        self._wait = wait
        self._in_process = type_ is not DeviceType.Ipu
        self._device: Device | None = None
        #: Sessions on the device, which must leave it before it is detached.
        self._users: WeakSet[ProgramSession] = WeakSet()

    @property
    def is_on_pool(self) -> bool:
        """Return whether programs run in a process of their own."""
        return not self._in_process

    def stay_in_process(self) -> None:
        """Run programs in the caller's process, unless a device of the pool is already
        attached.
        """
        if not self.isAttached:
            self._in_process = True

    def attach(self) -> bool:
        """Attach the device; return whether that succeeded."""
        if self.isAttached:
            return True
        if self.type is DeviceType.OfflineIpu:
            raise DeviceError("An offline device cannot be attached")
        if self.is_on_pool:
            # Import the engine only when a device is needed, because that takes time.
            from engine import DeviceManager as Pool
            from engine import DeviceWaitConfig, DeviceWaitTimeout, NoDeviceAvailable

            config = DeviceWaitConfig.with_timeout(self._wait, _PAUSE)
            try:
                self._device = Pool().get_device(self.numIpus, config)
            except (NoDeviceAvailable, DeviceWaitTimeout):
                return False
        self.isAttached = True
        return True

    def tryAttachUntilTimeout(self) -> bool:
        """Attach the device, waiting for the time that the manager sets."""
        return self.attach()

    def detach(self) -> None:
        """Detach the device. Idempotent."""
        for session in list(self._users):
            session.detach()
        self._users.clear()
        device, self._device = self._device, None
        self.isAttached = False
        if device is not None:
            device.close()

    def setOnDemandAttachTimeout(self, seconds: float) -> None:
        """Set how long attaching waits."""
        self._wait = float(seconds)

    def __enter__(self) -> DeviceInfo:
        return self

    def __exit__(self, *_: object) -> None:
        self.detach()

    def __repr__(self) -> str:
        return f"<DeviceInfo {self.type.name} {self.id} of {self.numIpus} IPUs>"


_SYSTEMS = frozenset({"ipu1", "ipu2", "ipu21", "ipu-pod16", "ipu-pod64", "pod16"})


class DeviceManager:
    """Makes descriptions of devices."""

    def __init__(self) -> None:
        self._wait = 0.0

    def setOnDemandAttachTimeout(self, seconds: float) -> None:
        """Set how long attaching waits, for devices that are made after this call."""
        self._wait = float(seconds)

    def createCpuDevice(self) -> DeviceInfo:
        """Create a device that is the caller's process."""
        return DeviceInfo(DeviceType.Cpu)

    def createIpuModelDevice(self, options: dict[str, Any] | None = None) -> DeviceInfo:
        """Create a model of `numIPUs` IPUs that runs in the caller's process."""
        return DeviceInfo(DeviceType.IpuModel, int((options or {}).get("numIPUs", 1)))

    def createSimDevice(self, options: dict[str, Any] | None = None) -> DeviceInfo:
        """Create a device as `createIpuModelDevice` does."""
        return DeviceInfo(DeviceType.Sim, int((options or {}).get("numIPUs", 1)))

    def createOfflineIpuFromSystemString(self, system: str, numIpus: int) -> DeviceInfo:
        """Return a device to compile for."""
        if str(system).lower() not in _SYSTEMS:
            raise IrError(f"Unknown system {system!r}: one of {sorted(_SYSTEMS)}")
        return DeviceInfo(DeviceType.OfflineIpu, numIpus)

    def createOfflineIpuFromDeviceInfo(self, info: DeviceInfo) -> DeviceInfo:
        """Return a device to compile for, with the properties of another one."""
        return DeviceInfo(DeviceType.OfflineIpu, info.numIpus)

    def createHostDevice(self, type_: DeviceType, options: Any = None) -> DeviceInfo:
        """Return a device in the caller's own process."""
        return DeviceInfo(type_, int((options or {}).get("numIPUs", 1)))

    def enumerateDevices(
        self, pattern: Any = None, numIpus: int = 1, **_: Any
    ) -> list[DeviceInfo]:
        """Return the devices of the pool with that size."""
        from engine import DeviceManager as Pool

        count = len(Pool().units) // max(numIpus, 1)
        return [DeviceInfo(DeviceType.Ipu, numIpus, self._wait) for _ in range(count)]

    def acquireAvailableDevice(
        self,
        numIpus: int = 1,
        tilesPerIpu: int = 0,
        pattern: Any = None,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
        selectionCriterion: Any = None,
    ) -> DeviceInfo:
        """Return a device of the pool, attached immediately unless it is on demand."""
        info = DeviceInfo(DeviceType.Ipu, numIpus, self._wait)
        if connectionType is DeviceConnectionType.Always and not info.attach():
            raise IrError(f"No device of {numIpus} IPUs is available")
        return info

    def acquireDeviceById(
        self,
        id: int,  # noqa: A002
        pattern: Any = None,
        connectionType: DeviceConnectionType = DeviceConnectionType.Always,
    ) -> DeviceInfo:
        """Return a device of the pool."""
        return self.acquireAvailableDevice(connectionType=connectionType)
