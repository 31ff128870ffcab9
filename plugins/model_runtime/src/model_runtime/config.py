"""`ModelRunnerConfig`: every option of the guide, under its name and default."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, SupportsIndex, TypeAlias

import engine
from model_runtime.arguments import (
    checked_callback,
    look_ahead,
    optional_callback,
    unsigned,
)
from model_runtime.device_wait import DeviceWaitConfig
from model_runtime.devices import Device
from model_runtime.durations import MAX, Nanoseconds, delta, nanoseconds
from model_runtime.members import Member, Options
from model_runtime.memory import InputMemoryView, OutputMemoryView, arrays_of, mapping
from popef.errors import WrongType
from popef.taking import Text, expected, got, truth
from popef_io import Model, TensorType

NO_BATCHING_DIM = engine.NO_BATCHING_DIM

#: Called with the name of an input that lacks rows, and two views to fill: rows of
#: inputs, and memory for the outputs of those rows. The callback may return two other
#: views instead.
FlushCallback: TypeAlias = Callable[
    [str, InputMemoryView, OutputMemoryView],
    tuple[InputMemoryView, OutputMemoryView] | None,
]
Descs: TypeAlias = Mapping[str, engine.DataDesc]
#: Devices of replicas, by number from 0. Other replicas attach a device themselves.
ReplicaIdToDevice: TypeAlias = dict[int, Device]
#: Memory for the outputs of the save programs of each replica, by number from 0.
ReplicaIdToOutputMemoryView: TypeAlias = dict[int, OutputMemoryView]

#: Requests that may be in flight in one replica: `executeAsync` does not wait.
_MAX_IN_FLIGHT = 65536


def _frozen(given: InputMemoryView | Mapping[Text, Any]) -> InputMemoryView:
    return InputMemoryView(mapping(given))


def _devices(given: Mapping[int, Device]) -> ReplicaIdToDevice:
    return {unsigned(k): expected(v, Device) for k, v in mapping(given).items()}


def _save_outputs(
    given: Mapping[int, Mapping[Text, Any]],
) -> ReplicaIdToOutputMemoryView:
    return {
        unsigned(replica): OutputMemoryView(mapping(memory))
        for replica, memory in mapping(given).items()
    }


def _wait(given: DeviceWaitConfig) -> DeviceWaitConfig:
    return copy.copy(expected(given, DeviceWaitConfig))


def _callback(given: FlushCallback | None) -> FlushCallback | None:
    return optional_callback("flush_callback", given)


class ModelRunnerConfig(Options):
    """Options of a `ModelRunner`, which keeps a copy of them.

    `help(ModelRunnerConfig)` describes each option. Assigned values are copied, except
    memory and devices. A value of another type is refused on assignment. An invalid
    value is refused with `InvalidConfig`, at the latest when a runner is created. A
    duration is a `timedelta`, a `float` of seconds or an `int` of nanoseconds; reading
    it returns a `timedelta`.
    """

    __slots__ = ()

    replication_factor = Member[int, SupportsIndex](
        unsigned,
        1,
        "Number of replicas of the model, each on its own device. Requests "
        "select one by `replica_id`. Default: 1.",
    )
    run_save_programs = Member[bool, Any](
        truth,
        False,
        "Whether to run the save programs of each replica when the runner is "
        "closed. Default: False.",
    )
    thread_safe = Member[bool, Any](
        truth,
        False,
        "Whether several threads may call a replica at once. In PopGate they "
        "always may. Default: False.",
    )
    frozen_inputs = Member[InputMemoryView, Any](
        _frozen,
        {},
        "Memory of constant inputs, by name. Requests then omit these inputs. "
        "The memory overrides data in the file, and can supply weights that "
        "the file lacks. It must not change until the runner is created. "
        "Default: none.",
    )
    replica_to_save_programs_outputs = Member[ReplicaIdToOutputMemoryView, Any](
        _save_outputs,
        {},
        "For each replica, views of memory by name that receive the data of "
        "its save programs. Data without memory are dropped. Default: none.",
    )
    replica_to_device = Member[ReplicaIdToDevice, Any](
        _devices,
        {},
        "The `Device` of a replica, by its number. Other replicas choose a "
        "free device. Default: none.",
    )
    device_wait_config = Member[DeviceWaitConfig, DeviceWaitConfig](
        _wait,
        DeviceWaitConfig(),
        "How to wait for devices, a `DeviceWaitConfig`. Default: raise an "
        "error if no device is free.",
    )
    check_package_hash = Member[bool, Any](
        truth,
        True,
        "Whether to compare the recorded digests of the graphs before loading "
        "them. Default: True.",
    )
    timeout_ns = Member[timedelta, Nanoseconds](
        delta,
        timedelta(seconds=5),
        "How long the rows of an incomplete run wait for rows of other "
        "requests. After that, zeros or the values of `flush_callback` "
        "complete the run. 0: without limit. Default: 5 s.",
    )
    validate_io_params = Member[bool, Any](
        truth,
        True,
        "Whether to check names, types and shapes of each request. If False, "
        "a request may contain only the tensors of one of several fused "
        "models. Default: True.",
    )
    batching_dim = Member[int, SupportsIndex](
        unsigned,
        NO_BATCHING_DIM,
        "The dimension in which requests may have any size. 0xFFFFFFFF: the "
        "first one, in multiples of the compiled batch. Default: 0xFFFFFFFF.",
    )
    auto_reset = Member[bool, Any](
        truth,
        False,
        "Whether to restart a failed device before the next request, if that "
        "can help. If False, every request raises the error. Default: False.",
    )
    max_look_ahead = Member[str, Text | SupportsIndex](
        look_ahead,
        "unlimited",
        'How many runs may be prepared after the next one: "unlimited", or a '
        'number as a string. Default: "unlimited".',
    )
    ring_buffer_size_multiplier = Member[int, SupportsIndex](
        unsigned,
        2,
        "Factor of the number of requests that may be in flight before calls "
        "block: this times the batch size, at least 16. Default: 2.",
    )
    flush_on_waiting_outputs = Member[bool, Any](
        truth,
        False,
        "Whether to leave rows of abandoned requests out of runs, and to "
        "record the times of requests for the monitoring calls. Default: "
        "False.",
    )
    batch_size_timeout_ns = Member[timedelta, Nanoseconds](
        delta,
        MAX,
        "How long an incomplete compiled batch waits, if "
        "`is_batch_size_timeout_enabled`. Default: the maximum, without limit.",
    )
    data_parallel_timeout_ns = Member[timedelta, Nanoseconds](
        delta,
        MAX,
        "How long a run waits whose device iterations lack whole batches, if "
        "`is_batch_size_timeout_enabled`. Default: the maximum, without limit.",
    )
    is_batch_size_timeout_enabled = Member[bool, Any](
        truth,
        False,
        "Whether the two timeouts above apply instead of `timeout_ns`. Default: False.",
    )
    request_tracepoints_buffer_size = Member[int, SupportsIndex](
        unsigned,
        1000,
        "Number of requests of each replica whose times are kept; 0: all. "
        "Default: 1000.",
    )
    flush_callback = Member[FlushCallback | None, FlushCallback | None](
        _callback,
        None,
        "`flush_callback(tensor_id, inputs, outputs)` is called when rows "
        "have waited for `timeout_ns`. It may fill the two empty views, or "
        "return two others. Default: None; zeros complete the run.",
    )

    def to_engine(self, model: Model) -> engine.ModelRunnerConfig:
        """Return the engine's options. Raises InvalidConfig for unsupported options."""
        inputs, outputs = _descs(model, TensorType.INPUT, TensorType.OUTPUT)
        return engine.ModelRunnerConfig(
            replication_factor=self.replication_factor,
            run_save_programs=self.run_save_programs,
            replica_to_save_programs_outputs={
                replica: arrays_of(memory, outputs)
                for replica, memory in self.replica_to_save_programs_outputs.items()
            },
            frozen_inputs=arrays_of(self.frozen_inputs, inputs),
            replica_to_device={
                replica: expected(device, Device).engine
                for replica, device in self.replica_to_device.items()
            },
            device_wait_config=self.device_wait_config.to_engine(),
            check_package_hash=self.check_package_hash,
            validate_io_params=self.validate_io_params,
            auto_reset=self.auto_reset,
            ring_buffer_size_multiplier=self.ring_buffer_size_multiplier,
            batching_dim=self.batching_dim,
            timeout_ns=nanoseconds(self.timeout_ns),
            is_batch_size_timeout_enabled=self.is_batch_size_timeout_enabled,
            batch_size_timeout_ns=nanoseconds(self.batch_size_timeout_ns),
            data_parallel_timeout_ns=nanoseconds(self.data_parallel_timeout_ns),
            flush_on_waiting_outputs=self.flush_on_waiting_outputs,
            flush_callback=_over_views(self.flush_callback, inputs, outputs),
            max_look_ahead=self.max_look_ahead,
            record_tracepoints=self.flush_on_waiting_outputs,
            request_tracepoints_buffer_size=self.request_tracepoints_buffer_size,
            max_queue_size=_MAX_IN_FLIGHT,
        )


def _descs(model: Model, *kinds: TensorType) -> list[dict[str, engine.DataDesc]]:
    """Return the anchors of each kind by name."""
    return [
        {
            anchor.name: engine.DataDesc(
                anchor.name, anchor.tensor_info.shape, anchor.tensor_info.data_type
            )
            for anchor in model.anchors
            if anchor.type is kind
        }
        for kind in kinds
    ]


def _over_views(
    callback: FlushCallback | None, inputs: Descs, outputs: Descs
) -> engine.FlushCallback | None:
    """Return a callback for the engine, which calls `callback` with the original's
    views.
    """
    if callback is None:
        return None
    asked = checked_callback("flush_callback", callback)

    def flush(tensor_id: str, given: dict[str, Any], wanted: dict[str, Any]) -> None:
        views = InputMemoryView(), OutputMemoryView()
        returned = asked(tensor_id, *views)
        if returned is not None:
            if not (isinstance(returned, tuple) and len(returned) == 2):
                raise WrongType(
                    "expected flush_callback to return two views, of inputs and of "
                    f"outputs, or None; {got(returned)}"
                )
            views = returned
        given.update(arrays_of(views[0], inputs))
        wanted.update(arrays_of(views[1], outputs))

    return flush
