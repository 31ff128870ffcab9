"""`DeviceManager`: the machine's devices, and how to attach to one.

A device of kind `cpu` is a process of ours that runs graphs on the processor; of kind
`cuda`, on a GPU (with the GPU build of ONNX Runtime). Which there are is written as

    cpu:2        two devices, cpu:0 and cpu:1
    cpu:0-3      these four
    cpu:1-1      this one
    cuda:0       the GPU of that number
    cpu:2,cuda:0 both kinds

Default: as many CPU devices as usable cores, and at least two. Attaching is exclusive
across processes (engine/device_lock.py); `DeviceWaitConfig` says how it retries, here
and nowhere else.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import re
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from engine import control
from engine.config import DeviceWaitConfig, DeviceWaitStrategy
from engine.cores import cpu_budget, usable_cores
from engine.device import Device
from engine.device_lock import address_of, claimed_units, try_claim
from engine.device_request import (
    SMALL_TILES,
    TILES,
    UNKNOWN_VERSION,
    DeviceRequest,
    checked_ipu_model,
)
from engine.errors import (
    DeviceWaitTimeout,
    EngineError,
    InvalidConfig,
    NoDeviceAvailable,
)
from engine.thread_plan import ThreadPlan
from popef_io import Model

logger = logging.getLogger(__name__)

#: More devices than this in one specification is a slip of the pen.
MAX_DEVICES = 1024
_ITEM = re.compile(r"(?P<kind>cpu|cuda):(?P<first>\d{1,4})(-(?P<last>\d{1,4}))?")
_CPU = "CPUExecutionProvider"

#: Software devices that this process has made; their names are nobody else's.
_MODEL_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device of the pool; `pid` and `owner` are None unless it is attached."""

    id: str
    state: str
    pid: int | None = None
    owner: int | None = None


def parse_devices(specification: str) -> tuple[str, ...]:
    """The ids a specification names; InvalidConfig where it is not understood."""
    ids: list[str] = []
    for item in specification.split(","):
        match = _ITEM.fullmatch(item.strip())
        if match is None:
            raise InvalidConfig(
                f"cannot understand devices {item.strip()!r}: expected cpu:COUNT, "
                "cpu:FIRST-LAST or cuda:NUMBER, several with commas"
            )
        kind, first = match["kind"], int(match["first"])
        if match["last"] is not None:
            numbers = range(first, int(match["last"]) + 1)
        else:
            numbers = range(first) if kind == "cpu" else range(first, first + 1)
        if not 0 < len(numbers) <= MAX_DEVICES:
            raise InvalidConfig(
                f"devices {item.strip()!r} names {len(numbers)} devices; "
                f"1 to {MAX_DEVICES} are possible"
            )
        ids += [f"{kind}:{number}" for number in numbers]
    return tuple(dict.fromkeys(ids))


class DeviceManager:
    """Finds and attaches devices; does not own them (Model Runtime: `DeviceManager`).

    `reserve_cores` are left to other work when threads are shared out (a gateway
    keeps one): `plan` says how. Thread-safe.
    Raises InvalidConfig for devices that cannot be understood, or not be used.
    """

    def __init__(self, devices: str | None = None, *, reserve_cores: int = 0) -> None:
        self.units = parse_devices(devices or f"cpu:{max(2, usable_cores())}")
        gpus = [unit for unit in self.units if unit.startswith("cuda:")]
        if gpus and not _has_gpu_build():
            raise InvalidConfig(
                f"device {gpus[0]!r} needs the GPU build of ONNX Runtime; install "
                "onnxruntime-gpu in place of onnxruntime"
            )
        shares = 1 if devices is None else len(self.units)
        self.plan = ThreadPlan(cpu_budget(), shares, reserve_cores)

    def list(self) -> tuple[DeviceInfo, ...]:
        """Every device of the pool and who has it."""
        claimed = claimed_units(self.units)
        return tuple(_info(unit, unit in claimed) for unit in self.units)

    def ipu_hardware_version(self) -> int:
        """-1: devices of an architecture that the original does not know (0 would say
        that there are none, 2 and 21 that they are IPUs)."""
        return UNKNOWN_VERSION

    def get_device(
        self,
        wanted: int | Model = 1,
        wait_config: DeviceWaitConfig | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Device:
        """Attach free units as one device: so many, or as many as a model needs.

        `options` are device options (`engine.device_request`); a model brings its own.
        Raises NoDeviceAvailable (policy NO_WAIT) or DeviceWaitTimeout, InvalidConfig
        for an option with a value it cannot have.
        """
        request = DeviceRequest.of(wanted, options)
        if not 1 <= request.num_ipus <= len(self.units):
            raise NoDeviceAvailable(
                f"{request.num_ipus} devices are wanted as one, the pool has "
                f"{len(self.units)}: "
                f"{', '.join(self.units)}"
            )
        return self._attach(self.units, request, wait_config or DeviceWaitConfig())

    def try_get_device(
        self,
        wanted: int | Model = 1,
        wait_config: DeviceWaitConfig | None = None,
        options: Mapping[str, str] | None = None,
    ) -> Device | None:
        """`get_device`, but None where it cannot be had."""
        with contextlib.suppress(NoDeviceAvailable, DeviceWaitTimeout):
            return self.get_device(wanted, wait_config, options)
        return None

    def get_specific_device(
        self,
        device_id: str,
        wait_config: DeviceWaitConfig | None = None,
        options: Model | Mapping[str, str] | None = None,
    ) -> Device:
        """Attach the device of this id ("cpu:1"), with the options of a model or of the
        caller."""
        if device_id not in self.units:
            raise NoDeviceAvailable(
                f"there is no device {device_id!r}; the pool has "
                f"{', '.join(self.units)}"
            )
        if isinstance(options, Model):
            options = DeviceRequest.of(options).options
        request = DeviceRequest(1, options or {})
        return self._attach([device_id], request, wait_config or DeviceWaitConfig())

    def try_get_specific_device(
        self,
        device_id: str,
        wait_config: DeviceWaitConfig | None = None,
        options: Model | Mapping[str, str] | None = None,
    ) -> Device | None:
        """`get_specific_device`, but None where it cannot be had."""
        with contextlib.suppress(NoDeviceAvailable, DeviceWaitTimeout):
            return self.get_specific_device(device_id, wait_config, options)
        return None

    def create_ipu_model_device(
        self, wanted: int | Model = 1, ipu_version: int = 2, tiles_per_ipu: int = 0
    ) -> Device:
        """A device outside the pool, that takes no unit of it: software instead of
        hardware, as Poplar's IPU model is.

        It calls itself `ipu_version`, which for a model is the model's. `tiles_per_ipu`
        (0: all 1472) scales its threads: a part of the tiles has that part of them, one
        at least. Raises InvalidConfig for what there is not.
        """
        request = DeviceRequest.of(wanted)
        if isinstance(wanted, Model):
            ipu_version = wanted.metadata.ipu_version or ipu_version
        checked_ipu_model(request.num_ipus, ipu_version, tiles_per_ipu)
        number = next(_MODEL_NUMBERS)
        units = [f"model:{os.getpid()}.{number}.{n}" for n in range(request.num_ipus)]
        threads = request.threads or self.plan.threads(1)
        if tiles_per_ipu:
            threads = max(1, threads * tiles_per_ipu // TILES)
        return Device(units, [], threads, [_CPU], self.plan.spin_us, ipu_version)

    def create_small_ipu_model_device(
        self, wanted: int | Model = 1, ipu_version: int = 2
    ) -> Device:
        """`create_ipu_model_device` with four tiles, so with one thread."""
        return self.create_ipu_model_device(wanted, ipu_version, SMALL_TILES)

    def _attach(
        self, candidates: Sequence[str], request: DeviceRequest, wait: DeviceWaitConfig
    ) -> Device:
        claims = self._claim(candidates, request.num_ipus, wait)
        units = list(claims)
        return Device(
            units,
            list(claims.values()),
            request.threads or self.plan.threads(request.num_ipus),
            _providers(units[0]),
            self.plan.spin_us,
        )

    def _claim(
        self, candidates: Sequence[str], count: int, wait: DeviceWaitConfig
    ) -> dict[str, socket.socket]:
        end = time.monotonic() + wait.timeout
        while True:
            claims = _try_claim_all(candidates, count)
            if claims:
                return claims
            wanted = f"{count} of {', '.join(candidates)}"
            if wait.strategy is DeviceWaitStrategy.NO_WAIT:
                raise NoDeviceAvailable(f"no free device: wanted {wanted}")
            pause = max(0.001, wait.sleep_time)
            if wait.strategy is DeviceWaitStrategy.WAIT_WITH_TIMEOUT:
                left = end - time.monotonic()
                if left <= 0:
                    raise DeviceWaitTimeout(
                        f"no device came free within {wait.timeout:g} s: "
                        f"wanted {wanted}"
                    )
                pause = min(pause, left)
            logger.info("waiting for a device: %s", wanted)
            time.sleep(pause)

    def __repr__(self) -> str:
        return f"<DeviceManager {', '.join(self.units)}>"


def _providers(unit: str) -> list[str]:
    """What ONNX Runtime runs graphs with on a unit of the pool, best first."""
    kind, _, number = unit.partition(":")
    return [f"CUDAExecutionProvider:{number}", _CPU] if kind == "cuda" else [_CPU]


def _has_gpu_build() -> bool:
    """Whether the ONNX Runtime that is installed, but need not be loaded, has CUDA."""
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        return False
    return any(Path(spec.origin).parent.glob("capi/*providers_cuda*"))


def _try_claim_all(candidates: Sequence[str], count: int) -> dict[str, socket.socket]:
    """Claims on `count` free units of one kind, or none at all."""
    claims: dict[str, socket.socket] = {}
    for kind in dict.fromkeys(unit.partition(":")[0] for unit in candidates):
        for unit in candidates:
            if unit.partition(":")[0] == kind and (sock := try_claim(unit)) is not None:
                claims[unit] = sock
                if len(claims) == count:
                    return claims
        for sock in claims.values():
            sock.close()
        claims.clear()
    return claims


def _info(unit: str, claimed: bool) -> DeviceInfo:
    if not claimed:
        return DeviceInfo(unit, "free")
    try:
        answer, fds = control.call(address_of(unit), {"op": "ping"}, timeout=1.0)
        control.close_all(fds)
    except (EngineError, OSError):
        return DeviceInfo(unit, "attached")
    return DeviceInfo(unit, "attached", int(answer["pid"]), int(answer["owner"]))
