"""`Session`: a model on a device, run program by program (the low-level interface).

A caller makes a session, binds it to a device, connects the anchors to callbacks or
queues, and runs programs; most often one thread calls `run_main_programs` in a loop
while others enqueue. `ModelRunner` is the other way to run a model.
"""

from __future__ import annotations

import contextlib
import math
import operator
import time
from collections.abc import Iterator, Sequence

from engine.devices.device import Device
from engine.devices.device_manager import DeviceManager
from engine.errors import DeviceBusy, InvalidConfig, InvalidModel
from engine.fork_guard import fork_guard
from engine.model.model_file import ModelFiles, open_model
from engine.programs.executable import Executable
from popef_io import Anchor, Model, ProgramFlow, TensorType
from popgate_sessions.callbacks import (
    AnchorCallbackPredicate,
    CallbackFactory,
    CallbackHandle,
)
from popgate_sessions.connections import AnchorConnections
from popgate_sessions.loaded_session import LoadedSession
from popgate_sessions.predicates import RingSizeMultiplier
from popgate_sessions.queue_manager import QueueManager
from popgate_sessions.queues import TimeoutCallback
from popgate_sessions.session_config import LaunchPolicy, SessionConfig
from popgate_sessions.session_lease import lease_of

#: User batches that a queue has room for by default.
DEFAULT_BUFFERS = 8
_LIFETIME = 1e9  # seconds; a longer timeout is none
_MOST_PROGRAMS = 1 << 32  # a message has no room for larger numbers


class Session:
    """Links a model to a device (Model Runtime: `Session`).

    At most one session at a time is loaded on a device. If several share one, the
    session that runs takes the device from the one before: that session's save programs
    run, then the new one's load programs. All runs of a device take turns; a caller
    waits at most ten seconds for its turn, then DeviceBusy is raised. Any thread may
    call `stop` at any time. Raises InvalidModel if the model cannot be read or, with
    `config.check_package_hash`, does not match its recorded digests. A forked child
    cannot use it (WrongProcess) and makes its own.
    """

    def __init__(self, model: ModelFiles, config: SessionConfig | None = None) -> None:
        self._fork_guard = fork_guard()
        self.config = config or SessionConfig()
        self._model = open_model(model)
        if self.config.check_package_hash:
            # The device compares the digests of its executable as well. This check
            # reports a mismatch to the caller that makes the session.
            Executable.decode(self._model.executable.raw())
        self._connections = AnchorConnections(self._model, self.config.pred_tensor_data)
        self._loaded = LoadedSession(self._model, self.config, self._connections)
        self._own_device: Device | None = None
        self._queues: QueueManager | None = None
        if self.config.policy is LaunchPolicy.IMMEDIATE:
            device = DeviceManager().get_device(self._model, self.config.wait_config)
            self._own_device = device
            try:
                self.bind_to_device(device)
            except BaseException:
                self.close()
                raise

    # -- what there is

    @property
    def model(self) -> Model:
        return self._model

    @property
    def device(self) -> Device | None:
        """Return the device to which the session is bound, even if another session has
        taken the device.
        """
        return self._loaded.device

    @property
    def is_active(self) -> bool:
        """Return whether the session is loaded on its device at the moment."""
        return self._loaded.is_active

    @property
    def is_stopped(self) -> bool:
        """Return whether the session is stopped. It is stopped after `stop` or the loss
        of its device, until `reload`.
        """
        return self._loaded.is_stopped

    @property
    def input_anchors(self) -> tuple[Anchor, ...]:
        """Return all inputs, including those that the file feeds."""
        return self._connections.anchors(TensorType.INPUT)

    @property
    def output_anchors(self) -> tuple[Anchor, ...]:
        """Return all outputs, of every program."""
        return self._connections.anchors(TensorType.OUTPUT)

    @property
    def user_input_anchors(self) -> tuple[Anchor, ...]:
        """Return the inputs that the user must serve: the file has no data for them, or
        `pred_tensor_data` excludes it.
        """
        return self._connections.user_anchors(TensorType.INPUT)

    @property
    def user_output_anchors(self) -> tuple[Anchor, ...]:
        """Return the outputs that the user must serve: all of them."""
        return self._connections.user_anchors(TensorType.OUTPUT)

    # -- the device

    def bind_to_device(self, device: Device) -> None:
        """Load the executable on a device, and leave the previous one.

        Raises DeviceBusy, DeviceLost, InvalidModel.
        """
        self._fork_guard.check("Session")
        self.unload_from_device()
        self._loaded.bind(device)

    def unload_from_device(self) -> None:
        """Leave the device.

        Save programs run first, if the load programs have run and all data they write
        can be delivered immediately.
        """
        self._fork_guard.check("Session")
        device = self._loaded.device
        if device is not None:
            with lease_of(device).hold():
                self._loaded.unload(save=True)
                self._loaded.device = None

    # -- connecting anchors

    def set_callback_for_anchor(
        self, anchor_handle: str, callback: CallbackHandle
    ) -> None:
        """Connect the anchor with this stream handle to a callback, replacing its
        present connection. Raises UnknownAnchor if there is no such anchor.
        """
        self._fork_guard.check("Session")
        self._connections.set_callback(anchor_handle, callback)

    def set_user_input_handler(
        self,
        factory: CallbackFactory,
        predicate: AnchorCallbackPredicate | None = None,
        skip_connected: bool = False,
    ) -> None:
        """Ask `factory` for a callback for each of `user_input_anchors`.

        None keeps the present connection. `predicate` selects anchors
        (`AnchorCallbackPolicy`); `skip_connected` selects only anchors without a
        connection, or with a dummy.
        """
        self._fork_guard.check("Session")
        kind = TensorType.INPUT
        self._connections.set_handler(kind, factory, predicate, skip_connected)

    def set_user_output_handler(
        self,
        factory: CallbackFactory,
        predicate: AnchorCallbackPredicate | None = None,
        skip_connected: bool = False,
    ) -> None:
        """Set the handler for each of `user_output_anchors`."""
        self._fork_guard.check("Session")
        kind = TensorType.OUTPUT
        self._connections.set_handler(kind, factory, predicate, skip_connected)

    def create_queue_manager(
        self,
        num_buffers: int | RingSizeMultiplier = DEFAULT_BUFFERS,
        timeout_cb: TimeoutCallback | None = None,
        timeout_ns: int = 0,
        input_predicate: AnchorCallbackPredicate | None = None,
        output_predicate: AnchorCallbackPredicate | None = None,
    ) -> QueueManager:
        """Connect the user's anchors to queues, owned by the session.

        The predicates select anchors; without one, all get a queue. `QueueManager`
        describes the other parameters. A new call replaces the queues of the last one.
        """
        self._fork_guard.check("Session")
        if self._model.metadata.replication_factor > 1:
            raise InvalidConfig(
                "queues need a model compiled for one replica; this model is "
                f"compiled for {self._model.metadata.replication_factor}"
            )
        connections = self._connections
        if self._queues is not None:
            self._queues.disconnect_all()
            connections.drop_queues()
        self._queues = QueueManager(
            connections.choose_for_queues(TensorType.INPUT, input_predicate),
            connections.choose_for_queues(TensorType.OUTPUT, output_predicate),
            num_buffers,
            timeout_cb,
            timeout_ns,
        )
        connections.set_queues(self._queues)
        return self._queues

    def anchors_not_connected_to_callbacks(
        self, programs: Sequence[int]
    ) -> dict[int, tuple[Anchor, ...]]:
        """Return the unconnected anchors of each of these programs; programs without
        any are left out.
        """
        return self._connections.not_connected(programs)

    def error_if_anchors_are_not_connected_to_callbacks(
        self, programs: Sequence[int]
    ) -> None:
        """Raise AnchorsNotConnected, which lists the anchors, if there are any."""
        self._connections.check(programs)

    # -- running

    def run_load_programs(self, timeout: float | None = None) -> bool:
        """Run the load programs, which bring weights to the device.

        For all runs: after `timeout` seconds (None: never), DeadlineExceeded is raised
        and the session ends. Return False if the session is or was stopped, or if data
        came from disconnected queues. Raises the error of a callback, or of the
        programs: AnchorsNotConnected, ExecutionFailed, DeviceLost (and SessionClosed
        from then on), SessionClosed if the session is bound to no device, DeviceBusy.
        """
        deadline = _deadline(timeout)
        with self._hold() as loaded:
            return self._load_weights(loaded, deadline)

    def run_main_programs(self, timeout: float | None = None) -> bool:
        """Run the main programs once, after the load programs if these have not run
        since the session was loaded; otherwise like `run_load_programs`.
        """
        deadline = _deadline(timeout)
        with self._hold() as loaded:
            if not loaded.has_weights and not self._load_weights(loaded, deadline):
                return False
            return loaded.run(self._flow.main, deadline)

    def run_save_programs(self, timeout: float | None = None) -> bool:
        """Run the save programs, which read the state of the device.

        Like `run_load_programs`; also raises SessionClosed if another session has taken
        the device, because the save programs ran then.
        """
        deadline = _deadline(timeout)
        with self._hold(load=False) as loaded:
            return loaded.run(self._flow.save, deadline)

    def run_programs(
        self, programs: Sequence[int], timeout: float | None = None
    ) -> bool:
        """Run programs by their numbers, each once, in this order, and nothing else.

        The caller is responsible for the order: main programs need load programs before
        them. Raises InvalidModel for a number that does not exist. Otherwise like
        `run_load_programs`.
        """
        deadline = _deadline(timeout)
        programs = [operator.index(number) for number in programs]
        for number in programs:
            if not 0 <= number < _MOST_PROGRAMS:
                raise InvalidModel(f"there is no program {number}; they begin with 0")
        with self._hold() as loaded:
            done = loaded.run(programs, deadline)
            if done and set(self._flow.load) <= set(programs):
                loaded.has_weights = True
            return done

    # -- life

    def stop(self) -> None:
        """End the present run and disconnect the queues.

        Until `reload` every run returns False. The results of the ended programs are
        undefined.
        """
        self._fork_guard.check("Session")
        self._loaded.halt()
        if self._queues is not None:
            self._queues.disconnect_all()
        self._loaded.end()

    def reload(self) -> None:
        """Load the executable again on the bound device, after `stop` or the loss of
        the device. A lost device is restarted, and disconnected queues are emptied.
        """
        self._fork_guard.check("Session")
        self._loaded.reload()
        if self._queues is not None:
            self._queues.reset_disconnected()

    def close(self) -> None:
        """Stop and leave the device; the save programs are not run.

        Gives back a device that the session attached itself. Idempotent. In a forked
        child it stops nothing, because everything belongs to the parent process.
        """
        if self._fork_guard.left:
            self._loaded.abandon()
            if self._own_device is not None:
                self._own_device.close()
            return
        self.stop()
        device = self._loaded.device
        if device is not None:
            # A callback that does not return would keep the device's turn for ever.
            with contextlib.suppress(DeviceBusy), lease_of(device).hold():
                self._loaded.unload(save=False)
            self._loaded.device = None
        if self._own_device is not None:
            self._own_device.close()
            self._own_device = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self._loaded)

    # -- helpers

    @property
    def _flow(self) -> ProgramFlow:
        return self._model.metadata.program_flow

    @contextlib.contextmanager
    def _hold(self, *, load: bool = True) -> Iterator[LoadedSession]:
        self._fork_guard.check("Session")
        with self._loaded.hold(load=load):
            queues = self._queues
            if queues is None:
                yield self._loaded
                return
            queues.running.mark()
            try:
                yield self._loaded
            finally:
                queues.running.clear()

    def _load_weights(self, loaded: LoadedSession, deadline: float | None) -> bool:
        done = loaded.run(self._flow.load, deadline)
        loaded.has_weights = loaded.has_weights or done
        return done


def _deadline(timeout: float | None) -> float | None:
    """Return the time at which a run that begins now must end; None for none."""
    seconds = math.inf if timeout is None else float(timeout)
    if math.isnan(seconds):
        raise InvalidConfig(f"the timeout must be a number of seconds, got {timeout!r}")
    return time.monotonic() + seconds if seconds < _LIFETIME else None
