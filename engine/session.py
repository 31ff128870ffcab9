"""`Session`: a model on a device, run program by program (the low-level interface).

A caller makes a session, binds it to a device, makes a queue manager, and has one
thread call `run_main_programs` in a loop while others enqueue. `ModelRunner` is the
other way to run a model; a session is for those who want the queues.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from enum import Enum

from engine.anchors import main_anchors
from engine.config import DeviceWaitConfig, ModelRunnerConfig
from engine.device import Device
from engine.device_manager import DeviceManager
from engine.errors import SessionClosed
from engine.model_file import ModelSource, open_model
from engine.model_runner import ModelRunner
from engine.queue_manager import AnchorPredicate, QueueManager
from engine.queues import TimeoutCallback
from engine.tensor import Tensor
from popef_io import Anchor, Model


class LaunchPolicy(Enum):
    """DEFERRED: the caller binds a device; IMMEDIATE: the session attaches one."""

    DEFERRED = 0
    IMMEDIATE = 1


@dataclass(frozen=True, slots=True)
class SessionConfig:
    """Options of a session (Model Runtime: `SessionConfig`)."""

    policy: LaunchPolicy = LaunchPolicy.DEFERRED
    check_package_hash: bool = True
    wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)


class Session:
    """Links a model to a device (Model Runtime: `Session`).

    Programs are run by one thread; `stop` may be called from any.
    """

    def __init__(self, model: ModelSource, config: SessionConfig | None = None) -> None:
        self.config = config or SessionConfig()
        self._model = open_model(model)
        self._anchors = main_anchors(self._model)
        self._device: Device | None = None
        self._own_device: Device | None = None
        self._runner: ModelRunner | None = None
        self._queues: QueueManager | None = None
        self._stopped = threading.Event()
        if self.config.policy is LaunchPolicy.IMMEDIATE:
            manager = DeviceManager()
            units = max(1, self._model.metadata.num_ipus)
            self._own_device = manager.get_device(units, self.config.wait_config)
            self.bind_to_device(self._own_device)

    @property
    def model(self) -> Model:
        return self._model

    @property
    def device(self) -> Device | None:
        return self._device

    @property
    def input_anchors(self) -> tuple[Anchor, ...]:
        """The inputs of the main programs that a caller supplies."""
        return self._anchors.inputs

    @property
    def output_anchors(self) -> tuple[Anchor, ...]:
        """The outputs of the main programs."""
        return self._anchors.outputs

    def bind_to_device(self, device: Device) -> None:
        """Load the model on a device, running its load programs; unbinds another."""
        self.unload_from_device()
        config = ModelRunnerConfig(
            replica_to_device={0: device},
            check_package_hash=self.config.check_package_hash,
            validate_io_params=False,
            batching=False,
        )
        self._runner = ModelRunner(self._model, config)
        self._device = device
        self._stopped.clear()

    def unload_from_device(self) -> None:
        """Leave the device; it can serve another session then."""
        runner, self._runner, self._device = self._runner, None, None
        if runner is not None:
            runner.close()

    def create_queue_manager(
        self,
        num_buffers: int = 8,
        timeout_cb: TimeoutCallback | None = None,
        timeout_ns: int = 0,
        predicate: AnchorPredicate | None = None,
    ) -> QueueManager:
        """The queues of this session, owned by it; a new call replaces them."""
        if self._queues is not None:
            self._queues.disconnect_all()
        self._queues = QueueManager(
            self.input_anchors,
            self.output_anchors,
            num_buffers,
            timeout_cb,
            timeout_ns,
            predicate,
        )
        return self._queues

    def run_main_programs(self) -> bool:
        """Run the main programs once: takes a compiled batch from every input queue,
        waiting for it, and gives the results to the output queues.

        False where the session was stopped or the queues disconnected meanwhile.
        Raises SessionClosed where it is not bound or already stopped, and how the
        run failed.
        """
        runner, queues = self._runner, self._queues
        if runner is None or queues is None or self._stopped.is_set():
            raise SessionClosed(f"{self!r} cannot run: bind a device, create queues")
        tensors: dict[str, Tensor] = {}
        for name, queue in queues.inputs.items():
            parts = queue.take_batch()
            if parts is None:
                return False
            info = queue.tensor_info
            shape = info.shape or ()
            if shape and shape[0] < 0:
                shape = (queue.batch_bytes // queue.sample_bytes, *shape[1:])
            tensors[name] = Tensor(info.data_type, shape, parts)
        request = runner.submit(tensors)
        request.wait()
        for queue in queues.inputs.values():
            queue.batch_consumed()
        if request.error is not None:
            raise request.error
        return all(
            queue.put_batch(request.outputs[name].buffer)
            for name, queue in queues.outputs.items()
            if name in request.outputs
        )

    def stop(self) -> None:
        """Stop running: queues are disconnected, waits return."""
        self._stopped.set()
        if self._queues is not None:
            self._queues.disconnect_all()

    def reload(self) -> None:
        """Load again on the bound device and reset the queues, after `stop`."""
        device = self._device
        if device is None:
            raise SessionClosed("the session is bound to no device")
        self.bind_to_device(device)
        if self._queues is not None:
            self._queues.reset_all()

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def close(self) -> None:
        """Stop, unload, and give back a device that the session attached itself."""
        self.stop()
        self.unload_from_device()
        if self._own_device is not None:
            self._own_device.close()
            self._own_device = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "unbound" if self._device is None else f"on {self._device.id}"
        state = "stopped" if self.is_stopped else "ready"
        return f"<Session {self._model.metadata.executable!r} {where}, {state}>"
