"""`ModelRunnerConfig`: every option of the guide, under its name and default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from popef.taking import expected

import engine
from model_runtime.arguments import checked_callback
from model_runtime.device_wait import DeviceWaitConfig
from model_runtime.devices import Device
from model_runtime.durations import MAX_NS, Nanoseconds, nanoseconds
from model_runtime.memory import InputMemoryView, OutputMemoryView, arrays_of
from popef_io import Model, TensorType

NO_BATCHING_DIM = engine.NO_BATCHING_DIM

FlushCallback: TypeAlias = Callable[
    [str, InputMemoryView, OutputMemoryView],
    tuple[InputMemoryView, OutputMemoryView] | None,
]
Descs: TypeAlias = Mapping[str, engine.DataDesc]
ReplicaIdToDevice: TypeAlias = dict[int, Device]
ReplicaIdToOutputMemoryView: TypeAlias = dict[int, OutputMemoryView]

#: Requests that may be in flight in one replica: `executeAsync` does not wait.
_MAX_IN_FLIGHT = 65536


@dataclass(slots=True)
class ModelRunnerConfig:
    """Options of a `ModelRunner`; the guide for migrating says what each does here.

    Durations are nanoseconds or `timedelta`. `flush_callback(tensor_id, inputs,
    outputs)` fills the two empty views in, returns two others, or does neither.
    """

    replication_factor: int = 1
    run_save_programs: bool = False
    thread_safe: bool = False
    frozen_inputs: InputMemoryView | dict[str, Any] = field(
        default_factory=InputMemoryView
    )
    replica_to_save_programs_outputs: ReplicaIdToOutputMemoryView = field(
        default_factory=dict
    )
    replica_to_device: ReplicaIdToDevice = field(default_factory=dict)
    device_wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    check_package_hash: bool = True
    timeout_ns: Nanoseconds = 5_000_000_000
    validate_io_params: bool = True
    batching_dim: int = NO_BATCHING_DIM
    auto_reset: bool = False
    max_look_ahead: str = "unlimited"
    ring_buffer_size_multiplier: int = 2
    flush_on_waiting_outputs: bool = False
    batch_size_timeout_ns: Nanoseconds = MAX_NS
    data_parallel_timeout_ns: Nanoseconds = MAX_NS
    is_batch_size_timeout_enabled: bool = False
    request_tracepoints_buffer_size: int = 1000
    flush_callback: FlushCallback | None = None

    def to_engine(self, model: Model) -> engine.ModelRunnerConfig:
        """The engine's options. Raises InvalidConfig for what it cannot do yet."""
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
            device_wait_config=expected(
                self.device_wait_config, DeviceWaitConfig
            ).to_engine(),
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
            max_look_ahead=str(self.max_look_ahead),
            record_tracepoints=self.flush_on_waiting_outputs,
            request_tracepoints_buffer_size=self.request_tracepoints_buffer_size,
            max_queue_size=_MAX_IN_FLIGHT,
        )


def _descs(model: Model, *kinds: TensorType) -> list[dict[str, engine.DataDesc]]:
    """The anchors of each kind by name."""
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
    """The engine's callback, over views as callers of the original know them."""
    if callback is None:
        return None
    asked = checked_callback("flush_callback", callback)

    def flush(tensor_id: str, given: dict[str, Any], wanted: dict[str, Any]) -> None:
        views = InputMemoryView(), OutputMemoryView()
        views = asked(tensor_id, *views) or views
        given.update(arrays_of(views[0], inputs))
        wanted.update(arrays_of(views[1], outputs))

    return flush
