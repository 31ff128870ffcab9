"""The thread of a device process that runs programs, and its objects.

Only this thread uses rings and replicas, except for one replica with large requests
(engine/worker/large_runs.py). Other threads prepare work, such as loading a model or
mapping a channel. They pass it on as a command, which runs between two batches.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import time
from collections.abc import Callable

from engine.run_failures import ResultsNotTaken
from engine.transport.anchor_ring import AnchorRing
from engine.transport.link import (
    ASIDE,
    ASIDE_SINCE,
    BACKPRESSURE,
    BUSY,
    LARGE,
    PARKED,
    RUNNING,
    SINCE,
    SUCCEEDED,
)
from engine.transport.ring_buffer import full_fence
from engine.worker.client_channel import ClientChannel
from engine.worker.command_queue import CommandQueue
from engine.worker.connections import ClientProcess, Connections
from engine.worker.large_runs import LargeRuns
from engine.worker.replica import Replica
from engine.worker.spinning import Spinning
from popef_io import TRACE

logger = logging.getLogger(__name__)

#: Seconds that a result waits for room in an output before its request fails. By then
#: the client must have stopped collecting its results.
ROOM_TIMEOUT = 10.0
#: A run that takes longer may grow the memory arena.
LONG_NS = 5_000_000
#: After a long run the arena is trimmed once no request has come for this time.
IDLE_TRIM_NS = 10_000_000_000
#: `select` takes file descriptors below this number.
SELECT_SIZE = 1024


class Scheduler:
    """Replicas, clients and waiting requests.

    `run` is for one thread. Other threads pass commands to it through `commands`.
    `spin_us` is how long it polls for the next request before it sleeps
    (engine/devices/thread_plan.py). `give_back_memory` is called after a while without
    requests, and by the thread that unloads a model. With `one_thread` large requests
    run in the thread of all others.
    """

    def __init__(
        self,
        spin_us: int = 0,
        give_back_memory: Callable[[], object] = gc.collect,
        *,
        one_thread: bool = False,
    ) -> None:
        self._one_thread = one_thread
        #: Commands change these objects.
        self.connections = made = Connections()
        self.clients, self.replicas = made.clients, made.replicas
        self.shares, self._links = made.shares, made.links
        self._ready, self._queued = made.ready, made.queued
        self._go_aside = made.go_aside
        self.give_back_memory = give_back_memory
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self.batches = 0
        self.busy_ns = 0
        self._succeeded = 0
        self._replica: Replica | None = None
        self._poller = select.poll()
        self._poller.register(self.wake_fd, select.POLLIN)
        self.commands = CommandQueue(self.wake_fd)
        self._large = LargeRuns(
            self.commands, self._wake_clients, self._return_from_aside
        )
        self._stopping = False
        self._spinning = Spinning(spin_us * 1000)
        self._woke = time.monotonic_ns()
        self._arena_grown = False
        self._trace = logger.isEnabledFor(TRACE)

    def at_work(self) -> list[Replica]:
        """Return the replicas that run now, at most two. For any thread."""
        pair = self._replica, self._large.replica
        return [replica for replica in pair if replica is not None]

    def has_failed(self, replica: int) -> None:
        """Forget that runs of a replica succeeded. For the thread that schedules."""
        self._succeeded &= ~(1 << (replica & 63))
        for link in self._links:
            link.words[SUCCEEDED] = self._succeeded

    def run(self) -> None:
        """Serve until `stop` is called."""
        while True:
            self._drain()
            if self._stopping:
                return
            if self._ready:
                wait = self._step()
                if wait <= 0:
                    continue
                self._sleep(wait)
            else:
                self._sleep()

    def _sleep(self, wait_ns: int = 0) -> None:
        """Wait for news, at most `wait_ns` (0: for ever).

        The docstring of engine/transport/link.py explains waking.
        """
        links = self._links
        spinning = self._spinning
        if (
            spinning.credit > 0
            and not wait_ns
            and self._large.replica is None  # which would have to wait meanwhile
            and spinning.spin(links)
        ):
            return
        began = time.monotonic_ns()
        self._arena_grown |= began - self._woke > LONG_NS
        trims = self._arena_grown and not wait_ns
        if trims:
            wait_ns = IDLE_TRIM_NS
        # Set `parked`, then check the submissions once more, then sleep. A client
        # publishes first and checks `parked` second. Both sides use a full fence in
        # between, so at least one of them sees the other, and the device misses no
        # submission.
        for link in links:
            link.words[PARKED] = 1
        full_fence()
        news = False
        for link in links:  # a loop, because a generator costs more at every wake-up
            news = news or link.submissions.has_news
        if not news:
            if not wait_ns or self._wait(wait_ns):
                try:  # noqa: SIM105 - would cost three more calls at every wake-up
                    os.eventfd_read(self.wake_fd)
                except InterruptedError:
                    pass  # a Python model's signal handler raised it
            elif trims:
                self._arena_grown = False
                self.give_back_memory()
        for link in links:
            link.words[PARKED] = 0
        self._woke = time.monotonic_ns()
        if spinning.limit_ns:
            spinning.learn_from_sleep(self._woke - began, links)

    def _wait(self, wait_ns: int) -> bool:
        """Wait for a wake-up, at most `wait_ns` nanoseconds. Return whether it came.

        `poll` and `epoll` of Python round up to whole milliseconds.
        """
        if self.wake_fd < SELECT_SIZE:
            return bool(select.select([self.wake_fd], [], [], wait_ns / 1e9)[0])
        return bool(self._poller.poll(wait_ns / 1e6))

    def _drain(self) -> None:
        commands, large = self.commands.waiting, self._large
        while not commands.empty():  # only this thread takes commands
            command, beside = commands.get_nowait()
            if beside or large.replica is None:
                command()
            else:
                large.commands.append(command)
        aside = large.replica
        for client in self.clients.values():
            for number in client.link.submissions.drain():
                found = client.channels.get(number)
                if found is None or found[1] is aside:
                    self._receive(client, number)
                    continue
                channel, replica = found
                channel.pending += 1
                if replica not in self._queued:
                    self._queued.add(replica)
                    self._ready.append(replica)

    def _receive(self, client: ClientProcess, number: int) -> None:
        """Receive a submission that is large, or to no channel or the replica aside."""
        found = client.channels.get(number & ~LARGE)
        if found is None:
            return
        channel, replica = found
        if replica is self._large.replica:
            self._large.arrived.append((client, number))
            return
        channel.pending += 1
        if number & LARGE and self._may_go_aside:
            channel.note_large()
            self._go_aside.add(replica)
        if replica not in self._queued:
            self._queued.add(replica)
            self._ready.append(replica)

    @property
    def _may_go_aside(self) -> bool:
        return len(self.replicas) > 1 and not self._one_thread

    def _step(self) -> int:
        """Run the next batch. Return the nanoseconds to wait if none is due yet."""
        if self.shares.is_weighted:
            turn = [*self.shares.in_turn(self._ready)]
            self._ready.clear()
            self._ready.extend(turn)
        now = time.monotonic_ns()
        wait = 0
        for _ in range(len(self._ready)):
            replica = self._ready.popleft()
            due = replica.due_ns(now) if replica.may_wait else now
            if due <= now:
                if replica in self._go_aside:
                    self._run_aside(replica, now)
                    continue
                self._replica, succeeded = replica, replica.batches
                # The owner reads this if the run kills the process.
                for client in self.clients.values():
                    words = client.link.words
                    words[RUNNING] = replica.number
                    words[SINCE] = now
                touched = replica.step()
                self._replica = None
                if self._large.replica is None:
                    self.busy_ns += time.monotonic_ns() - now
                if replica.results.large_runs and self._may_go_aside:
                    self._go_aside.add(replica)
                self._end_run(replica, succeeded, touched, RUNNING, SINCE)
                if self._trace:
                    taken = (time.monotonic_ns() - now) // 1000
                    logger.log(TRACE, "%r ran programs for %d us", replica, taken)
                return 0
            self._ready.append(replica)
            wait = min(wait or due - now, due - now)
        return wait

    def _end_run(
        self,
        replica: Replica,
        succeeded: int,
        touched: list[ClientChannel],
        running: int,
        since: int,
    ) -> None:
        """Record the end of a run, before which `succeeded` batches of the replica had
        succeeded. `running` and `since` are the words of the run in the links. Wake the
        clients of the channels `touched`.
        """
        if replica.batches != succeeded:
            self._succeeded |= 1 << (replica.number & 63)
        for client in self.clients.values():
            words = client.link.words
            words[running] = words[since] = 0
            words[BUSY] = self.busy_ns
            words[SUCCEEDED] = self._succeeded
        self.batches += 1
        if replica.pending:
            self._ready.append(replica)
        else:
            self._queued.discard(replica)
        self._wake_clients(touched)

    def _run_aside(self, replica: Replica, now: int) -> None:
        """Run the next batch in the second thread, or let the replica wait for it."""
        if self._large.replica is not None:
            self._large.waiting.append(replica)
            return
        for client in self.clients.values():
            words = client.link.words
            words[ASIDE] = replica.number
            words[ASIDE_SINCE] = now
        self._large.begin(replica, now)

    def _return_from_aside(self, touched: list[ClientChannel]) -> None:
        """Take back the replica whose run aside has ended, and do what waited."""
        ended = self._large.collect()
        self.shares.settle()
        replica = ended.replica
        stays = replica.results.large_runs > 0 and self._may_go_aside
        if not (stays or any(channel.has_large for channel in replica.channels)):
            self._go_aside.discard(replica)
        self._arena_grown = True
        self.busy_ns += time.monotonic_ns() - ended.began
        self._ready.extendleft(reversed(ended.waiting))
        for client, number in ended.arrived:
            self._receive(client, number)
        self._end_run(replica, ended.succeeded, touched, ASIDE, ASIDE_SINCE)
        for command in ended.commands:
            command()

    def _wake_clients(self, touched: list[ClientChannel]) -> None:
        for client in self.clients.values():
            for channel in touched:
                if channel.link is client.link:
                    try:  # noqa: SIM105 - a context manager costs time
                        os.eventfd_write(client.wake_fd, 1)
                    except BlockingIOError:
                        pass
                    break

    def wait_room(self, channel: ClientChannel, anchor: AnchorRing, size: int) -> int:
        """Wait until an output has `size` bytes free. Return their offset.

        This is backpressure, because the client has not collected enough of its
        results.
        """
        if channel.completions is not channel.link.completions:
            return self._large.wait_room(channel, anchor, size, ROOM_TIMEOUT)
        deadline = time.monotonic() + ROOM_TIMEOUT
        channel.link.words[BACKPRESSURE] = 1
        try:
            while (offset := anchor.place(size)) < 0:
                self._wake_clients([channel])
                left = deadline - time.monotonic()
                if left <= 0 or self._stopping or channel.link.gone:
                    raise ResultsNotTaken(
                        f"the client did not read its results for {ROOM_TIMEOUT} s"
                    )
                # Submissions write to the same eventfd. Reading it here loses none,
                # because the loop drains all submissions after this batch. `finally`
                # writes to it once more, so that the loop drains them before it sleeps.
                if self._poller.poll(min(left, 0.1) * 1000):
                    os.eventfd_read(self.wake_fd)
        finally:
            channel.link.words[BACKPRESSURE] = 0
            os.eventfd_write(self.wake_fd, 1)
        return offset

    def stop(self) -> None:
        """Make `run` return after the present run."""
        self._stopping = True

    def __repr__(self) -> str:
        return (
            f"<Scheduler {len(self.replicas)} replicas, {len(self.clients)} clients, "
            f"{self.batches} batches>"
        )
