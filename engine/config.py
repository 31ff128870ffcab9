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

#: Each level has a channel of its own in each replica.
MAX_PRIORITY_LEVELS = 32
MAX_WEIGHT = 100
_LEVEL_BITS = _WEIGHT_BITS = 8
#: `batching_dim` that means: no dynamic batch (Model Runtime User Guide 3.3).
NO_BATCHING_DIM = 0xFFFFFFFF
#: Nanoseconds that mean: never (Model Runtime: the largest there are).
NEVER_NS = 2**63 - 1
#: `max_look_ahead` that means: as far as there are requests.
UNLIMITED = "unlimited"

FlushCallback: TypeAlias = Callable[
    [str, dict[str, npt.NDArray[Any]], dict[str, npt.NDArray[Any]]], None
]
"""Called with the name of the tensor that a device waits for, and two empty mappings
to fill in (`ModelRunnerConfig.flush_callback`)."""


class DeviceWaitStrategy(IntEnum):
    """Strategies when no device is free (Model Runtime: `DeviceWaitStrategy`)."""

    NO_WAIT = 0
    WAIT_WITH_TIMEOUT = 1
    WAIT_FOREVER = 2

    __str__ = Enum.__str__
    __format__ = Enum.__format__


@dataclass(frozen=True, slots=True)
class DeviceWaitConfig:
    """Retries when attaching to a device (Model Runtime: `DeviceWaitConfig`).

    `timeout` (seconds) counts only for WAIT_WITH_TIMEOUT; `sleep_time` (seconds)
    is the pause between two tries of the waiting strategies.
    """

    strategy: DeviceWaitStrategy = DeviceWaitStrategy.NO_WAIT
    timeout: float = 0.0
    sleep_time: float = 15.0

    def __post_init__(self) -> None:
        for name in ("timeout", "sleep_time"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                msg = f"DeviceWaitConfig.{name} must be >= 0 seconds, got {value!r}"
                raise InvalidConfig(msg)

    @classmethod
    def with_timeout(cls, timeout: float, sleep_time: float = 15.0) -> DeviceWaitConfig:
        return cls(DeviceWaitStrategy.WAIT_WITH_TIMEOUT, timeout, sleep_time)


class AttachedDevice(Protocol):
    """The part of a `Device` that a configuration needs: a runner accepts
    nothing else.
    """

    @property
    def id(self) -> str: ...


@dataclass(frozen=True, slots=True)
class ModelRunnerConfig:
    """Options of a `ModelRunner`.

    Names and defaults are Model Runtime's (User Guide 3.3) if it has the option:
    `replication_factor` replicas, each with requests of its own; `run_save_programs`
    runs the save programs of each replica when the runner is closed and puts what they
    deliver into the arrays of `replica_to_save_programs_outputs` (by replica, by tensor
    name; what has no array is left out);
    `frozen_inputs` are constants that leave the request; `replica_to_device` gives
    replicas a device, the rest are attached by `device_wait_config`;
    `check_package_hash` compares the recorded digests of the executable with what is
    about to run; `validate_io_params` checks each request; `auto_reset` brings a lost
    device back; `execute` and `execute_async` wait while
    `ring_buffer_size_multiplier * batch` requests, 16 at least, are in flight.

    `batching_dim` is the dimension whose size requests may choose. Without it requests
    are whole compiled batches (None: the first dimension if the model states that its
    rows may be mixed, else one compiled batch or whole device iterations).

    A request that does not fill a run waits `timeout_ns` for others (0: for ever), then
    zeros complete it; where `is_batch_size_timeout_enabled`, an incomplete batch waits
    `batch_size_timeout_ns` and a run that lacks whole batches
    `data_parallel_timeout_ns` instead (`NEVER_NS`: for ever).
    With `flush_on_waiting_outputs` rows of abandoned requests are not run;
    `flush_callback` may supply the missing rows; `max_look_ahead` is how many runs
    ("unlimited", or a number) are prepared beyond the next.
    `request_tracepoints_buffer_size` requests are kept of each replica (0: all), where
    `record_tracepoints` says to record any.

    Ours: `max_batch_size` rows run together at most (0: as the model says);
    `preferred_batch_sizes` are formed if the requests that wait make one up, without
    delay; `max_queue_delay` seconds a free device waits for more rows if a run takes
    any number of them (0: never);
    if `ragged`, rows of different length run together if the file says that padding
    changes none: as long as rows times the longest are at most `max_batch_tokens` (0:
    as the device says) and no more than the part `max_padding` of them is padding;
    such requests get `optional_outputs` only if they ask for them
    (`submit(optional=True)`), else these are empty;
    `max_queue_size` requests may wait in one replica; `priority_levels` of requests,
    1 the highest, each with a queue of its own (0: one queue for all), of which
    `default_priority` is that of requests that name none (0: the middle one, and of
    two the lower) and `priority_queue_sizes` bounds single ones; `channel_memory` bytes
    of shared memory one replica may take per direction (touched only when used), for
    each level; `load_timeout` seconds loading may take on one device, `run_timeout`
    seconds one run may (0: as long as it does), after which the model takes no more
    requests (`ModelRunner.fail`): who drives a device sees to that
    (`Device.judge_run`).
    """

    replication_factor: int = 1
    run_save_programs: bool = False
    frozen_inputs: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    replica_to_save_programs_outputs: Mapping[int, Mapping[str, npt.NDArray[Any]]] = (
        field(default_factory=dict)
    )
    replica_to_device: Mapping[int, AttachedDevice] = field(default_factory=dict)
    device_wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    check_package_hash: bool = True
    validate_io_params: bool = True
    auto_reset: bool = False
    ring_buffer_size_multiplier: int = 2
    batching_dim: int | None = NO_BATCHING_DIM
    timeout_ns: int = 5_000_000_000
    is_batch_size_timeout_enabled: bool = False
    batch_size_timeout_ns: int = NEVER_NS
    data_parallel_timeout_ns: int = NEVER_NS
    flush_on_waiting_outputs: bool = False
    flush_callback: FlushCallback | None = None
    max_look_ahead: str = UNLIMITED
    max_batch_size: int = 0
    preferred_batch_sizes: tuple[int, ...] = ()
    max_queue_delay: float = 0.0
    ragged: bool = True
    max_batch_tokens: int = 0
    max_padding: float = 0.1
    optional_outputs: tuple[str, ...] = ()
    max_queue_size: int = 1024
    priority_levels: int = 0
    default_priority: int = 0
    priority_queue_sizes: Mapping[int, int] = field(default_factory=dict)
    channel_memory: int = 256 * 1024 * 1024
    batching: bool | None = None
    record_tracepoints: bool = False
    request_tracepoints_buffer_size: int = 1000
    load_timeout: float = 0.0
    run_timeout: float = 0.0

    def __post_init__(self) -> None:
        self._take_plain_numbers()
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
            msg = f'max_look_ahead must be "unlimited" or a number, got {look_ahead!r}'
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

    def _take_plain_numbers(self) -> None:
        """Accept numbers and booleans of numpy, which cannot be sent."""
        for option in fields(self):
            value = getattr(self, option.name)
            if option.type == "bool":
                object.__setattr__(self, option.name, bool(value))
            elif value is not None and option.type in ("int", "int | None"):
                try:
                    object.__setattr__(self, option.name, operator.index(value))
                except TypeError:
                    msg = f"{option.name} must be a whole number, got {value!r}"
                    raise InvalidConfig(msg) from None

    def _check_queue_sizes(self) -> None:
        for level, limit in self.priority_queue_sizes.items():
            if not (1 <= level <= self.priority_levels and 1 <= limit <= 65536):
                msg = (
                    f"priority_queue_sizes[{level}] = {limit}: expected a level from 1 "
                    f"to {self.priority_levels} and a size from 1 to 65536"
                )
                raise InvalidConfig(msg)

    def _replicas(self, name: str) -> None:
        for replica in getattr(self, name):
            if not 0 <= replica < self.replication_factor:
                msg = (
                    f"{name} names replica {replica}, but there are "
                    f"{self.replication_factor} (0 to {self.replication_factor - 1})"
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
