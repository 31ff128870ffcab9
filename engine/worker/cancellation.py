"""Cancellation: ends a run whose requests are all cancelled or past their deadline.

The thread that runs programs is inside ONNX Runtime and sees nothing until the run is
over. Another thread of the device process sleeps on an eventfd, the *cancel eventfd*. A
client writes to it after it has marked a request as cancelled (`Request.abandon`: the
client of a server disconnected, or a deadline passed), and so does the end of a client
process. The thread then looks at the batch that runs: if every member is cancelled,
the terminate flag of ONNX Runtime is set, which ends the run before its next node.

Without cancellations this costs a fresh `RunOptions` for each run, 0.2 µs. It is fresh
so that the flag can never hit the run after the one it was meant for.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable

from engine.transport.channel import CANCELLED, REQUEST
from engine.transport.outcome import Outcome
from engine.worker.batch import Entry, RunningBatch

#: After a wake-up it looks again after so many milliseconds: the batch of a request
#: that was cancelled while it was being batched begins only then.
_LOOK_AGAIN_MS = (5, 50)


def terminate_if_cancelled(running: RunningBatch) -> bool:
    """Set the terminate flag if every member is cancelled; returns whether."""
    now = time.monotonic_ns()
    if not all(cancelled_outcome(entry, now) for entry in running.entries):
        return False
    running.options.terminate = True
    running.unwanted_since = running.unwanted_since or now
    return True


def cancelled_outcome(entry: Entry, now: int) -> Outcome | None:
    """Return the outcome of a request that is past its deadline, cancelled, or of an
    ended client process; None if its client still waits.
    """
    client = entry.client
    _, _, flags, deadline, _ = REQUEST.unpack_from(client.channel.view, entry.at)
    if 0 < deadline < now:
        return Outcome.EXPIRED
    if client.link.gone or flags & CANCELLED:
        return Outcome.CANCELLED
    return None


class Terminator:
    """The thread that waits on the cancel eventfd.

    `running` returns the batch that runs at this moment, or None.
    """

    def __init__(self, running: Callable[[], RunningBatch | None]) -> None:
        self.cancel_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._running = running
        self._poller = select.poll()
        self._poller.register(self.cancel_fd, select.POLLIN)

    def end_run(self, since: int, why: str) -> None:
        """End the run that began at `since`, unless it has ended: its requests fail."""
        running = self._running()
        if running is not None and running.since == since:
            running.failure = why
            running.options.terminate = True

    def start(self) -> None:
        """Begin to listen, in a thread that ends with the process."""
        threading.Thread(target=self._listen, name="terminator", daemon=True).start()

    def wake(self) -> None:
        os.eventfd_write(self.cancel_fd, 1)

    def _listen(self) -> None:
        while True:
            self._poller.poll()
            self._look()
            for pause in _LOOK_AGAIN_MS:
                self._poller.poll(pause)
                self._look()

    def _look(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.cancel_fd)
        running = self._running()
        if running is None:
            return
        try:
            terminate_if_cancelled(running)
        except ValueError:
            # The batch has ended meanwhile, and its channel was unmapped.
            return

    def __repr__(self) -> str:
        return f"<Terminator of {self._running()!r}>"
