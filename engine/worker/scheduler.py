"""The single thread of a device process that runs programs, and its objects.

Only this thread uses rings and replicas. Other threads prepare work, such as loading a
model or mapping a channel. They pass it on as a command, which runs between two
batches.
"""

from __future__ import annotations

import gc
import logging
import os
import select
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from engine.errors import InvalidInput
from engine.run_failures import ResultsNotTaken
from engine.transport.anchor_ring import AnchorRing
from engine.transport.channel import Channel
from engine.transport.link import (
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
from engine.worker.command_queue import CommandQueue
from engine.worker.fair_queue import DeviceShares
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


class RunStatus(NamedTuple):
    """The present run: the number of its replica (0: none runs), when it began
    (`time.monotonic_ns`), how long it has been running, and how long ago it was told to
    end (0: it was not), in nanoseconds.

    The time in which results wait for a client does not count.
    """

    replica: int
    since: int
    running_ns: int
    unwanted_ns: int


class Scheduler:
    """Replicas, clients and waiting requests.

    `run` is for one thread. Other threads pass commands to it through `commands`.
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
        self.commands = CommandQueue(self.wake_fd)
        #: The replicas with waiting requests, in turn.
        self._ready: deque[Replica] = deque()
        self._queued: set[Replica] = set()
        self.shares = DeviceShares()
        self._stopping = False
        self._spinning = Spinning(spin_us * 1000)
        self._woke = time.monotonic_ns()
        self._arena_grown = False
        self._trace = logger.isEnabledFor(TRACE)

    def status(self) -> RunStatus:
        """Return the state of the present run. For any thread."""
        replica, running = self._replica, self.running()
        number = 0 if replica is None else replica.number
        if running is None:
            return RunStatus(number, 0, 0, 0)
        now, unwanted = time.monotonic_ns(), running.unwanted_since
        since = running.since
        return RunStatus(number, since, now - since, now - unwanted if unwanted else 0)

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
        spinning = self._spinning
        if spinning.credit > 0 and not wait_ns and spinning.spin(links):
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
        commands = self.commands.waiting
        while not commands.empty():  # only this thread takes commands
            commands.get_nowait()()
        for client in self.clients.values():
            for number in client.link.submissions.take():
                found = client.channels.get(number)
                if found is None:
                    continue
                channel, replica = found
                channel.pending += 1
                if replica not in self._queued:
                    self._queued.add(replica)
                    self._ready.append(replica)

    def _step(self) -> int:
        """Run the next batch. Return the nanoseconds to wait if none is due yet."""
        if self.shares.is_weighted:
            self._ready = self.shares.in_turn(self._ready)
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
            words[RUNNING] = words[SINCE] = 0
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
            self._queued.discard(replica)
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
        if replica in self._queued:
            self._ready.remove(replica)
            self._queued.discard(replica)
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
        if replica in self._queued and not replica.pending:
            # Otherwise its delay would begin again and again without gathering
            # anything.
            self._ready.remove(replica)
            self._queued.discard(replica)

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
