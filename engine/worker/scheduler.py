"""The single thread of a device process that runs programs, and its objects.

Only this thread uses rings and replicas. Other threads prepare work, such as loading a
model or mapping a channel. They pass it on as a command, which runs between two
batches.
"""

from __future__ import annotations

import gc
import logging
import os
import queue
import select
import threading
import time
from collections import deque
from collections.abc import Callable

from engine.errors import InvalidInput
from engine.run_failures import ResultsNotTaken
from engine.transport.anchor_ring import AnchorRing
from engine.transport.channel import Channel
from engine.transport.link import (
    ALONE,
    BACKPRESSURE,
    BUSY,
    PARKED,
    RUNNING,
    SINCE,
    SUCCEEDED,
    Link,
)
from engine.transport.ring_buffer import full_fence
from engine.worker.batch import RunningBatch
from engine.worker.client_channel import ClientChannel
from engine.worker.fair_queue import DeviceShares
from engine.worker.replica import Replica
from popef_io import TRACE

logger = logging.getLogger(__name__)

#: Seconds that a result waits for room in an output before its request fails. By then
#: the client must have stopped collecting its results.
ROOM_TIMEOUT = 10.0
#: Requests that follow each other sooner than this come from several clients. Sleeping
#: lets them gather to a batch.
SPIN_FROM_NS = 60_000
#: The device stops spinning after this many spins without a submission.
SPIN_CREDIT = 4
#: The additional cost of a wake-up compared with a poll, in nanoseconds.
WAKE_NS = 40_000
#: A run that takes longer may grow the memory arena.
LONG_NS = 5_000_000
#: After a long run the arena is trimmed once no request has come for this time.
IDLE_TRIM_NS = 10_000_000_000
#: `select` takes file descriptors below this number.
SELECT_SIZE = 1024


class ClientProcess:
    """A client process: its link and the eventfd that wakes it."""

    def __init__(self, number: int, link: Link, wake_fd: int, pid: int) -> None:
        self.number = number
        self.link = link
        self.wake_fd = wake_fd
        self.pid = pid
        self.channels: dict[int, tuple[ClientChannel, Replica]] = {}

    def close(self) -> None:
        self.link.close()
        os.close(self.wake_fd)

    def __repr__(self) -> str:
        return (
            f"<ClientProcess {self.number} of process {self.pid}, {len(self.channels)}>"
        )


def _used(replica: Replica) -> float:
    return replica.used


class Scheduler:
    """Replicas, clients and waiting requests.

    `run` is for one thread. Other threads pass commands to it through `do` and `call`.
    `spin_us` is how long it polls for the next request before it sleeps
    (engine/devices/thread_plan.py). `give_back_memory` is called after a while without
    requests, and by the thread that unloads a model.
    """

    def __init__(
        self, spin_us: int = 0, give_back_memory: Callable[[], object] = gc.collect
    ) -> None:
        self.give_back_memory = give_back_memory
        self.wake_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self.clients: dict[int, ClientProcess] = {}
        self._links: list[Link] = []  # the links of all clients
        self.replicas: dict[int, Replica] = {}
        self.batches = 0
        self.busy_ns = 0
        self._succeeded = 0
        self._replica: Replica | None = None
        self._poller = select.poll()
        self._poller.register(self.wake_fd, select.POLLIN)
        self._commands: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()
        self._ready: deque[Replica] = deque()
        #: The use of the device by weights and lanes.
        self.shares = DeviceShares()
        self._stopping = False
        self._spin_ns = spin_us * 1000
        self._spin_credit = 0
        self._woke = time.monotonic_ns()
        self._arena_grown = False
        self._trace = logger.isEnabledFor(TRACE)

    @property
    def running_ns(self) -> int:
        """Return how long the present run has been running; 0 if none is."""
        since = self.running_since
        return time.monotonic_ns() - since if since else 0

    @property
    def running_since(self) -> int:
        """Return when the present run began; 0 if none runs.

        The time in which results wait for a client does not count. For any thread.
        """
        running = self.running()
        return 0 if running is None else running.since

    @property
    def running_replica(self) -> int:
        """Return the number of the replica that runs now; 0 if none does. For any
        thread.
        """
        replica = self._replica
        return 0 if replica is None else replica.number

    @property
    def unwanted_ns(self) -> int:
        """Return how long ago the present batch was told to end; 0 if it was not.

        For any thread.
        """
        running = self.running()
        since = 0 if running is None else running.unwanted_since
        return time.monotonic_ns() - since if since else 0

    def running(self) -> RunningBatch | None:
        """Return the run in progress. For any thread."""
        replica = self._replica
        return replica.running if replica is not None else None

    def has_failed(self, replica: int) -> None:
        """Restart the record of whether a run of a replica has succeeded. For the
        thread that runs programs.
        """
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
        if self._spin_credit > 0 and not wait_ns and self._spin(links):
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
            news = news or link.submissions.read_available
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
        if self._spin_ns:
            self._learn(self._woke - began - WAKE_NS, links)

    def _wait(self, wait_ns: int) -> bool:
        """Wait for a wake-up, at most `wait_ns` nanoseconds. Return whether it came.

        `poll` and `epoll` of Python round up to whole milliseconds.
        """
        if self.wake_fd < SELECT_SIZE:
            return bool(select.select([self.wake_fd], [], [], wait_ns / 1e9)[0])
        return bool(self._poller.poll(wait_ns / 1e6))

    def _spin(self, links: list[Link]) -> bool:
        """Poll for submissions for a moment before sleeping. Return whether any came.

        Called only while there is credit. After a few spins without a submission,
        requests are too rare for spinning, and the device sleeps immediately.
        """
        began = time.monotonic_ns()
        end = began + self._spin_ns
        while (now := time.monotonic_ns()) < end:
            for link in links:
                if link.submissions.has_news:
                    self._learn(now - began, links)
                    return True
            # Let other processes have this core.
            os.sched_yield()
        self._spin_credit -= 1
        return False

    def _learn(self, gap_ns: int, links: list[Link]) -> None:
        """Decide whether to spin next time, from the time until the last news came."""
        # Requests of a client that sends one at a time never gather to a batch.
        gathers = gap_ns < SPIN_FROM_NS and not any(link.words[ALONE] for link in links)
        if not gathers and gap_ns < self._spin_ns:
            self._spin_credit = SPIN_CREDIT
        else:
            self._spin_credit -= 1

    def _drain(self) -> None:
        while not self._commands.empty():  # only this thread takes commands
            self._commands.get_nowait()()
        for client in self.clients.values():
            for number in client.link.submissions.take():
                found = client.channels.get(number)
                if found is None:
                    continue
                channel, replica = found
                channel.pending += 1
                if not replica.queued:
                    replica.queued = True
                    self._ready.append(replica)

    def _step(self) -> int:
        """Run the next batch. Return the nanoseconds to wait if none is due yet."""
        if self.shares.is_weighted:
            self._sort_ready()
        now = time.monotonic_ns()
        wait = 0
        for _ in range(len(self._ready)):
            replica = self._ready.popleft()
            due = replica.due_ns(now) if replica.may_wait else now
            if due <= now:
                self._run_batch(replica, now)
                return 0
            self._ready.append(replica)
            wait = min(wait or due - now, due - now)
        return wait

    def _sort_ready(self) -> None:
        """Put first the replica whose next request has used least of the device for its
        weight. Equal replicas keep their order.
        """
        shares = self.shares
        shares.begin_turn()
        for replica in self._ready:
            for channel in replica.channels:
                if channel.pending:
                    shares.see(channel)
        if len(self._ready) > 1:
            self._ready = deque(sorted(self._ready, key=_used))

    def _run_batch(self, replica: Replica, now: int) -> None:
        self._replica = replica
        succeeded = replica.batches
        # The owner reads this if the run kills the process.
        for client in self.clients.values():
            words = client.link.words
            words[RUNNING] = replica.number
            words[SINCE] = now
        touched = replica.step()
        self.busy_ns += time.monotonic_ns() - now
        if replica.batches != succeeded:
            self._succeeded |= 1 << (replica.number & 63)
        for client in self.clients.values():
            words = client.link.words
            words[RUNNING] = 0
            words[SINCE] = 0
            words[BUSY] = self.busy_ns
            words[SUCCEEDED] = self._succeeded
        self._replica = None
        self.batches += 1
        if self._trace:
            taken = (time.monotonic_ns() - now) // 1000
            logger.log(TRACE, "%r ran programs for %d us", replica, taken)
        if replica.pending:
            self._ready.append(replica)
        else:
            replica.queued = False
        self._wake_clients(touched)

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

    # -- commands from other threads

    def do(self, command: Callable[[], object]) -> None:
        self._commands.put(command)
        os.eventfd_write(self.wake_fd, 1)

    def call(self, command: Callable[[], None]) -> None:
        """Call `do` in the thread that runs programs, and wait until it is done. Raises
        the error of `do`.
        """
        done = threading.Event()
        errors: list[Exception] = []

        def wrapped() -> None:
            try:
                command()
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        self.do(wrapped)
        done.wait()
        if errors:
            raise errors[0]

    # -- commands, in the thread that runs programs

    def add_client(self, client: ClientProcess) -> None:
        """Serve a client process that has connected."""
        self.clients[client.number] = client
        self._links.append(client.link)

    def add_replica(self, number: int, replica: Replica) -> None:
        """Serve a model that was loaded."""
        replica.use(self.shares)
        self.replicas[number] = replica

    def add_channel(
        self,
        number: int,
        channel: Channel,
        client: int,
        replica: int,
        priority: int,
        weight: int,
        lane: int,
    ) -> None:
        """Connect a client's channel to a replica."""
        owner, loaded = self.clients.get(client), self.replicas.get(replica)
        if owner is None or loaded is None:
            raise InvalidInput("the model of this channel is not loaded")
        mine = ClientChannel(number, channel, owner.link, priority, weight, lane)
        owner.channels[number] = (mine, loaded)
        loaded.add(mine)

    def unload(self, number: int) -> None:
        """Close a replica and every channel to it."""
        replica = self.replicas.pop(number, None)
        if replica is None:
            return
        for client in self.clients.values():
            for key, (channel, of) in list(client.channels.items()):
                if of is replica:
                    del client.channels[key]
                    self.shares.remove(channel)
                    channel.channel.close()
        if replica in self._ready:
            self._ready.remove(replica)
        replica.close()

    def close_channel(self, client: int, number: int) -> None:
        """Disconnect a channel."""
        owner = self.clients.get(client)
        found = owner.channels.pop(number, None) if owner is not None else None
        if found is not None:
            channel, replica = found
            self._disconnect(channel, replica)

    def _disconnect(self, channel: ClientChannel, replica: Replica) -> None:
        replica.remove(channel)
        channel.channel.close()
        if replica.queued and not replica.pending:
            # Otherwise its delay would begin again and again without gathering
            # anything.
            self._ready.remove(replica)
            replica.queued = False

    def drop_client(self, client: ClientProcess) -> None:
        """Free the channels of an ended client process.

        Replicas stay loaded as long as the owner of the device wants them.
        """
        if self.clients.pop(client.number, None) is None:
            return
        for channel, replica in client.channels.values():
            self._disconnect(channel, replica)
        client.channels.clear()
        self._links.remove(client.link)
        client.close()

    def stop(self) -> None:
        """Make `run` return after the present run."""
        self._stopping = True

    def __repr__(self) -> str:
        return (
            f"<Scheduler {len(self.replicas)} replicas, {len(self.clients)} clients, "
            f"{self.batches} batches>"
        )
