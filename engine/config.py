"""Options of devices and runners: frozen values, checked once when made."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import Enum, IntEnum
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidConfig

#: Most priority levels. Each level has a channel of its own in each replica.
MAX_PRIORITY_LEVELS = 32
MAX_WEIGHT = 100
_LEVEL_BITS = _WEIGHT_BITS = 8
#: Value of `batching_dim` for no dynamic batch (Model Runtime User Guide 3.3).
NO_BATCHING_DIM = 0xFFFFFFFF
#: Nanoseconds that mean never: the largest value, as in Model Runtime.
NEVER_NS = 2**63 - 1
#: Value of `max_look_ahead` for no limit.
UNLIMITED = "unlimited"

FlushCallback: TypeAlias = Callable[
    [str, dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]], None
]
"""A function that receives the name of the tensor that a device waits for, and two
empty mappings. It fills the mappings with inputs and outputs.
"""


class DeviceWaitStrategy(IntEnum):
    """Strategies if no device is free (Model Runtime: `DeviceWaitStrategy`)."""

    NO_WAIT = 0
    WAIT_WITH_TIMEOUT = 1
    WAIT_FOREVER = 2

    __str__ = Enum.__str__
    __format__ = Enum.__format__


#: Converts a value to an option's type, also from numpy's numbers and booleans, which
#: cannot be sent, or returns None; and the words for the type.
_TYPES: Mapping[str, tuple[Callable[[Any], object], str]] = {
    "bool": (bool, "True or False"),
    "int": (operator.index, "a whole number"),
    "float": (float, "a number"),
    "tuple[int, ...]": (lambda v: tuple(map(operator.index, v)), "whole numbers"),
    "tuple[str, ...]": (
        lambda v: tuple(v) if all(isinstance(name, str) for name in v) else None,
        "several names",
    ),
    "DeviceWaitStrategy": (DeviceWaitStrategy, "a DeviceWaitStrategy"),
    "DeviceWaitConfig": (
        lambda v: v if isinstance(v, DeviceWaitConfig) else None,
        "a DeviceWaitConfig",
    ),
    "Mapping[int, int]": (
        lambda v: {operator.index(k): operator.index(n) for k, n in dict(v).items()},
        "sizes by level",
    ),
    "Mapping[int, AttachedDevice]": (
        lambda v: {operator.index(k): device for k, device in dict(v).items()},
        "devices by replica",
    ),
    "Mapping[int, Mapping[str, npt.NDArray[Any]]]": (
        lambda v: {operator.index(k): dict(arrays) for k, arrays in dict(v).items()},
        "arrays by replica and name",
    ),
    "Mapping[str, npt.NDArray[Any]]": (dict, "arrays by name"),
}


def _take_plain(config: DeviceWaitConfig | ModelRunnerConfig, label: str = "") -> None:
    """Convert the options to their types. Raises InvalidConfig for other values."""
    for option in fields(config):
        kind, _, absent = str(option.type).partition(" | ")
        value = getattr(config, option.name)
        if kind not in _TYPES or (absent and value is None):
            continue
        convert, words = _TYPES[kind]
        try:
            # Even "no" would be true.
            plain = None if isinstance(value, str) else convert(value)
        except (TypeError, ValueError, OverflowError):
            plain = None
        if plain is None:
            msg = f"{label}{option.name} must be {words}, got {value!r:.80}"
            raise InvalidConfig(msg)
        object.__setattr__(config, option.name, plain)


@dataclass(frozen=True, slots=True)
class DeviceWaitConfig:
    """Behaviour if no device is free (Model Runtime: `DeviceWaitConfig`)."""

    strategy: DeviceWaitStrategy = DeviceWaitStrategy.NO_WAIT
    """Whether attaching fails immediately, or waits for a device."""
    timeout: float = 0.0
    """Seconds after which WAIT_WITH_TIMEOUT fails."""
    sleep_time: float = 15.0
    """Seconds between two attempts to attach a device."""

    def __post_init__(self) -> None:
        _take_plain(self, "DeviceWaitConfig.")
        for name in ("timeout", "sleep_time"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                msg = f"DeviceWaitConfig.{name} must be at least 0 s, got {value!r}"
                raise InvalidConfig(msg)

    @classmethod
    def with_timeout(cls, timeout: float, sleep_time: float = 15.0) -> DeviceWaitConfig:
        return cls(DeviceWaitStrategy.WAIT_WITH_TIMEOUT, timeout, sleep_time)


class AttachedDevice(Protocol):
    """The part of a `Device` that a configuration needs. A runner accepts only
    devices.
    """

    @property
    def id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ModelRunnerConfig:
    """Options of a `ModelRunner`, with the names and defaults of Model Runtime (User
    Guide 3.3) where it has the option.

    Raises InvalidConfig if an option has a value outside its range.
    """

    replication_factor: int = 1
    """Number of replicas, 1 to 1024. Each has its own requests."""
    run_save_programs: bool = False
    """Whether `close` runs the save programs of each replica."""
    frozen_inputs: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Constant inputs by name. Requests do not contain them."""
    replica_to_save_programs_outputs: Mapping[int, Mapping[str, npt.NDArray[Any]]] = (
        field(default_factory=dict)
    )
    """Arrays for the outputs of the save programs, by replica and tensor name. Outputs
    without an array are dropped.
    """
    replica_to_device: Mapping[int, AttachedDevice] = field(default_factory=dict)
    """Devices by replica. The runner attaches devices for all other replicas."""
    device_wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    """Behaviour if no device is free when the runner attaches one."""
    check_package_hash: bool = True
    """Whether loading compares the recorded digests of the executable's graphs with the
    graphs in the file.
    """
    validate_io_params: bool = True
    """Whether each request's names, types and shapes are checked."""
    auto_reset: bool = False
    """Whether a lost device is started again and its models are loaded again."""
    ring_buffer_size_multiplier: int = 2
    """Requests in flight beyond which `execute` and `execute_async` block, in batches.
    The limit is at least 16 requests.
    """
    batching_dim: int | None = NO_BATCHING_DIM
    """Dimension whose size requests may choose.

    With `NO_BATCHING_DIM`, each request is one compiled batch. With None, the dimension
    is the first if the model states that its rows may be mixed. Otherwise a request is
    one compiled batch, or whole device iterations.
    """
    timeout_ns: int = 5_000_000_000
    """Nanoseconds that a request which does not fill a run waits for other requests (0:
    for ever). Then zeros complete the run.
    """
    is_batch_size_timeout_enabled: bool = False
    """Whether the next two timeouts replace `timeout_ns`."""
    batch_size_timeout_ns: int = NEVER_NS
    """Nanoseconds that an incomplete batch waits (`NEVER_NS`: for ever)."""
    data_parallel_timeout_ns: int = NEVER_NS
    """Nanoseconds that a run waits for missing whole batches (`NEVER_NS`: for ever)."""
    flush_on_waiting_outputs: bool = False
    """Whether the rows of abandoned requests are dropped instead of run."""
    flush_callback: FlushCallback | None = None
    """Function that may supply the rows that complete a run."""
    max_look_ahead: str = UNLIMITED
    """Runs that are prepared beyond the next one: "unlimited", or a number as a
    string.
    """
    max_batch_size: int = 0
    """Most rows that run together (0: the model's own limit). PopGate's own option,
    like those below, but for the tracepoints.
    """
    preferred_batch_sizes: tuple[int, ...] = ()
    """Batch sizes that run without delay as soon as the waiting requests make one up.
    """
    max_queue_delay: float = 0.0
    """Seconds that a free device waits for more rows (0: never). It applies to models
    whose runs accept any number of rows.
    """
    ragged: bool = True
    """Whether rows of different length run together, padded. It requires that the file
    states that padding changes no row.
    """
    max_batch_tokens: int = 0
    """Most tokens of a padded batch: its rows times the length of its longest row (0:
    the device's own limit).
    """
    max_padding: float = 0.1
    """Largest share of padding among the tokens of a batch, 0 to 0.9."""
    optional_outputs: tuple[str, ...] = ()
    """Outputs that a request receives only if it asks for them with
    `submit(optional=True)`. Otherwise they are empty.
    """
    max_queue_size: int = 1024
    """Most requests that wait in one replica. Further requests fail with `QueueFull`.
    """
    priority_levels: int = 0
    """Number of priority levels, each with its own queue. Level 1 is the highest (0:
    one queue for all requests).
    """
    default_priority: int = 0
    """Level of requests that state none (0: the middle level, or level 2 if there are
    two).
    """
    priority_queue_sizes: Mapping[int, int] = field(default_factory=dict)
    """Limits of single levels, which override `max_queue_size`."""
    channel_memory: int = 256 * 1024 * 1024
    """Most bytes of shared memory for each replica, direction and level. The kernel
    allocates only pages that are used.
    """
    batching: bool | None = None
    """Whether rows of different requests may run together, overriding the model's
    file (None: as the file states).
    """
    record_tracepoints: bool = False
    """Whether the times of each request are recorded."""
    request_tracepoints_buffer_size: int = 1000
    """Recorded requests that are kept for each replica (0: all)."""
    load_timeout: float = 0.0
    """Seconds after which loading on one device fails (0: no limit)."""
    run_timeout: float = 0.0
    """Seconds after which a run fails (0: no limit). The model then accepts no more
    requests (`ModelRunner.fail`). The owner of the device must check this with
    `RunLimits.judge`.
    """

    def __post_init__(self) -> None:
        _take_plain(self)
        self._in_range("replication_factor", 1, 1024)
        self._in_range("ring_buffer_size_multiplier", 1, 1024)
        self._in_range("max_batch_size", 0, 65536)
        self._in_range("max_queue_delay", 0, 60)
        self._in_range("max_batch_tokens", 0, 1 << 24)
        self._in_range("max_padding", 0, 0.9)
        for size in self.preferred_batch_sizes:
            if not 1 <= size <= (self.max_batch_size or 65536):
                most = self.max_batch_size or 65536
                msg = f"preferred_batch_sizes must be between 1 and {most}, got {size}"
                raise InvalidConfig(msg)
        self._in_range("max_queue_size", 1, 65536)
        self._in_range("load_timeout", 0, 1e9)
        self._in_range("run_timeout", 0, 1e9)
        self._in_range("priority_levels", 0, MAX_PRIORITY_LEVELS)
        self._in_range("default_priority", 0, self.priority_levels)
        self._in_range("channel_memory", 1 << 16, 1 << 38)
        if self.batching_dim is not None:
            self._in_range("batching_dim", 0, NO_BATCHING_DIM)
        for name in ("timeout_ns", "batch_size_timeout_ns", "data_parallel_timeout_ns"):
            self._in_range(name, 0, NEVER_NS)
        look_ahead = self.max_look_ahead
        if look_ahead != UNLIMITED and not (
            isinstance(look_ahead, str)
            and look_ahead.isdecimal()
            and len(look_ahead) < 10
        ):
            msg = (
                'max_look_ahead must be "unlimited" or a whole number as a string, got '
                f"{look_ahead!r}"
            )
            raise InvalidConfig(msg)
        self._in_range("request_tracepoints_buffer_size", 0, 1 << 32)
        self._check_queue_sizes()
        if self.flush_callback is not None and not callable(self.flush_callback):
            msg = f"flush_callback must be callable, got {self.flush_callback!r}"
            raise InvalidConfig(msg)
        self._replicas("replica_to_device")
        self._replicas("replica_to_save_programs_outputs")
        for name, value in self.frozen_inputs.items():
            if not isinstance(value, np.ndarray):
                kind = type(value).__name__
                msg = f"frozen_inputs[{name!r}] must be a numpy array, got {kind}"
                raise InvalidConfig(msg)

    @property
    def default_level(self) -> int:
        """Return the level of requests that state none; 0 if there are no levels."""
        middle = self.priority_levels // 2 + 1 if self.priority_levels else 0
        return self.default_priority or middle

    def _check_queue_sizes(self) -> None:
        for level, limit in self.priority_queue_sizes.items():
            if not (1 <= level <= self.priority_levels and 1 <= limit <= 65536):
                msg = (
                    "priority_queue_sizes must map levels from 1 to "
                    f"{self.priority_levels} to sizes from 1 to 65536, got "
                    f"{level}: {limit}"
                )
                raise InvalidConfig(msg)

    def _replicas(self, name: str) -> None:
        for replica in getattr(self, name):
            if not 0 <= replica < self.replication_factor:
                msg = (
                    f"{name} must name replicas from 0 to "
                    f"{self.replication_factor - 1} (replication_factor is "
                    f"{self.replication_factor}), got {replica}"
                )
                raise InvalidConfig(msg)

    def _in_range(self, name: str, low: float, high: float) -> None:
        value = getattr(self, name)
        if not low <= value <= high:
            msg = f"{name} must be between {low} and {high}, got {value!r}"
            raise InvalidConfig(msg)


def weighted(priority: int, weight: int, lane: int = 0) -> int:
    """Encode a request's `priority` (of `submit`) together with the weight of its user.

    Requests with the same level, weight and lane share a line, and a replica serves the
    lines of a level by their weights; the default weight is 1. So users of the same
    weight get equal shares if each has a lane. Every line is a channel, so use few. The
    result is negative, so it equals no level.
    """
    level = max(0, min(priority, MAX_PRIORITY_LEVELS + 1))
    return -((lane << _WEIGHT_BITS | weight) << _LEVEL_BITS | level)


def weighted_with(stated: int) -> tuple[int, int, int]:
    """Return the arguments of the call of `weighted`; unknown levels are one."""
    share = -stated >> _LEVEL_BITS
    weight = share & (1 << _WEIGHT_BITS) - 1
    return -stated & (1 << _LEVEL_BITS) - 1, weight, share >> _WEIGHT_BITS
