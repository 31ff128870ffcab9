"""`DeviceManager`: the machine's devices, and how to attach to one.

A device of kind `cpu` is a device process that runs graphs on the processor. A device
of kind `cuda` runs them on a GPU, with the GPU build of ONNX Runtime. A specification
lists the devices of the pool:

    cpu:2        two devices, cpu:0 and cpu:1
    cpu:0-3      these four
    cpu:1-1      this one
    cuda:0       the GPU of that number
    cpu:2,cuda:0 both kinds
    python:4     four processes of Python models at most, python:0 to python:3

If a program names none, `POPGATE_DEVICES` in the environment may. The default pool has
a CPU device for each usable core, and at least two. The attached devices share the
cores. Attaching is exclusive across processes (engine/devices/device_lock.py).
`DeviceWaitConfig` decides how attaching retries, and only this module retries.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import socket
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engine.config import DeviceWaitConfig, DeviceWaitStrategy
from engine.devices.cores import cpu_budget, usable_cores
from engine.devices.device import Device
from engine.devices.device_lock import (
    MODEL_KIND,
    PYTHON_KIND,
    address_of,
    claimed_units,
    model_devices,
    try_claim,
)
from engine.devices.device_spec import (
    TILES,
    UNKNOWN_VERSION,
    DeviceSpec,
    checked_ipu_model,
)
from engine.devices.owned_process import PING_TIMEOUT
from engine.devices.python_options import PythonOptions
from engine.devices.thread_plan import ThreadPlan
from engine.errors import (
    DeviceWaitTimeout,
    EngineError,
    InvalidConfig,
    NoDeviceAvailable,
    counted,
)
from engine.transport import control
from engine.transport.device_messages import Ping, Status
from engine.transport.messages import close_all
from popef_io import Model

logger = logging.getLogger(__name__)

#: The environment variable with the pool of programs that do not name one.
VARIABLE = "POPGATE_DEVICES"
#: A specification with more devices than this is taken for a mistake.
MAX_DEVICES = 1024
#: The smallest number of devices in the default pool.
MIN_DEVICES = 2
#: CPU devices of a manager that overcommits, or twice the cores if that is more.
OVERCOMMITTED = 64
_ITEM = re.compile(r"(?P<kind>cpu|cuda|python):(?P<first>\d{1,4})(-(?P<last>\d{1,4}))?")
_CPU = "CPUExecutionProvider"

#: Numbers the software devices of this process, so that their names are unique.
_MODEL_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device of the pool. `pid` and `owner` are None unless it is attached."""

    id: str
    state: str
    pid: int | None = None
    owner: int | None = None


def parse_devices(specification: str) -> tuple[str, ...]:
    """Return the ids in a specification. Raises InvalidConfig if it is malformed."""
    ids: list[str] = []
    for item in specification.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise InvalidConfig(
                f"invalid devices {item.strip()!r}: expected cpu:COUNT, "
                "cpu:FIRST-LAST, cuda:NUMBER or python:COUNT, separated by commas"
            )
        kind, first = match["kind"], int(match["first"])
        if match["last"] is not None:
            numbers = range(first, int(match["last"]) + 1)
        else:
            numbers = range(first) if kind != "cuda" else range(first, first + 1)
        if not 0 < len(numbers) <= MAX_DEVICES:
            raise InvalidConfig(
                f"devices {item.strip()!r} must name 1 to {MAX_DEVICES} devices, got "
                f"{len(numbers)}"
            )
        ids += [f"{kind}:{number}" for number in numbers]
    return tuple(dict.fromkeys(ids))


def named_devices(devices: str | None) -> tuple[str, ...] | None:
    """Return the ids that `devices` names, or else `POPGATE_DEVICES` in the
    environment. Return None if neither names any. Raises InvalidConfig, naming the
    variable, if its value is malformed.
    """
    if devices:
        return parse_devices(devices)
    text = os.environ.get(VARIABLE)
    try:
        return parse_devices(text) if text else None
    except InvalidConfig as error:
        raise InvalidConfig(f"{VARIABLE}: {error}") from None


class DeviceManager:
    """Finds and attaches devices without owning them (Model Runtime: `DeviceManager`).

    `devices` is the pool (None: the value of `POPGATE_DEVICES` in the environment, or
    the default pool: a CPU device for each usable core, and at least two). If
    `overcommit` is set and the whole default pool is attached, the manager uses CPU
    devices beyond it. `plan` shares out the threads: either all cores except
    `reserve_cores` (a gateway keeps one), or `threads` threads (0: all remaining
    cores). Each device has the `ping_timeout`. Thread-safe. Raises InvalidConfig for
    devices that are malformed or unusable.
    """

    def __init__(
        self,
        devices: str | None = None,
        *,
        overcommit: bool = False,
        reserve_cores: int = 0,
        threads: int = 0,
        ping_timeout: float = PING_TIMEOUT,
    ) -> None:
        named = named_devices(devices)
        self._is_argument, self._is_named = bool(devices), named is not None
        self.units = named or _cpu_devices(overcommit)
        gpus = [unit for unit in self.units if _kind(unit) == "cuda"]
        if gpus and not _has_gpu_build():
            raise InvalidConfig(
                f"device {gpus[0]!r} needs the GPU build of ONNX Runtime; install "
                "onnxruntime-gpu in place of onnxruntime"
            )
        self._budget = cpu_budget()
        self._reserve_cores = reserve_cores
        self._threads = threads
        self._ping_timeout = ping_timeout

    @property
    def graph_units(self) -> tuple[str, ...]:
        """Return the units that run graphs: all except the units of Python models."""
        return tuple(unit for unit in self.units if _kind(unit) != PYTHON_KIND)

    @property
    def plan(self) -> ThreadPlan:
        """Return how the cores are shared. A named pool shares them among all its
        devices, the default pool among the attached ones of all processes.
        """
        devices = len(self.units)
        if not self._is_named:
            devices = len(claimed_units(_cpu_devices(True))) + model_devices()
        return ThreadPlan(
            self._budget, max(1, devices), self._reserve_cores, self._threads
        )

    def list(self) -> tuple[DeviceInfo, ...]:
        """Return every device of the pool with its owner. Also return attached devices
        beyond the default pool.
        """
        if self._is_named:
            claimed = claimed_units(self.units)
            return tuple(_info(unit, unit in claimed) for unit in self.units)
        every, pool = _cpu_devices(True), _cpu_devices(False)
        claimed = claimed_units(every)
        return tuple(
            _info(unit, unit in claimed)
            for unit in every
            if unit in claimed or unit in pool
        )

    def ipu_hardware_version(self) -> int:
        """Return -1, which stands for an architecture that the original does not know.
        0 would mean no devices, and 2 and 21 would mean IPUs.
        """
        return UNKNOWN_VERSION

    def get_device(
        self,
        wanted: int | Model = 1,
        wait_config: DeviceWaitConfig | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Device:
        """Attach free units as one device: a given number, or as many as a model needs.

        `options` are device options (`engine.devices.device_spec`). A model brings its
        own options. Raises NoDeviceAvailable with policy NO_WAIT, and with any policy
        if the pool is too small. Raises DeviceWaitTimeout, and InvalidConfig if an
        option has an invalid value.
        """
        return self._attach(DeviceSpec.of(wanted, options), 1, wait_config)[0]

    def get_devices(
        self,
        count: int,
        wanted: int | Model = 1,
        wait_config: DeviceWaitConfig | None = None,
        beside: Sequence[Device] = (),
    ) -> Sequence[Device]:
        """Attach one device for each replica of a model, each as `get_device` does.
        Attach all of them or none.

        `beside` are devices that other replicas of the model hold, so their units will
        not become free. Raises the errors of `get_device`.
        """
        held = frozenset(unit for device in beside for unit in device.units)
        held &= frozenset(self.units)
        return self._attach(DeviceSpec.of(wanted), count, wait_config, held)

    def get_specific_device(
        self,
        device_id: str,
        wait_config: DeviceWaitConfig | None = None,
        options: Model | Mapping[str, str] | None = None,
    ) -> Device:
        """Attach the device with this id ("cpu:1"), with the options of a model or of
        the caller.
        """
        if device_id not in self.graph_units:
            raise NoDeviceAvailable(
                f"there is no device {device_id!r}; the pool has "
                f"{_listed(self.graph_units)}"
            )
        if isinstance(options, Model):
            options = DeviceSpec.of(options).options
        spec = DeviceSpec(1, options or {})
        wait = wait_config or DeviceWaitConfig()
        hint = "wait for it with a DeviceWaitConfig, or use another device"
        claims = _claim([device_id], 1, 1, wait, hint)
        return self._devices(claims, spec)[0]

    def create_ipu_model_device(
        self, wanted: int | Model = 1, ipu_version: int = 2, tiles_per_ipu: int = 0
    ) -> Device:
        """Return a device outside the pool, which takes no unit of the pool. Like
        Poplar's IPU model, it is software instead of hardware.

        The device reports `ipu_version`, or the version that the model states.
        `tiles_per_ipu` (0: all 1472) scales its threads: a fraction of the tiles gives
        the same fraction of the threads, at least one. Raises InvalidConfig for
        hardware that does not exist.
        """
        spec = DeviceSpec.of(wanted)
        if isinstance(wanted, Model):
            ipu_version = wanted.metadata.ipu_version or ipu_version
        checked_ipu_model(spec.num_ipus, ipu_version, tiles_per_ipu)
        number = next(_MODEL_NUMBERS)
        units = [
            f"{MODEL_KIND}:{os.getpid()}.{number}.{n}" for n in range(spec.num_ipus)
        ]

        def threads() -> int:
            share = spec.threads or self.plan.threads(1)
            return max(1, share * tiles_per_ipu // TILES) if tiles_per_ipu else share

        spin_us, ping = self.plan.spin_us, self._ping_timeout
        return Device(units, [], threads, [_CPU], spin_us, ipu_version, None, ping)

    def create_python_device(self, options: PythonOptions) -> Device:
        """Return a process for one Python model, started according to `options`.

        If the pool has units of kind `python`, the process takes one of them
        (NoDeviceAvailable if none is free). Otherwise the process is a device outside
        the pool. The number of those is unlimited. Raises DeviceLost with the printed
        output if the process does not start.
        """
        units = [unit for unit in self.units if _kind(unit) == PYTHON_KIND]
        claims: Mapping[str, socket.socket] = {}
        if units:
            claims = next(iter(_try_claim(units, 1, 1)), {})
            if not claims:
                raise NoDeviceAvailable(
                    f"no device is free for a Python model: all of {_listed(units)} "
                    "are attached; configure more, such as python:"
                    f"{len(units) + 1}"
                )
        mine = list(claims)
        if not mine:
            mine = [f"{PYTHON_KIND}:{os.getpid()}.{next(_MODEL_NUMBERS)}"]
        try:
            return Device(
                mine,
                list(claims.values()),
                lambda: self.plan.threads(1),
                [],
                self.plan.spin_us,
                UNKNOWN_VERSION,
                options,
                self._ping_timeout,
            )
        except BaseException:
            _free(claims)
            raise

    def _attach(
        self,
        spec: DeviceSpec,
        count: int,
        wait: DeviceWaitConfig | None,
        held: frozenset[str] = frozenset(),
    ) -> Sequence[Device]:
        """Attach `count` devices for one spec. `held` are devices that the caller
        keeps.
        """
        size = spec.num_ipus
        units = [unit for unit in self.graph_units if unit not in held]
        if size < 1 or not 1 <= count <= _most(units, size):
            raise NoDeviceAvailable(self._why_never(size, count, len(held)))
        more = self._how_to_have(len(self.graph_units) + size * count)
        hint = f"wait for one with a DeviceWaitConfig, or {more}"
        claims = _claim(units, size, count, wait or DeviceWaitConfig(), hint)
        return self._devices(claims, spec)

    def _devices(
        self, claims: Sequence[Mapping[str, socket.socket]], spec: DeviceSpec
    ) -> Sequence[Device]:
        """Return the devices of claimed units, each with its process."""
        size, spin_us, ping = spec.num_ipus, self.plan.spin_us, self._ping_timeout

        def threads() -> int:
            return spec.threads or self.plan.threads(size)

        devices: list[Device] = []
        try:
            for mine in claims:
                units, locks = list(mine), list(mine.values())
                providers = _providers(units[0])
                device = Device(
                    units, locks, threads, providers, spin_us, ping_timeout=ping
                )
                devices.append(device)
        except BaseException:
            for device in devices:
                device.close()
            for mine in claims:
                _free(mine)
            raise
        return devices

    def _why_never(self, size: int, count: int, held: int) -> str:
        """Return the message for a request that exceeds the pool. It names the setting
        to change.
        """
        if size < 1:
            return f"a device must have at least 1 unit, got num_ipus={size}"
        if count < 1:
            return f"a model must have at least 1 replica, got {count}"
        replicas = count > 1 or held > 0
        wanted = f"a device of {counted(size, 'unit')} is needed"
        if replicas:
            wanted = (
                f"{counted(count, 'replica')} of {counted(size, 'unit')} each are "
                "needed"
            )
        if held:
            wanted += f", besides {counted(held, 'unit')} that other replicas hold"
        units = self.graph_units
        text = f"{wanted}, but the pool has {len(units)} ({_listed(units)})"
        hint = self._how_to_have(count * size + held)
        return f"{text}; {hint}" + " or lower replication_factor" * replicas

    def _how_to_have(self, count: int) -> str:
        """Return what a user must set to get a pool of `count` devices."""
        if self._is_argument:
            return "configure more devices"
        if count > MAX_DEVICES or any(_kind(unit) != "cpu" for unit in self.units):
            return f"configure more devices in {VARIABLE}"
        return f"set {VARIABLE}=cpu:{count}"

    def __repr__(self) -> str:
        return f"<DeviceManager {_listed(self.units)}>"


def _cpu_devices(overcommit: bool) -> tuple[str, ...]:
    """Return the default pool, or all CPU devices if the manager may overcommit."""
    cores = usable_cores()
    count = max(OVERCOMMITTED, 2 * cores) if overcommit else max(MIN_DEVICES, cores)
    return parse_devices(f"cpu:{min(count, MAX_DEVICES)}")


def _listed(units: Sequence[str]) -> str:
    if len(units) > 8:
        return f"{', '.join(units[:2])}, ... {units[-1]}"
    return ", ".join(units)


def _kind(unit: str) -> str:
    return unit.partition(":")[0]


def _providers(unit: str) -> list[str]:
    """Return ONNX Runtime's providers for a unit of the pool, the best one first."""
    kind, _, number = unit.partition(":")
    return [f"CUDAExecutionProvider:{number}", _CPU] if kind == "cuda" else [_CPU]


def _has_gpu_build() -> bool:
    """Return whether the installed ONNX Runtime has CUDA. Does not load it."""
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return False
    return any(Path(spec.origin).parent.glob("capi/*providers_cuda*"))


def _most(units: Sequence[str], size: int) -> int:
    """Return how many devices of `size` units each the `units` can form. A device has
    units of one kind.
    """
    kinds = Counter(_kind(unit) for unit in units)
    return sum(number // size for number in kinds.values())


def _claim(
    candidates: Sequence[str], size: int, count: int, wait: DeviceWaitConfig, hint: str
) -> Sequence[Mapping[str, socket.socket]]:
    """Claim `count` devices of `size` of these units each. Wait as configured.

    If none is free, `hint` tells the user what to do.
    """
    end = time.monotonic() + wait.timeout
    while True:
        claims = _try_claim(candidates, size, count)
        if claims:
            return claims
        wanted = f"{count * size} of {_listed(candidates)}"
        if wait.strategy is DeviceWaitStrategy.NO_WAIT:
            raise NoDeviceAvailable(f"no device is free: need {wanted}; {hint}")
        pause = max(0.001, wait.sleep_time)
        if wait.strategy is DeviceWaitStrategy.WAIT_WITH_TIMEOUT:
            left = end - time.monotonic()
            if left <= 0:
                raise DeviceWaitTimeout(
                    f"no device became free within {wait.timeout:g} s: need {wanted}; "
                    f"{hint}"
                )
            pause = min(pause, left)
        logger.info("waiting for a free device: need %s", wanted)
        time.sleep(pause)


def _try_claim(
    candidates: Sequence[str], size: int, count: int
) -> Sequence[Mapping[str, socket.socket]]:
    """Return claims on `count` times `size` free units of one kind. Claim all or none,
    because two callers that each hold units the other needs would wait for ever.
    """
    groups: list[dict[str, socket.socket]] = []
    for kind in dict.fromkeys(_kind(unit) for unit in candidates):
        group: dict[str, socket.socket] = {}
        for unit in candidates:
            if len(groups) == count:
                return groups
            if _kind(unit) == kind and (sock := try_claim(unit)) is not None:
                group[unit] = sock
                if len(group) == size:
                    groups.append(group)
                    group = {}
        _free(group)
    if len(groups) == count:
        return groups
    for group in groups:
        _free(group)
    return []


def _free(claims: Mapping[str, socket.socket]) -> None:
    for sock in claims.values():
        sock.close()


def _info(unit: str, claimed: bool) -> DeviceInfo:
    if not claimed:
        return DeviceInfo(unit, "free")
    try:
        answer, fds = control.call(address_of(unit), Ping(), Status, timeout=1.0)
        close_all(fds)
    except (EngineError, OSError):
        return DeviceInfo(unit, "attached")
    return DeviceInfo(unit, "attached", answer.pid, answer.owner)
