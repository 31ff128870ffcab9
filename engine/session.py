"""`Session`: a model on a device, run program by program (the low-level interface).

A caller makes a session, binds it to a device, connects the anchors to callbacks or
queues, and runs programs; most often one thread calls `run_main_programs` in a loop
while others enqueue. `ModelRunner` is the other way to run a model.
"""

from __future__ import annotations

import contextlib
import logging
import select
import time
from collections.abc import Iterator, Sequence

from engine.callbacks import (
    AnchorCallbackPredicate,
    CallbackFactory,
    CallbackHandle,
)
from engine.connections import Connections
from engine.control import Message
from engine.device import Device, DeviceState
from engine.device_manager import DeviceManager
from engine.errors import (
    DeviceBusy,
    DeviceClosed,
    DeviceLost,
    EngineError,
    InvalidConfig,
    SessionClosed,
)
from engine.model_file import ModelSource, handed_over, open_model
from engine.predicates import RingSizeMultiplier
from engine.queue_manager import QueueManager
from engine.queues import TimeoutCallback
from engine.session_config import LaunchPolicy, SessionConfig
from engine.session_link import SessionEnded, SessionLink
from popef_io import Anchor, Model, ProgramFlow, TensorType

logger = logging.getLogger(__name__)

#: User batches that a queue has room for, where nobody says.
DEFAULT_BUFFERS = 8
#: Seconds that save programs get which nobody called for.
SAVE_TIMEOUT = 10.0
#: Seconds until a device whose connection ended is seen to be lost, or is not.
_LOST_TIMEOUT = 2.0


class Session:
    """Links a model to a device (Model Runtime: `Session`).

    At most one session at a time is loaded on a device. Where several share one, the
    one that runs takes it from the one that ran before, whose save programs are run
    then, and its own load programs next. All runs of a device take turns; whoever wants
    one waits ten seconds at most, then DeviceBusy is raised. `stop` may be called from
    any thread, at any time.
    """

    def __init__(self, model: ModelSource, config: SessionConfig | None = None) -> None:
        self.config = config or SessionConfig()
        self._model = open_model(model)
        self._connections = Connections(self._model, self.config.pred_tensor_data)
        self._device: Device | None = None
        self._own_device: Device | None = None
        self._link: SessionLink | None = None
        self._is_loaded = False
        self._stopped = False
        self._queues: QueueManager | None = None
        if self.config.policy is LaunchPolicy.IMMEDIATE:
            units = max(1, self._model.metadata.num_ipus)
            device = DeviceManager().get_device(units, self.config.wait_config)
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
        """The device it is bound to, even where another session has taken that."""
        return self._device

    @property
    def is_active(self) -> bool:
        """Whether it is loaded on its device at the moment."""
        return self._link is not None and not self._link.ended

    @property
    def is_stopped(self) -> bool:
        """Between `stop`, or a device that was lost, and `reload`."""
        return self._stopped

    @property
    def input_anchors(self) -> tuple[Anchor, ...]:
        """All inputs, those fed by the file too."""
        return self._connections.anchors(TensorType.INPUT)

    @property
    def output_anchors(self) -> tuple[Anchor, ...]:
        """All outputs, of every program."""
        return self._connections.anchors(TensorType.OUTPUT)

    @property
    def user_input_anchors(self) -> tuple[Anchor, ...]:
        """The inputs that the user must serve: the file has no data of them, or
        `pred_tensor_data` says not to use them."""
        return self._connections.user_anchors(TensorType.INPUT)

    @property
    def user_output_anchors(self) -> tuple[Anchor, ...]:
        """The outputs that the user must serve: all of them."""
        return self._connections.user_anchors(TensorType.OUTPUT)

    # -- the device

    def bind_to_device(self, device: Device) -> None:
        """Load the executable on a device; leaves the one it was bound to.

        Raises DeviceBusy, DeviceLost, InvalidModel.
        """
        if self._device is not None:
            self.unload_from_device()
        self._stopped = False
        with device.seat.turn():
            self._device = device
            try:
                self._activate(device)
            except BaseException:
                self._device = None
                raise

    def unload_from_device(self) -> None:
        """Leave the device, having run the save programs: they are run where the load
        programs have been and all they write has somewhere to go at once."""
        device = self._device
        if device is None:
            return
        with device.seat.turn():
            self._leave(save=True)
            self._device = None

    # -- connecting anchors

    def set_callback_for_anchor(
        self, anchor_handle: str, callback: CallbackHandle
    ) -> None:
        """Connect the anchor with this stream handle to a callback, in place of
        whatever it was connected to. UnknownAnchor where there is none."""
        self._connections.set_callback(anchor_handle, callback)

    def set_user_input_handler(
        self,
        factory: CallbackFactory,
        predicate: AnchorCallbackPredicate | None = None,
        skip_connected: bool = False,
    ) -> None:
        """Ask `factory` for a callback for each of `user_input_anchors`.

        None leaves what is connected in place. `predicate` selects anchors
        (`AnchorCallbackPolicy`); `skip_connected`: only those that nothing but a dummy
        is connected to.
        """
        kind = TensorType.INPUT
        self._connections.set_handler(kind, factory, predicate, skip_connected)

    def set_user_output_handler(
        self,
        factory: CallbackFactory,
        predicate: AnchorCallbackPredicate | None = None,
        skip_connected: bool = False,
    ) -> None:
        """The same for each of `user_output_anchors`."""
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

        The predicates select anchors; without one, all get a queue. See `QueueManager`
        for the rest. A new call replaces the queues of the last one.
        """
        if self._model.metadata.replication_factor > 1:
            raise InvalidConfig(
                "queues need a model that is compiled for one replica, this one is for "
                f"{self._model.metadata.replication_factor}"
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
        """The anchors of each of these programs that nothing is connected to; programs
        that have none are left out."""
        return self._connections.not_connected(programs)

    def error_if_anchors_are_not_connected_to_callbacks(
        self, programs: Sequence[int]
    ) -> None:
        """AnchorsNotConnected, which lists them, where there are any."""
        self._connections.check(programs)

    # -- running

    def run_load_programs(self, timeout: float | None = None) -> bool:
        """Run the load programs, which bring weights to the device.

        All runs: `timeout` seconds may pass until DeadlineExceeded ends the session,
        None: any time. False where `stop`, or queues that were disconnected, ended the
        wait for data. Raises what a callback raised, and how the programs failed:
        AnchorsNotConnected, ExecutionFailed, DeviceLost, SessionClosed where the
        session is bound to no device or stopped, DeviceBusy.
        """
        with self._ready():
            done = self._run(self._flow.load, timeout)
            self._is_loaded = self._is_loaded or done
            return done

    def run_main_programs(self, timeout: float | None = None) -> bool:
        """Run the main programs once, after the load programs where these have not been
        run since the session was loaded; otherwise as `run_load_programs`."""
        with self._ready():
            if not self._is_loaded:
                self._is_loaded = self._run(self._flow.load, timeout)
                if not self._is_loaded:
                    return False
            return self._run(self._flow.main, timeout)

    def run_save_programs(self, timeout: float | None = None) -> bool:
        """Run the save programs, which bring back what the device has.

        As `run_load_programs`; SessionClosed too where another session has taken the
        device: the save programs were run then.
        """
        with self._ready(activate=False):
            return self._run(self._flow.save, timeout)

    def run_programs(
        self, programs: Sequence[int], timeout: float | None = None
    ) -> bool:
        """Run programs by their numbers, each once, in this order, and nothing else.

        The order is the caller's affair: main programs need load programs before them.
        InvalidModel for a number that does not exist; otherwise as `run_load_programs`.
        """
        with self._ready():
            done = self._run(programs, timeout)
            if done and set(self._flow.load) <= set(programs):
                self._is_loaded = True
            return done

    # -- life

    def stop(self) -> None:
        """End what is running and disconnect the queues; nothing runs until `reload`.

        What the programs had done by then is undefined.
        """
        self._stopped = True
        if self._queues is not None:
            self._queues.disconnect_all()
        link = self._link
        if link is not None:
            link.end()

    def reload(self) -> None:
        """Load the executable again on the bound device, after `stop` or after the
        device was lost (which is started again). Disconnected queues are emptied."""
        device = self._bound()
        with device.seat.turn():
            self._leave(save=False)
            if not device.check():
                device.recover()
            self._stopped = False
            self._activate(device)
        if self._queues is not None:
            self._queues.reset_disconnected()

    def close(self) -> None:
        """Stop and leave the device; the save programs are not run. Gives back a device
        that the session attached itself. Idempotent."""
        self.stop()
        device, self._device = self._device, None
        if device is not None:
            # A callback that does not return keeps the turn for ever.
            with contextlib.suppress(DeviceBusy), device.seat.turn():
                self._leave(save=False, device=device)
        if self._own_device is not None:
            self._own_device.close()
            self._own_device = None

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        where = "unbound" if self._device is None else f"on {self._device.id}"
        state = "stopped" if self._stopped else "active" if self.is_active else "idle"
        return f"<Session {self._model.metadata.executable!r} {where}, {state}>"

    # -- helpers

    @property
    def _flow(self) -> ProgramFlow:
        return self._model.metadata.program_flow

    def _bound(self) -> Device:
        if self._device is None:
            raise SessionClosed(f"{self!r} cannot run: bind it to a device")
        return self._device

    @contextlib.contextmanager
    def _ready(self, *, activate: bool = True) -> Iterator[None]:
        """Have the turn, and be loaded."""
        device = self._bound()
        if self._stopped:
            raise SessionClosed(f"{self!r} cannot run before it is reloaded")
        with device.seat.turn():
            if not self.is_active:
                if not activate:
                    raise SessionClosed(
                        f"{self!r} is not loaded: {device.seat.session!r} is"
                    )
                self._activate(device)
            yield

    def _activate(self, device: Device) -> None:
        """Be the session on the device. Having the turn."""
        other = device.seat.session
        if other is not None and other is not self:
            other._leave(save=True)
        message = self._load_message(device)
        with handed_over(self._model) as (message["sources"], fds):
            self._link = SessionLink(device, message, fds)
        self._is_loaded = False
        device.seat.session = self

    def _load_message(self, device: Device) -> Message:
        return {
            "op": "session",
            "executable": self._model.metadata.executable,
            "threads": device.threads,
            "providers": list(device.providers),
            "check_package_hash": self.config.check_package_hash,
            "look_ahead": self.config.look_ahead,
        }

    def _leave(self, *, save: bool, device: Device | None = None) -> None:
        """Be loaded no more. Having the turn."""
        device = device or self._device
        if save:
            self._save_implicitly()
        link, self._link = self._link, None
        if link is not None:
            link.close()
        self._is_loaded = False
        if device is not None and device.seat.session is self:
            device.seat.session = None

    def _save_implicitly(self) -> None:
        programs = self._flow.save
        if not (programs and self._is_loaded and self.is_active):
            return
        connections = self._connections
        if connections.not_connected(programs) or not connections.sinks_have_room(
            programs
        ):
            logger.warning(
                "%r leaves its device without running its save programs: their outputs "
                "have nowhere to go",
                self,
            )
            return
        try:
            self._run(programs, SAVE_TIMEOUT)
        except Exception:
            logger.exception("the save programs of %r failed", self)

    def _run(self, programs: Sequence[int], timeout: float | None) -> bool:
        link, connections = self._link, self._connections
        if link is None:
            raise SessionClosed(f"{self!r} is not loaded")
        if self._stopped:
            return False
        deadline = None if timeout is None else time.monotonic() + timeout
        running = self._queues.running if self._queues is not None else None
        if running is not None:
            running.mark()
        try:
            link.run(programs, connections, deadline)
        except SessionEnded:
            if self._stopped:
                return False
            raise self._why_it_ended() from None
        finally:
            if running is not None:
                running.clear()
            if link.ended:
                self._stopped = True
        return connections.all_real

    def _why_it_ended(self) -> EngineError:
        """The connection is gone and nobody of ours has stopped it."""
        self._stopped = True
        device = self._device
        assert device is not None
        fd = device.lost_fileno()
        if fd >= 0:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            poller.poll(_LOST_TIMEOUT * 1000)
        if device.check():
            return SessionClosed(f"{self!r} was ended by its device")
        if device.state is DeviceState.CLOSED:
            return DeviceClosed(f"device {device.id} was closed")
        return DeviceLost(f"device {device.id} was lost while programs ran")
