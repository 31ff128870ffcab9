"""Which session is on a device, and whose turn it is to run programs there."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Protocol

from engine.errors import DeviceBusy
from engine.origin import here

#: Seconds that somebody waits for programs of another session, or thread, to end.
TURN_TIMEOUT = 10.0


class Resident(Protocol):
    """Who sits on the seat, as the session that wants it next sees it."""

    def leave(self, *, save: bool) -> None: ...


class SessionSeat:
    """The seat of a device: one session at a time is on it (Model Runtime: `Device`).

    Model runners have nothing to do with it: their replicas run beside the session.
    """

    def __init__(self) -> None:
        #: Changed by who has the turn only.
        self.resident: Resident | None = None
        self._origin = here()
        self._lock = threading.Lock()
        self._holder: int | None = None

    @property
    def is_mine(self) -> bool:
        """Whether this thread has the turn."""
        return self._holder == threading.get_ident()

    @contextlib.contextmanager
    def turn(self) -> Iterator[None]:
        """Have the device to oneself; DeviceBusy where that takes too long.

        A run that waits for data may go on for ever, so this must not wait for ever.
        """
        self._origin.check("Device")
        if self.is_mine:
            raise DeviceBusy("a callback of a run cannot run programs itself")
        if not self._lock.acquire(timeout=TURN_TIMEOUT):
            raise DeviceBusy(
                f"{self.resident!r} has been running programs for {TURN_TIMEOUT:g} s; "
                "stop it first"
            )
        self._holder = threading.get_ident()
        try:
            yield
        finally:
            self._holder = None
            self._lock.release()

    def __repr__(self) -> str:
        return f"<SessionSeat of {self.resident!r}>"
