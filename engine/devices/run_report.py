"""`RunReport`: the runs of a device process, as the process reports them in the memory
of its link.
"""

from __future__ import annotations

import threading

from engine.transport.link import ASIDE, ASIDE_SINCE, RUNNING, SINCE, SUCCEEDED, Link

#: The words of a link on which nothing runs.
_NOTHING = memoryview(bytes(8 * (ASIDE_SINCE + 1))).cast("Q")


class RunReport:
    """Reads the report of the present process, also after it has died. Reads memory
    only.

    `lock` guards `link`, which may end at any time. Without a link nothing runs.
    """

    __slots__ = ("_busy_before", "_busy_ns", "_lock", "_words", "link")

    def __init__(self, lock: threading.RLock) -> None:
        self._lock = lock
        self.link: Link | None = None
        self._words = _NOTHING
        self._busy_ns = 0  # as last reported,
        self._busy_before = 0  # and of ended processes

    def follow(self, link: Link) -> None:
        """Read the report of a new process from now on. The caller holds the lock."""
        self.link, self._words = link, link.words

    def leave(self) -> None:
        """Stop reading, because the link ends. The caller holds the lock."""
        self._busy_before = self.busy_ns
        self.link, self._words = None, _NOTHING

    @property
    def running(self) -> list[int]:
        """Return the numbers of the replicas that run now, at most two."""
        with self._lock:
            words = self._words
            return [int(words[at]) for at in (RUNNING, ASIDE) if words[at]]

    def since(self, replica: int) -> int:
        """Return when the present run of this replica began (`time.monotonic_ns`); 0 if
        it does not run.
        """
        with self._lock:
            words = self._words
            for running, began in ((RUNNING, SINCE), (ASIDE, ASIDE_SINCE)):
                since = words[began]
                if words[running] == replica:
                    return int(since)
            return 0

    @property
    def is_occupied(self) -> bool:
        """Return whether the process runs a program now, for any client."""
        with self._lock:
            words = self._words
            return words[SINCE] != 0 or words[ASIDE_SINCE] != 0

    def has_succeeded(self, replica: int) -> bool:
        """Return whether a run of a replica has succeeded since its last failure."""
        with self._lock:
            return bool(self._words[SUCCEEDED] >> (replica & 63) & 1)

    @property
    def busy_ns(self) -> int:
        """Return the nanoseconds for which the device's processes have run programs,
        for all clients. Never decreases.
        """
        with self._lock:
            if self.link is not None:
                now = self._busy_before + self.link.busy_ns
                self._busy_ns = max(self._busy_ns, now)
            return self._busy_ns

    def __repr__(self) -> str:
        return f"<RunReport, busy for {self._busy_ns} ns>"
