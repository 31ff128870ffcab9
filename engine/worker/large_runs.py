"""Runs of large requests beside those of other models, in a thread of less importance.

The thread that schedules runs one batch after the other. A request of 240 MB takes a
second of page faults and copies, and all models of the device would wait for it. So a
replica with a large request *goes aside*: a second thread runs its batches until the
large request has run. That thread is niced, so small requests take the processor first,
and a large one still has a share of it.

The rules
---------
- A replica with a large output goes aside too, for its next runs.
- At most one replica is aside, so only one large request takes memory. The others with
  large requests wait, in their order, and so do their small requests.
- A replica has one run at a time, so the order of the requests of a model stays.
- The second thread touches the replica and its channels, and nothing else. Completions,
  wake-ups and the shares of clients belong to the thread that schedules. The second
  thread passes these on as commands, which run between two batches.
- Announced requests of a replica that is aside are counted when it returns. Other
  commands (unloading, closing a channel) wait until then, as they wait for any run.
- If no other model is loaded, no replica goes aside. Nor does a Python model, because
  its thread has to stay the same.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from engine.errors import EngineBug
from engine.run_failures import ResultsNotTaken
from engine.thread_priority import lower_priority
from engine.transport.anchor_ring import AnchorRing
from engine.transport.link import Completions, Link
from engine.worker.client_channel import ClientChannel
from engine.worker.command_queue import CommandQueue
from engine.worker.connections import ClientProcess
from engine.worker.replica import Replica

#: Seconds between two looks for room in an output.
LOOK_AGAIN = 0.001


class PassedOn(Completions):
    """Completions of a run aside. The thread that schedules puts them into the ring."""

    def __init__(self, link: Link, command_queue: CommandQueue) -> None:
        super().__init__(link.view)
        self._ring = link.completions
        self._queue = command_queue

    def put(self, *completion: Any, **more: Any) -> bool:
        put = partial(self._ring.put, *completion, **more)
        self._queue.do(put, beside=True)
        return True


class EndedRun(NamedTuple):
    """A run aside that has ended.

    `began` is when it began (`time.monotonic_ns`), and `succeeded` how many batches of
    the replica had succeeded before. The rest came meanwhile: replicas that wait for
    the second thread, submissions to the replica, and commands.
    """

    replica: Replica
    began: int
    succeeded: int
    waiting: list[Replica]
    arrived: list[tuple[ClientProcess, int]]
    commands: list[Callable[[], object]]


class LargeRuns:
    """The second thread, and what waits for the end of its present run.

    `replica` runs aside; None if none does. `wake` wakes the clients of some channels.
    `ended` is called after each run, with the channels of its clients. The thread that
    schedules makes these calls, and calls all methods but `wait_room`.
    """

    def __init__(
        self,
        command_queue: CommandQueue,
        wake: Callable[[list[ClientChannel]], None],
        ended: Callable[[list[ClientChannel]], None],
    ) -> None:
        self.replica: Replica | None = None
        self.waiting: list[Replica] = []
        self.arrived: list[tuple[ClientProcess, int]] = []
        self.commands: list[Callable[[], object]] = []
        self._began = self._succeeded = 0
        self._queue = command_queue
        self._wake = wake
        self._ended = ended
        self._runs: queue.SimpleQueue[Replica] = queue.SimpleQueue()
        self._server: threading.Thread | None = None

    def begin(self, replica: Replica, now: int) -> None:
        """Run the next batch of a replica aside. None may be aside already."""
        self.replica, self._began = replica, now
        self._succeeded = replica.batches
        for channel in replica.channels:
            channel.pass_on(PassedOn(channel.link, self._queue))
        if self._server is None:
            self._server = threading.Thread(
                target=self._serve, name="large runs", daemon=True
            )
            self._server.start()
        self._runs.put(replica)

    def collect(self) -> EndedRun:
        """Return the replica that ran aside, after its run."""
        replica = self.replica
        if replica is None:
            raise EngineBug("no replica runs aside")
        for channel in replica.channels:
            channel.pass_on(channel.link.completions)
        ended = EndedRun(
            replica, self._began, self._succeeded,
            self.waiting, self.arrived, self.commands,
        )  # fmt: skip
        self.replica, self.waiting, self.arrived, self.commands = None, [], [], []
        return ended

    def _serve(self) -> None:
        lower_priority()
        while self.run_next():
            pass

    def run_next(self) -> bool:
        """Wait for the next batch and run it, in the second thread. Return false if
        that raised an error, with which the thread that schedules ends the process.
        """
        replica = self._runs.get()
        try:
            touched = replica.step()
        except Exception as error:
            self._queue.do(partial(_raise, error), beside=True)
            return False
        self._queue.do(partial(self._ended, touched), beside=True)
        return True

    @property
    def is_due(self) -> bool:
        """Return whether a batch waits for the second thread."""
        return not self._runs.empty()

    def wait_room(
        self, channel: ClientChannel, anchor: AnchorRing, size: int, seconds: float
    ) -> int:
        """Wait until an output of a run aside has `size` bytes free. Return their
        offset.

        For the second thread. The completions before were passed on, so the client will
        be told of them first.
        """
        self._queue.do(partial(self._wake, [channel]), beside=True)
        deadline = time.monotonic() + seconds
        while (offset := anchor.place(size)) < 0:
            if time.monotonic() >= deadline or channel.link.gone:
                raise ResultsNotTaken(
                    f"the client did not read its results for {seconds} s"
                )
            time.sleep(LOOK_AGAIN)
        return offset

    def __repr__(self) -> str:
        return f"<LargeRuns: {self.replica!r}, {len(self.waiting)} waiting>"


def _raise(error: Exception) -> None:
    raise error
