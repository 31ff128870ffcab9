# ruff: noqa: N802 - the names are the original's
"""`Session`: a model on a device, run by the caller."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import TypeAlias

from popef import Anchor, Model, TensorType

import engine
import popef_io
from model_runtime.device_wait import DeviceWaitConfig
from model_runtime.devices import Device
from model_runtime.queues import QueueManager, TimeoutCallback
from model_runtime.ring import SpscRingBuffer


class LaunchPolicy(Enum):
    """Deferred: the caller binds a device; Immediate: the session attaches one."""

    Deferred = 0
    Immediate = 1


class AnchorCallbackPolicy(IntEnum):
    """What an anchor is connected to. Here only BIND_USER_CB makes a queue."""

    BIND_USER_CB = 0
    BIND_EMPTY_CB = 1
    SKIP_CB = 2


AnchorCallbackPredicate: TypeAlias = Callable[[Anchor], AnchorCallbackPolicy]


@dataclass(slots=True)
class SessionConfig:
    """Options of a session. Nothing comes of `max_look_ahead`: there is none."""

    policy: LaunchPolicy = LaunchPolicy.Deferred
    check_package_hash: bool = True
    wait_config: DeviceWaitConfig = field(default_factory=DeviceWaitConfig)
    max_look_ahead: str = "unlimited"


class Session:
    """Links a model to a device; ends when nobody holds it any more.

    `model` is as for `ModelRunner`. Programs are run by one thread.
    """

    def __init__(
        self,
        model: str | Sequence[str] | Model,
        config: SessionConfig | None = None,
    ) -> None:
        config = config or SessionConfig()
        source = model.io if isinstance(model, Model) else model
        self._session = engine.Session(
            source,
            engine.SessionConfig(
                policy=engine.LaunchPolicy(config.policy.value),
                check_package_hash=config.check_package_hash,
                wait_config=config.wait_config.to_engine(),
            ),
        )
        weakref.finalize(self, self._session.close)
        self._model = model if isinstance(model, Model) else Model(self._session.model)
        self._device: Device | None = None

    def bindToDevice(self, device: Device) -> None:
        """Load the model on a device and run its load programs; leaves another."""
        self._session.bind_to_device(device.engine)
        self._device = device

    def unloadFromDevice(self) -> None:
        """Leave the device."""
        self._session.unload_from_device()
        self._device = None

    def createQueueManager(
        self,
        num_buffers: int = 8,
        timeout_cb: TimeoutCallback | None = None,
        timeout_ns: int = 0,
        input_predicate: AnchorCallbackPredicate | None = None,
        output_predicate: AnchorCallbackPredicate | None = None,
    ) -> QueueManager:
        """The queues of this session; a new call replaces them. Each takes
        `num_buffers` batches; a predicate says which anchors get one."""

        def wanted(anchor: popef_io.Anchor) -> bool:
            is_input = anchor.type is TensorType.INPUT
            predicate = input_predicate if is_input else output_predicate
            if predicate is None:
                return True
            policy = predicate(Anchor.from_io(anchor))
            return policy is AnchorCallbackPolicy.BIND_USER_CB

        timed_out = None
        if timeout_cb is not None:
            callback = timeout_cb

            def timed_out(ring: engine.SpscRingBuffer[engine.InputData]) -> None:
                callback(SpscRingBuffer.of(ring))

        manager = self._session.create_queue_manager(
            num_buffers, timed_out, timeout_ns, wanted
        )
        return QueueManager(manager)

    def runMainPrograms(self) -> bool:
        """Take a compiled batch from every input queue, run it, hand out the results.

        Ours: False where the session was stopped meanwhile.
        """
        return self._session.run_main_programs()

    def stop(self) -> None:
        """Disconnect the queues; nothing runs until `reload`."""
        self._session.stop()

    def reload(self) -> None:
        """Load again on the bound device, and empty the queues."""
        self._session.reload()

    def isStopped(self) -> bool:
        return self._session.is_stopped

    def getInputAnchors(self) -> list[Anchor]:
        """All inputs, of load programs too."""
        return self._of_type(TensorType.INPUT)

    def getOutputAnchors(self) -> list[Anchor]:
        return self._of_type(TensorType.OUTPUT)

    def getUserInputAnchors(self) -> list[Anchor]:
        """The inputs that the caller must supply."""
        return _listed(self._session.input_anchors)

    def getUserOutputAnchors(self) -> list[Anchor]:
        """The outputs of the main programs."""
        return _listed(self._session.output_anchors)

    def model(self) -> Model:
        return self._model

    def _of_type(self, tensor_type: TensorType) -> list[Anchor]:
        anchors = self._session.model.anchors
        return _listed(anchor for anchor in anchors if anchor.type is tensor_type)

    def __repr__(self) -> str:
        return repr(self._session)


def _listed(anchors: Iterable[popef_io.Anchor]) -> list[Anchor]:
    return [Anchor.from_io(anchor) for anchor in anchors]
