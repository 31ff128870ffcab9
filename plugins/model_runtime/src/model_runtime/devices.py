# ruff: noqa: N802, N815 - the names are the original's
"""Devices and how to get one (Model Runtime User Guide, "Managing devices")."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any, SupportsIndex, TypeAlias, overload

import engine
import popef_io
from model_runtime.arguments import at_most_one_of, one_of
from model_runtime.device_wait import DeviceWaitConfig
from model_runtime.ending import close_with
from model_runtime.members import Member, Options
from popef import Model
from popef.errors import WrongType
from popef.taking import NotPickled, Text, expected, got, number, text, truth

DeviceOptions: TypeAlias = Mapping[str, str]


class _Version(int):
    """The version of an IPU, a type of its own: an equal number is not a version."""


#: The default version. In the overload for models this argument holds the tiles.
_MK2 = _Version(2)
#: Tiles of the small software model of an IPU.
_SMALL_TILES = 4


class Device(NotPickled):
    """An attached device; made by `DeviceManager`. It is detached when nothing refers
    to it.
    """

    def __init__(self, device: engine.Device) -> None:
        self.engine = device
        """The engine's device."""
        close_with(self, device.close)

    def ipuVersion(self) -> int:
        """Return -1, which no architecture of the original has; for an IPU model, its
        version.
        """
        return self.engine.ipu_version

    def __repr__(self) -> str:
        return repr(self.engine)


class DeviceConstraints(Options):
    """Requirements on a device, which all devices of PopGate meet. False: not
    required.
    """

    __slots__ = ()

    requiresRemoteBuffersSupport = Member[bool, Any](
        truth, False, "Whether the device must support remote buffers. Default: False."
    )

    def __init__(self, requiresRemoteBuffersSupport: bool = False) -> None:  # noqa: N803
        super().__init__(requiresRemoteBuffersSupport=requiresRemoteBuffersSupport)

    def __bool__(self) -> bool:
        return self.requiresRemoteBuffersSupport


class DeviceManager:
    """Attaches devices of the pool.

    You request a device by a number of units, or for a model. In `device_options`
    PopGate's options have an effect (`popgate.threads`), Poplar's have none. A device
    is identified by its place in the pool, or by its own id ("cpu:1").
    """

    def __init__(self) -> None:
        self._manager = engine.DeviceManager()

    def ipuHardwareVersion(self) -> int:
        """Return -1, which no architecture of the original has."""
        return self._manager.ipu_hardware_version()

    def getDevice(
        self,
        num_ipus: int | Model | None = None,
        device_options: DeviceOptions | DeviceWaitConfig | None = None,
        wait_config: DeviceWaitConfig | None = None,
        constrains: DeviceConstraints | bool | None = None,
        *,
        model: Model | None = None,
        constraints: DeviceConstraints | bool | None = None,
    ) -> Device:
        """Return a device of `num_ipus` units, or for a model. Raises if none is free.

        The requirements have two spellings; both are accepted.
        """
        flags, wait = _split(device_options, wait_config)
        _constrained(constrains, constraints)
        return Device(self._manager.get_device(_io(num_ipus, model), wait, flags))

    def tryGetDevice(
        self,
        num_ipus: int | Model | None = None,
        device_options: DeviceOptions | DeviceWaitConfig | None = None,
        wait_config: DeviceWaitConfig | None = None,
        constrains: DeviceConstraints | bool | None = None,
        *,
        model: Model | None = None,
        constraints: DeviceConstraints | bool | None = None,
    ) -> Device | None:
        """Return a device like `getDevice`, but None if none is free."""
        with contextlib.suppress(engine.NoDeviceAvailable, engine.DeviceWaitTimeout):
            return self.getDevice(
                num_ipus,
                device_options,
                wait_config,
                constrains,
                model=model,
                constraints=constraints,
            )
        return None

    def getSpecificDevice(
        self,
        device_id: int | Text,
        device_options: DeviceOptions | Model | DeviceWaitConfig | None = None,
        wait_config: DeviceWaitConfig | None = None,
        *,
        model: Model | None = None,
    ) -> Device:
        """Attach this device; raise if it cannot be attached. A model may be passed
        instead of options.
        """
        flags, wait = _split(device_options, wait_config, model)
        get = self._manager.get_specific_device
        return Device(get(self._id(device_id), wait, flags))

    def tryGetSpecificDevice(
        self,
        device_id: int | Text,
        device_options: DeviceOptions | Model | DeviceWaitConfig | None = None,
        wait_config: DeviceWaitConfig | None = None,
        *,
        model: Model | None = None,
    ) -> Device | None:
        """Attach a device like `getSpecificDevice`; return None if that fails."""
        with contextlib.suppress(engine.NoDeviceAvailable, engine.DeviceWaitTimeout):
            return self.getSpecificDevice(
                device_id, device_options, wait_config, model=model
            )
        return None

    @overload
    def createIpuModelDevice(
        self, num_ipus: int, ipu_version: int = 2, tiles_per_ipu: int = 0
    ) -> Device: ...
    @overload
    def createIpuModelDevice(self, model: Model, tiles_per_ipu: int, /) -> Device: ...
    @overload
    def createIpuModelDevice(
        self, model: Model, /, *, tiles_per_ipu: int = 0
    ) -> Device: ...
    @overload
    def createIpuModelDevice(
        self, *, model: Model, tiles_per_ipu: int = 0
    ) -> Device: ...

    def createIpuModelDevice(
        self,
        num_ipus: int | Model | None = None,
        ipu_version: int = _MK2,
        tiles_per_ipu: int = 0,
        *,
        model: Model | None = None,
    ) -> Device:
        """Return a software device outside the pool: of so many IPUs, or for a model.
        With a model, the device has the model's version, and the next argument is the
        number of tiles.
        """
        wanted = _io(num_ipus, model)
        make = self._manager.create_ipu_model_device
        if isinstance(wanted, popef_io.Model):
            tiles = tiles_per_ipu if ipu_version is _MK2 else ipu_version
            return Device(make(wanted, tiles_per_ipu=number(tiles)))
        return Device(make(wanted, number(ipu_version), number(tiles_per_ipu)))

    @overload
    def createSmallIpuModelDevice(
        self, num_ipus: int, ipu_version: int = 2
    ) -> Device: ...
    @overload
    def createSmallIpuModelDevice(self, model: Model, /) -> Device: ...
    @overload
    def createSmallIpuModelDevice(self, *, model: Model) -> Device: ...

    def createSmallIpuModelDevice(
        self,
        num_ipus: int | Model | None = None,
        ipu_version: int = 2,
        *,
        model: Model | None = None,
    ) -> Device:
        """Return a device like `createIpuModelDevice`, with four tiles."""
        make, version = self._manager.create_ipu_model_device, number(ipu_version)
        return Device(make(_io(num_ipus, model), version, _SMALL_TILES))

    def _id(self, device_id: SupportsIndex | Text) -> str:
        if isinstance(device_id, str | bytes):
            return text(device_id)
        units, place = self._manager.units, number(device_id)
        return units[place] if 0 <= place < len(units) else str(place)

    def __repr__(self) -> str:
        return repr(self._manager)


def _constrained(*given: DeviceConstraints | bool | None) -> None:
    """Check that the requirements have the right type: all devices meet them."""
    for asked in given:
        if not isinstance(asked, DeviceConstraints | bool | None):
            raise WrongType(f"expected DeviceConstraints, {got(asked)}")


def _io(num_ipus: int | Model | None, model: Model | None) -> int | popef_io.Model:
    wanted = one_of("num_ipus and model", num_ipus, model)
    if isinstance(wanted, Model):
        return wanted.io
    return number(wanted, "a number of IPUs or a popef.Model")


def _split(
    options: DeviceOptions | Model | DeviceWaitConfig | None,
    config: DeviceWaitConfig | None,
    model: Model | None = None,
) -> tuple[Any, engine.DeviceWaitConfig]:
    """Return the options, or the model that has them, and the wait policy.

    Without options, the wait policy may take their position.
    """
    if isinstance(options, DeviceWaitConfig):
        options, config = None, one_of("wait_config", options, config)
    flags = at_most_one_of("device_options and model", options, model)
    if config is None:
        config = DeviceWaitConfig()
    wait = expected(config, DeviceWaitConfig).to_engine()
    if flags is None or isinstance(flags, Model):
        return flags if flags is None else flags.io, wait
    if not isinstance(flags, Mapping):
        raise WrongType(f"expected device options as a dict, {got(flags)}")
    return {text(name): text(value) for name, value in flags.items()}, wait
