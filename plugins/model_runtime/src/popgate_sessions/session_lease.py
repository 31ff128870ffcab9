"""The lease of a device: the loaded session, and the thread that runs programs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

from engine.devices.device import Device
from engine.errors import DeviceBusy
from engine.fork_guard import ForkGuard

#: Seconds to wait until programs of another session, or thread, have ended.
LEASE_TIMEOUT = 10.0


class LeaseHolder(Protocol):
    """The loaded session, from the view of the session that is loaded next."""

    def unload(self, *, save: bool) -> None: ...


class SessionLease:
    """Makes sure that one session at a time is loaded on a device (Model Runtime:
    `Device`).

    Model runners need no lease, because their replicas run beside the session.
    """

    def __init__(self, fork_guard: ForkGuard) -> None:
        #: The loaded session. Only the thread that holds the lease changes it.
        self.holder: LeaseHolder | None = None
        self._fork_guard = fork_guard
        self._lock = threading.Lock()
        self._thread: int | None = None

    @property
    def is_mine(self) -> bool:
        """Return whether this thread holds the lease."""
        return self._thread == threading.get_ident()

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the device exclusively. Raises DeviceBusy if waiting for it takes too
        long.

        A run that waits for data may never end, so this must not wait for ever.
        """
        self._fork_guard.check("Device")
        if self.is_mine:
            raise DeviceBusy("a callback of a run cannot start another run")
        if not self._lock.acquire(timeout=LEASE_TIMEOUT):
            raise DeviceBusy(
                f"{self.holder!r} has used the device for {LEASE_TIMEOUT:g} s; stop it "
                "first"
            )
        self._thread = threading.get_ident()
        try:
            yield
        finally:
            self._thread = None
            self._lock.release()

    def __repr__(self) -> str:
        return f"<SessionLease of {self.holder!r}>"


def lease_of(device: Device) -> SessionLease:
    """Return the lease of a device, the same one for all sessions."""
    made = SessionLease(device.fork_guard)
    lease: SessionLease = device.kept.setdefault(SessionLease, made)
    return lease
