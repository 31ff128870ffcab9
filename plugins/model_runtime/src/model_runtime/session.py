# ruff: noqa: N802 - the names are the original's
"""`Session`: a model on a device, run by the caller."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Any, SupportsIndex, TypeAlias

import popef_io
import popgate_sessions
from model_runtime.arguments import (
    checked_callback,
    look_ahead,
    named,
    one_of,
    optional_callback,
)
from model_runtime.data_rings import InputRingBuffer, TimeoutCallback
from model_runtime.device_wait import DeviceWaitConfig
from model_runtime.devices import Device
from model_runtime.durations import Nanoseconds, nanoseconds
from model_runtime.ending import close_with
from model_runtime.members import Member, Options
from model_runtime.model_source import FilesOrModel, opened
from model_runtime.predicates import (
    AnchorCallbackPredicate,
    PopefDataUsagePredicate,
    null_popef_data_usage_predicate,
    to_engine,
)
from model_runtime.queues import QueueManager
from model_runtime.ring_size_multiplier_factory import RingSizeMultiplierProdType
from popef import Anchor, Model
from popef.errors import WrongType
from popef.taking import (
    NotPickled,
    Path,
    Text,
    expected,
    got,
    number,
    numbers,
    text,
    truth,
)
from popgate_sessions import AnchorCallbackPolicy, PopefDataUsagePolicy


class LaunchPolicy(IntEnum):
    """Deferred: the caller binds a device. Immediate: the session attaches a device
    itself.
    """

    Deferred = 0
    Immediate = 1

    __str__ = Enum.__str__
    __format__ = Enum.__format__


@dataclass(frozen=True, slots=True)
class CallbackInfo:
    """Argument of a callback factory: the anchor that needs a callback."""

    anchor: Anchor


#: Called with an array of the anchor's shape and type, valid only during the call. Fill
#: the array of an input; read that of an output.
CallbackHandle: TypeAlias = Callable[[Any], Any]
#: Called with each anchor to serve. Returns the anchor's callback, or None to leave it
#: unchanged.
CallbackFactory: TypeAlias = Callable[[CallbackInfo], CallbackHandle | None]


def _policy(given: LaunchPolicy) -> LaunchPolicy:
    return expected(given, LaunchPolicy)


def _wait(given: DeviceWaitConfig) -> DeviceWaitConfig:
    return copy.copy(expected(given, DeviceWaitConfig))


def _predicate(given: PopefDataUsagePredicate | None) -> PopefDataUsagePredicate | None:
    return optional_callback("predicate", given)


class SessionConfig(Options):
    """Options of a session, which copies them when it is made.

    A value of another type is refused on assignment.
    """

    __slots__ = ()

    policy = Member[LaunchPolicy, LaunchPolicy](
        _policy,
        LaunchPolicy.Deferred,
        "When a device is attached. Deferred: by the caller, with "
        "`bindToDevice`. Immediate: when the session is created. Default: "
        "Deferred.",
    )
    pred_tensor_data = Member[
        PopefDataUsagePredicate | None, PopefDataUsagePredicate | None
    ](
        _predicate,
        null_popef_data_usage_predicate,
        "A function that returns a `PopefDataUsagePolicy` for each "
        "`popef.Anchor` with data in the file. Default: None; all data of the "
        "file are used.",
    )
    check_package_hash = Member[bool, Any](
        truth,
        True,
        "Whether to compare the recorded digests of the graphs when the "
        "session is created. Default: True.",
    )
    wait_config = Member[DeviceWaitConfig, DeviceWaitConfig](
        _wait,
        DeviceWaitConfig(),
        "How an Immediate session waits for a device. Default: it does not wait.",
    )
    max_look_ahead = Member[str, Text | SupportsIndex](
        look_ahead,
        "unlimited",
        "How many inputs may be read before the program needs them: "
        '"unlimited", or a number as a string. Default: "unlimited".',
    )

    def to_engine(self) -> popgate_sessions.SessionConfig:
        """Return the engine's options (an addition of PopGate)."""
        predicate = self.pred_tensor_data
        return popgate_sessions.SessionConfig(
            policy=popgate_sessions.LaunchPolicy(self.policy.value),
            pred_tensor_data=(
                None
                if predicate is None
                else to_engine(predicate, PopefDataUsagePolicy)
            ),
            check_package_hash=self.check_package_hash,
            wait_config=self.wait_config.to_engine(),
            max_look_ahead=self.max_look_ahead,
        )


class Session(NotPickled):
    """Links a model to a device, and ends when nothing refers to it.

    `model` is as for `ModelRunner`. One thread runs programs; any thread may call
    `stop`. Errors are RuntimeErrors. A run raises the exceptions of callbacks
    unchanged.
    """

    ProgIdxType = int
    ProgramsAndAnchorsMap = dict[int, list[Anchor]]

    def __init__(
        self,
        model: FilesOrModel | None = None,
        config: SessionConfig | None = None,
        *,
        popef_paths: Sequence[Path] | None = None,
    ) -> None:
        given: FilesOrModel = one_of("model and popef_paths", model, popef_paths)
        options = SessionConfig() if config is None else expected(config, SessionConfig)
        self._session = popgate_sessions.Session(opened(given), options.to_engine())
        close_with(self, self._session.close)
        self._model = given if isinstance(given, Model) else Model(self._session.model)
        self._device: Device | None = None

    def bindToDevice(self, device: Device) -> None:
        """Load the model on a device, and leave the previous device. Another session on
        this device leaves the device first. Before a session leaves, its save programs
        run.
        """
        self._session.bind_to_device(expected(device, Device).engine)
        self._device = device

    def unloadFromDevice(self) -> None:
        """Run the save programs and leave the device."""
        self._session.unload_from_device()
        self._device = None

    def setCallbackForAnchor(
        self, anchor_handle: Text, callback: CallbackHandle
    ) -> None:
        """Connect the anchor with this handle, replacing its present connection.

        An addition of PopGate: a tensor's name is enough if only one anchor has it.
        """
        handle = text(anchor_handle)
        self._session.set_callback_for_anchor(
            handle, checked_callback("callback", callback)
        )

    def setUserInputHandler(
        self,
        factory: CallbackFactory,
        anchor_callback_predicate: AnchorCallbackPredicate | None = None,
        skip_connected: bool = False,
    ) -> None:
        """Ask `factory` for a callback for each user input; None changes nothing."""
        self._session.set_user_input_handler(
            _factory(factory), _optional(anchor_callback_predicate), skip_connected
        )

    def setUserOutputHandler(
        self,
        factory: CallbackFactory,
        anchor_callback_predicate: AnchorCallbackPredicate | None = None,
        skip_connected: bool = False,
    ) -> None:
        """Set the handler for each user output."""
        self._session.set_user_output_handler(
            _factory(factory), _optional(anchor_callback_predicate), skip_connected
        )

    def anchorsNotConnectedToCallbacks(
        self, progs: Iterable[SupportsIndex]
    ) -> dict[int, list[Anchor]]:
        """Return the unconnected anchors of each program that has some."""
        missing = self._session.anchors_not_connected_to_callbacks(numbers(progs))
        return {program: _listed(anchors) for program, anchors in missing.items()}

    def errorIfAnchorsAreNotConnectedToCallbacks(
        self, progs: Iterable[SupportsIndex]
    ) -> None:
        """Raise an exception that lists the unconnected anchors, if there are any."""
        self._session.error_if_anchors_are_not_connected_to_callbacks(numbers(progs))

    def createQueueManager(
        self,
        num_buffers: SupportsIndex
        | RingSizeMultiplierProdType = popgate_sessions.DEFAULT_BUFFERS,
        timeout_cb: TimeoutCallback | None = None,
        timeout_ns: Nanoseconds = 0,
        input_predicate: AnchorCallbackPredicate | None = None,
        output_predicate: AnchorCallbackPredicate | None = None,
    ) -> QueueManager:
        """Return the queues of this session; a new call replaces them. Each queue takes
        `num_buffers` user batches. The predicates select the anchors that get a queue.
        """
        timed_out = None
        if timeout_cb is not None:
            callback = checked_callback("timeout_cb", timeout_cb)

            def timed_out(
                ring: popgate_sessions.SpscRingBuffer[popgate_sessions.InputData],
            ) -> None:
                callback(InputRingBuffer.of(ring))

        size: int | popgate_sessions.RingSizeMultiplier
        if not callable(num_buffers):
            size = number(
                num_buffers, "a number of buffers, or a function that returns one"
            )
        else:
            multiplier = num_buffers

            def size(anchor: popef_io.Anchor) -> int:
                return number(multiplier(Anchor.from_io(anchor)))

        manager = self._session.create_queue_manager(
            size,
            timed_out,
            named("timeout_ns", nanoseconds, timeout_ns),
            _optional(input_predicate),
            _optional(output_predicate),
        )
        return QueueManager(manager)

    def runLoadPrograms(self) -> bool:
        """Run the load programs.

        An addition of PopGate: all runs return False if the session was stopped, or
        queues were disconnected, meanwhile.
        """
        return self._session.run_load_programs()

    def runMainPrograms(self) -> bool:
        """Run the main programs once, the first time after the load programs."""
        return self._session.run_main_programs()

    def runSavePrograms(self) -> bool:
        """Run the save programs."""
        return self._session.run_save_programs()

    def runPrograms(self, progs: Iterable[SupportsIndex]) -> bool:
        """Run these programs, each once, in this order."""
        return self._session.run_programs(numbers(progs))

    def stop(self) -> None:
        """Disconnect the queues; nothing runs until `reload`."""
        self._session.stop()

    def reload(self) -> None:
        """Load again on the bound device, and empty the queues."""
        self._session.reload()

    def isStopped(self) -> bool:
        """Return whether the session was stopped, or its device was lost. If so, no
        program runs until `reload`.
        """
        return self._session.is_stopped

    def getInputAnchors(self) -> list[Anchor]:
        """Return all inputs, including those of load programs."""
        return _listed(self._session.input_anchors)

    def getOutputAnchors(self) -> list[Anchor]:
        """Return all outputs, including those of save programs."""
        return _listed(self._session.output_anchors)

    def getUserInputAnchors(self) -> list[Anchor]:
        """Return the inputs that the caller must serve."""
        return _listed(self._session.user_input_anchors)

    def getUserOutputAnchors(self) -> list[Anchor]:
        """Return the outputs that the caller must serve."""
        return _listed(self._session.user_output_anchors)

    def model(self) -> Model:
        """Return the session's model."""
        return self._model

    def __repr__(self) -> str:
        return repr(self._session)


def _listed(anchors: Iterable[popef_io.Anchor]) -> list[Anchor]:
    return [Anchor.from_io(anchor) for anchor in anchors]


def _optional(
    predicate: AnchorCallbackPredicate | None,
) -> popgate_sessions.AnchorCallbackPredicate | None:
    return None if predicate is None else to_engine(predicate, AnchorCallbackPolicy)


def _factory(factory: CallbackFactory) -> popgate_sessions.CallbackFactory:
    asked = checked_callback("factory", factory)

    def made(info: popgate_sessions.CallbackInfo) -> CallbackHandle | None:
        callback = asked(CallbackInfo(Anchor.from_io(info.anchor)))
        if callback is not None and not callable(callback):
            raise WrongType(
                "the factory must return a callback or None for anchor "
                f"{info.name!r}, {got(callback)}"
            )
        return callback

    return made
