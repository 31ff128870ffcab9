"""`LinkedDevice`: a device from the view of a process that sends it requests.

Requests come from the owner of a device (`Device`) and from processes that join it
(`JoinedDevice`). Each has its own link to the device process, with channels on it. No
thread here reads the link, so the side that waits must read it. An event loop watches
`fileno()` and `lost_fileno()` and calls `poll()` and `check()`. `Request.wait` of a
blocking caller does the same. One thread at a time does so for all callers.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence

from engine.devices.connection import DeviceConnection
from engine.devices.device_channels import DeviceChannels
from engine.devices.device_state import READY, STOP_TIMEOUT, DeviceState
from engine.devices.request import RequestChannel
from engine.devices.run_report import RunReport
from engine.devices.waiting import BlockingDriver
from engine.errors import DeviceClosed, DeviceLost, EngineError
from engine.fork_guard import fork_guard
from engine.transport.channel import Channel, ChannelLayout
from engine.transport.control import A
from engine.transport.device_messages import (
    ChannelOpened,
    CloseChannel,
    Done,
    OpenChannel,
)
from engine.transport.link import ALONE, BACKPRESSURE, Completion
from engine.transport.messages import Message


class LinkedDevice(ABC):
    """A device that this process has a link to. Thread-safe."""

    #: Seconds the process may take to answer a ping while a caller waits for it; 0: no
    #: limit. A process that takes longer is taken to hang.
    ping_timeout: float

    def __init__(self, device_id: str, spin_us: int) -> None:
        self.fork_guard = fork_guard()
        self.id = device_id
        self.spin_us = spin_us
        self.lock = threading.RLock()
        self.state = DeviceState.LOST
        #: How often a new process replaced a lost one.
        self.restarts = 0
        self.outstanding = 0  # requests in flight, counted by their channels
        self._connection: DeviceConnection | None = None
        self._result_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.channels = DeviceChannels(self.lock)
        self._taken: deque[Completion] = deque()
        self.blocking = BlockingDriver(self)
        self._busy = False
        self.report = RunReport(self.lock)
        #: Due calls of users' callbacks. The driving side makes them without the lock.
        self.data_requests: deque[Callable[[], None]] = deque()
        #: Work that follows the copies of a thread. The driving side does it.
        self._copied: deque[Callable[[], None]] = deque()

    # -- owners and joined processes implement these differently

    @abstractmethod
    def call(
        self,
        message: Message,
        kind: type[A],
        fds: Sequence[int] = (),
        timeout: float | None = None,
    ) -> A:
        """Send a control message to the process. Return its answer, which is a `kind`.

        Raises the error in the answer, TimeoutError after `timeout` seconds,
        DeviceClosed, and DeviceLost if the process dies or hangs meanwhile.
        """

    @abstractmethod
    def check_responsive(self) -> bool:
        """Return whether the process answers within `ping_timeout` seconds."""

    @abstractmethod
    def want(self) -> DeviceLost:
        """Return the error for a request that needs the lost device."""

    @abstractmethod
    def lose(self) -> None:
        """End the requests in flight. For each process that has ended, once."""

    # -- the process

    def connect(self, connection: DeviceConnection) -> None:
        """Take the connection to a new process, which this object closes. Raises
        DeviceClosed if the device was closed meanwhile.
        """
        with self.lock:
            self._connection = connection  # `close` drops it
            self.report.follow(connection.link)
            self.refuse_if_closed()
            self.state = READY

    def refuse_if_closed(self) -> None:
        if self.state is DeviceState.CLOSED:
            raise DeviceClosed(f"device {self.id} is closed")

    # -- driving

    @property
    def in_flight(self) -> int:
        """Return the number of requests in flight, in constant time."""
        return self.outstanding

    def fileno(self) -> int:
        """Return a descriptor that is readable when results wait. Then call `poll`."""
        return self._result_fd

    def lost_fileno(self) -> int:
        """Return a descriptor that is readable when the process has ended. Then call
        `check`. The descriptor changes on `recover`.
        """
        connection = self._connection
        return connection.sock.fileno() if connection is not None else -1

    def adopt(self) -> None:
        """Let an event loop drive the device from now on. Blocking callers then only
        wait for the loop.
        """
        self.blocking.adopt()
        self.look(False)

    def look(self, alone: bool | None = None) -> bool:
        """Return whether `collect` would find something. Reads memory only.

        `alone`: the caller keeps polling for the only request in flight. None if the
        caller does not drive. Returns True if the process has ended, because the caller
        need not wait then.
        """
        connection = self._connection
        if connection is None:
            return True
        link = connection.link
        try:
            if alone is not None and link.words[ALONE] != alone:
                link.words[ALONE] = alone
            return link.completions.has_news
        except ValueError:  # another thread has closed the link
            return True

    def poll(self) -> int:
        """Resolve finished requests and return their number. Never blocks."""
        if self.fork_guard.left:
            raise self.fork_guard.error("Device")
        blocking = self.blocking
        with self.lock:
            if self._result_fd < 0:  # closed, and another file may have its number
                return 0
            drains = not (blocking.driver and blocking.is_elsewhere)
            try:
                if drains:
                    os.eventfd_read(self._result_fd)
            except BlockingIOError:
                pass
        try:
            count = self.collect()
        except BaseException:
            os.eventfd_write(self._result_fd, 1)  # some results may be left
            raise
        if drains and blocking.driver and blocking.is_elsewhere:
            os.eventfd_write(self._result_fd, 1)  # its request may be done
        return count

    def collect(self) -> int:
        """Resolve finished requests as `poll` does, but do not drain the eventfd. For
        callers that the eventfd did not wake.
        """
        taken, channels, blocking = self._taken, self.channels.by_number, self.blocking
        with self.lock:
            connection = self._connection
            if connection is None:
                return 0
            # The lock is held from taking completions to the last `finish`: slots are
            # released in the order of the completions, whichever thread takes them.
            while self._copied:  # before the completions that follow
                self._copied.popleft()()
            link = connection.link
            link.completions.drain(taken)
            count = len(taken)
            while taken:
                completion = taken[0]
                try:
                    taken.popleft()
                    number, outcome, request, queue, compute, rows, longest, text = (
                        completion
                    )
                    channel = channels.get(number)
                    if channel is not None:
                        channel.finish(
                            outcome, request, queue, compute, rows, longest, text or ""
                        )
                except BaseException:
                    # Process it again next time, with the completions after it.
                    # Finishing a request twice does no harm.
                    taken.appendleft(completion)
                    raise
            # Wake the device only after the slots are released, because it then looks
            # for room.
            if link.words[BACKPRESSURE]:
                connection.wake()
        if count and blocking.followers:
            blocking.notify()
        while self.data_requests:  # without the lock, because these call users' code
            self.data_requests.popleft()()
            blocking.notify()
        return count

    def check(self) -> bool:
        """Return whether the process lives. If not, fail its requests now."""
        self.fork_guard.check("Device")
        connection = self._connection
        if connection is None or self.state is not DeviceState.READY:
            return False
        if not connection.process_is_gone:
            return True
        self.lose()
        return False

    def expire(self) -> int:
        """Fail the requests whose deadline has passed. Return their number.

        Requests that have not begun are dropped. Results of the others are discarded.
        Event loops call it often.
        """
        self.fork_guard.check("Device")
        if not self._busy:
            return 0
        now = time.monotonic_ns()
        with self.lock:
            # The call stays cheap while no model has a request in flight.
            self._busy = self.in_flight > 0
            count = self.channels.expire(now)
        if count:
            self.blocking.notify()
        return count

    def notify(self, channel: int) -> None:
        """Tell the device that a request was published (`LARGE` with the channel's
        number: a large one). Lock held by the caller.
        """
        connection = self._connection
        if connection is None or self.state is not READY:
            raise DeviceLost(f"device {self.id} is {self.state.value}")
        self._busy = True
        try:
            if connection.link.submit(channel):
                os.eventfd_write(connection.wake_fd, 1)
        except BaseException:
            connection.wake()  # it may count as awake already
            raise

    def follow_up(self, after: Callable[[], None]) -> None:
        """Schedule `after`, which the driving side calls with the lock held.

        Callable from any thread while one of the device's channels is open.
        """
        self._copied.append(after)
        os.eventfd_write(self._result_fd, 1)

    def notify_cancelled(self) -> None:
        """Tell the device that requests were marked as cancelled. A run of only such
        requests ends now.
        """
        with self.lock:
            if self._connection is not None:
                self._connection.notify_cancelled()

    def open_channel(
        self, mine: RequestChannel, channel: Channel, layout: ChannelLayout
    ) -> int:
        """Hand a channel over to the process. Return the channel's number in
        completions.
        """
        connection = self._linked()
        message = OpenChannel(
            connection.number,
            mine.replica,
            layout.to_message(),
            mine.priority,
            mine.weight,
            mine.lane,
        )
        number = self.call(message, ChannelOpened, [channel.memory.fd]).channel
        channel.memory.detach_fd()
        with self.lock:
            if self._connection is not connection:  # the next process has other numbers
                raise self.want()
            self.channels.add(number, mine)
        return number

    def close_channel(self, mine: RequestChannel) -> None:
        self.channels.remove(mine)
        with contextlib.suppress(EngineError, OSError):
            message = CloseChannel(self._linked().number, mine.number)
            self.call(message, Done, timeout=STOP_TIMEOUT)
        mine.close()

    def _linked(self) -> DeviceConnection:
        connection = self._connection
        if connection is None:
            raise DeviceLost(f"device {self.id} is {self.state.value}")
        return connection

    def _fail_all(self, error: EngineError) -> None:
        """End all requests in flight, and release the link. The caller holds the lock.

        Takes all steps, even if one of them raises.
        """
        with contextlib.ExitStack() as ends:
            ends.callback(self._drop_link)
            ends.callback(self.channels.lose, error)
            self.poll()  # take the results that came before the process died

    def _drop_link(self, *, closes: bool = False) -> None:
        with self.lock:
            self.report.leave()
            connection, self._connection = self._connection, None
            self._taken.clear()  # they belong to an ended process
            self._copied.clear()
            if connection is not None:
                connection.close()
            if closes:
                fd, self._result_fd = self._result_fd, -1
                os.close(fd)
