"""`LoadedSession`: a session's model on its device, and the runs of its programs."""

from __future__ import annotations

import contextlib
import logging
import select
import time
from collections.abc import Iterator, Sequence

from engine.devices.device import Device
from engine.devices.device_state import DeviceState
from engine.errors import DeviceClosed, DeviceLost, EngineError, SessionClosed
from engine.model.model_file import handed_over
from engine.transport.device_messages import OpenSession
from engine.transport.messages import encode
from popef_io import TRACE, Model
from popgate_session_messages import SessionModel
from popgate_sessions.connections import AnchorConnections
from popgate_sessions.session_config import SessionConfig
from popgate_sessions.session_lease import lease_of
from popgate_sessions.session_link import SessionEnded, SessionLink

#: Module with the session's half in the device process.
SERVICE = "popgate_session_worker.device_session:DeviceSession"

logger = logging.getLogger("engine.session.loaded_session")

#: Seconds that save programs get when a session is unloaded.
SAVE_TIMEOUT = 10.0
#: Seconds to find out whether a device whose connection ended was lost.
_LOST_TIMEOUT = 2.0


class LoadedSession:
    """A model on the device of a session, until another session takes the device.

    Methods that need the lease are called within `hold`, or `SessionLease.hold` of the
    device. `halt` and `end` are for any thread.
    """

    def __init__(
        self, model: Model, config: SessionConfig, connections: AnchorConnections
    ) -> None:
        #: The device it is bound to, loaded or not.
        self.device: Device | None = None
        self.is_stopped = False
        #: Whether load programs were run since it was loaded.
        self.has_weights = False
        self._model = model
        self._config = config
        self._connections = connections
        self._link: SessionLink | None = None
        self._trace = logger.isEnabledFor(TRACE)
        self._restarts = 0
        #: Whether `halt` stopped it.
        self._halted = False

    @property
    def is_active(self) -> bool:
        """Return whether the session is loaded on its device."""
        return self._link is not None and not self._link.ended

    # -- loading and unloading

    def bind(self, device: Device) -> None:
        """Load on this device, and bind the session to it."""
        self.is_stopped = self._halted = False
        with lease_of(device).hold():
            self.device = device
            try:
                self._load_on(device)
            except BaseException:
                self.device = None
                raise

    @contextlib.contextmanager
    def hold(self, *, load: bool = True) -> Iterator[None]:
        """Hold the lease of the device, with the model loaded on it.

        If another session has taken the device, load it again; without `load` raise
        SessionClosed.
        """
        device = self.bound()
        if self.is_stopped:
            if not self._halted:
                raise SessionClosed(f"{self!r} is stopped; reload it first")
            yield  # `run` returns False: loops over runs need no other way to end
            return
        with lease_of(device).hold():
            if not self.is_active:
                if not load:
                    raise SessionClosed(f"{self!r} is no longer loaded")
                self._load_on(device)
            yield

    def bound(self) -> Device:
        """Return its device; SessionClosed if it has none."""
        if self.device is None:
            raise SessionClosed(f"{self!r} cannot run; bind it to a device first")
        return self.device

    def unload(self, *, save: bool) -> None:
        """Unload; needs the lease.

        With `save` the save programs run first, if load programs have run and all
        outputs of the save programs are connected.
        """
        if save:
            self._save()
        link, self._link = self._link, None
        if link is not None:
            logger.info("%r is unloaded", self)
            link.close()
        self.has_weights = False
        if self.device is not None and lease_of(self.device).holder is self:
            lease_of(self.device).holder = None

    def reload(self) -> None:
        """Load again, on a new process if the device was lost."""
        device = self.bound()
        with lease_of(device).hold():
            self.unload(save=False)
            if not device.check():
                device.recover(by_hand=True)
            self.is_stopped = self._halted = False
            self._load_on(device)

    def abandon(self) -> None:
        """Forget the device, in a forked child: it is the parent's."""
        link, self._link = self._link, None
        if link is not None:
            link.abandon()
        self.device = None

    def halt(self) -> None:
        """Refuse further runs: `run` returns False. Then `end`."""
        self._halted = True
        self.is_stopped = True

    def end(self) -> None:
        """End the running programs."""
        link = self._link
        if link is not None:
            link.end()

    # -- running

    def run(self, programs: Sequence[int], deadline: float | None) -> bool:
        """Run programs; needs the lease. See `Session.run_load_programs`.

        `deadline` is a `time.monotonic()` time.
        """
        link = self._link
        if link is None or self.is_stopped:
            return False
        if self._trace:
            logger.log(TRACE, "%r runs programs %s", self, list(programs))
        try:
            link.run(programs, self._connections, deadline)
        except SessionEnded:
            if self.is_stopped:
                return False
            raise self._why_it_ended() from None
        finally:
            self.is_stopped = self.is_stopped or link.ended
        return self._connections.all_real

    # -- helpers

    def _load_on(self, device: Device) -> None:
        other = lease_of(device).holder
        if other is not None and other is not self:
            other.unload(save=True)
        with handed_over(self._model) as (sources, fds):
            told = SessionModel(
                tuple(sources),
                self._model.metadata.executable,
                device.threads,
                tuple(device.providers),
                self._config.check_package_hash,
                self._config.look_ahead,
            )
            message = OpenSession(SERVICE, encode(told), len(fds))
            self._link = SessionLink(device, message, fds)
        self.has_weights = False
        self._restarts = device.restarts
        lease_of(device).holder = self
        logger.info("%r is loaded", self)

    def _save(self) -> None:
        programs = self._model.metadata.program_flow.save
        if not (programs and self.has_weights and self.is_active):
            return
        was_stopped = self.is_stopped
        try:
            self._connections.check_outlets(programs)
            self.run(programs, time.monotonic() + SAVE_TIMEOUT)
        except Exception as error:
            logger.warning(
                "%r was unloaded, but its save programs did not run: %s", self, error
            )
        finally:
            self.is_stopped = was_stopped  # it is unloaded, even if the link failed

    def _why_it_ended(self) -> EngineError:
        """Return why the connection ended, if this side has not ended it."""
        device = self.bound()
        self.is_stopped = True
        if device.restarts != self._restarts:
            return DeviceLost(
                f"device {device.id} was lost and has been restarted since"
            )
        fd = device.lost_fileno()
        if fd >= 0:
            poller = select.poll()
            poller.register(fd, select.POLLIN)
            poller.poll(_LOST_TIMEOUT * 1000)
        if device.check():
            return SessionClosed(f"{self!r} was ended by its device")
        if device.state is DeviceState.CLOSED:
            return DeviceClosed(f"device {device.id} was closed")
        return device.process.loss()

    def __repr__(self) -> str:
        where = "unbound" if self.device is None else f"on {self.device.id}"
        state = "stopped" if self.is_stopped else "active" if self.is_active else "idle"
        return f"<Session {self._model.metadata.executable!r} {where}, {state}>"
