"""The host's end of a session: it answers the reads of programs and stores their
writes.

`popgate_session_messages` describes the messages. The
thread that called `run` does everything, including calls of callbacks.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import socket
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NoReturn

from engine.errors import DeadlineExceeded, EngineBug, EngineError, ExecutionFailed
from engine.transport import control
from engine.transport.device_messages import (
    Done,
    EndSession,
    OpenSession,
    SessionOpened,
)
from engine.transport.messages import Message, close_all, send
from engine.transport.shared_memory import SharedMemory
from popgate_session_messages import (
    FROM_DEVICE,
    Abort,
    Ahead,
    Data,
    DataLocation,
    FromDevice,
    Need,
    Prefetch,
    Run,
    RunEnded,
    RunFailed,
    Stored,
    Wrote,
)
from popgate_sessions.bindings import InputSource, OutputSink
from popgate_sessions.connections import AnchorConnections

if TYPE_CHECKING:
    from engine.devices.device import Device

logger = logging.getLogger("engine.session.session_link")

#: Seconds for sending the end of a session to the device.
_END_TIMEOUT = 2.0


class SessionEnded(Exception):
    """The connection of the session has ended, by either side."""


class SessionLink:
    """A model loaded on a device, whose programs this side runs.

    `end` is thread-safe; everything else is for one thread at a time.
    """

    def __init__(
        self, device: Device, message: OpenSession, fds: Iterable[int]
    ) -> None:
        """Load the model that `message` and `fds` describe; raise its errors."""
        self._device = device
        self._segments: dict[int, SharedMemory] = {}
        self._bound_version = -1
        self._deadline: float | None = None
        #: Prefetch requests for the next run, if it is of these programs.
        self._next: tuple[tuple[int, ...] | None, tuple[Prefetch, ...]] = None, ()
        self.ended = False
        liveness = device.process.liveness
        self._sock = control.connect(device.process.address, None, liveness)
        try:
            answer, _ = control.ask(
                self._sock, message, SessionOpened, list(fds), liveness
            )
            if liveness is not None:
                for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    control.limit_blocking(self._sock, direction, liveness.interval)
        except BaseException:
            self._sock.close()
            raise
        self._number = answer.session
        self._poller = select.poll()
        self._poller.register(self._sock, select.POLLIN)

    def run(
        self,
        programs: Iterable[int],
        connections: AnchorConnections,
        deadline: float | None = None,
    ) -> None:
        """Run `programs` in order, and return when they have ended.

        `deadline` is a `time.monotonic()` time. Raises the error of the programs or of
        a callback, DeadlineExceeded, and SessionEnded if the connection ended.
        """
        binding = None
        if self._bound_version != connections.version:
            binding = connections.binding
        numbers = tuple(programs)
        expected, prefetches = self._next
        self._next = None, ()
        resume = binding is None and numbers == expected
        self._deadline = deadline
        connections.begin()
        conversation = _Conversation(self, connections, prefetches if resume else ())
        try:
            self.send(Run(numbers, binding, resume, conversation.begin()))
            # The device knows the connections only after this message.
            self._bound_version = connections.version
            self._next = numbers, conversation.hold()
        except BaseException:
            if not conversation.over:
                # The device still runs, waiting for answers that will not come: end the
                # session.
                self.end()
            raise
        finally:
            conversation.rewind()

    def end(self) -> None:
        """End the session in the device, and the running programs; from any thread."""
        # `ended` first: `run`, in its own thread, wakes from the shutdown and asks why.
        self.ended = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        with contextlib.suppress(EngineError, OSError):
            self._device.call(EndSession(self._number), Done, timeout=_END_TIMEOUT)

    def close(self) -> None:
        """End the session and release its resources; nothing may be running."""
        if not self.ended:
            self.end()
        self.abandon()

    def abandon(self) -> None:
        """Release the host's resources, without a message to the device."""
        self._sock.close()
        for memory in self._segments.values():
            memory.close()
        self._segments.clear()

    # -- for the conversation

    def send(self, message: Message, fds: Iterable[int] = ()) -> None:
        while True:
            try:
                return send(self._sock, message, list(fds))
            except BlockingIOError:
                self._check_responsive()
            except OSError:
                raise SessionEnded from None

    @property
    def has_news(self) -> bool:
        return bool(self._poller.poll(0))

    def receive(self) -> FromDevice:
        """Receive the next message of the device and map its new segments."""
        while True:
            if self._deadline is not None:
                left = self._deadline - time.monotonic()
                if left <= 0 or not self._poller.poll(left * 1000):
                    self._too_late()
            try:
                message, fds = FROM_DEVICE.receive(self._sock)
                break
            except BlockingIOError:
                self._check_responsive()
            except (EOFError, OSError):
                raise SessionEnded from None
        try:
            for (number, size), fd in zip(message.segments, fds, strict=True):
                memory = SharedMemory.attach(os.dup(fd), size)
                memory.detach_fd()
                self._segments[number] = memory
        finally:
            close_all(fds)
        return message

    def memory(self, location: DataLocation) -> memoryview:
        number, offset, room = location
        return self._segments[number].view[offset : offset + room]

    def alive(self) -> None:
        """Raise an error if further waiting is pointless."""
        if self.ended:
            raise SessionEnded
        if self._deadline is not None and time.monotonic() > self._deadline:
            self._too_late()
        try:
            gone = self._sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
        except BlockingIOError:
            return
        except OSError:
            gone = True
        if gone:
            raise SessionEnded

    def _check_responsive(self) -> None:
        """Check a device that has been silent for a while.

        Raises SessionEnded if it hangs.
        """
        if not self._device.check_responsive():
            raise SessionEnded

    def _too_late(self) -> NoReturn:
        raise DeadlineExceeded("the programs did not end in time")

    def __repr__(self) -> str:
        state = "ended" if self.ended else "open"
        return f"<SessionLink {self._number} on {self._device.id}, {state}>"


class _Answer:
    """The data of one read, in a place that the device chose or that the host made."""

    __slots__ = ("_index", "_link", "_location", "_made", "_nbytes", "shape")

    def __init__(self, link: SessionLink, index: int, location: DataLocation) -> None:
        self.shape: tuple[int, ...] = ()
        self._link = link
        self._index = index
        self._location = location
        self._made: SharedMemory | None = None
        self._nbytes = 0

    def room(self, nbytes: int) -> memoryview:
        self._nbytes = nbytes
        if nbytes <= self._location.room:
            return self._link.memory(self._location)[:nbytes]
        self._made = SharedMemory.create("stream", nbytes)
        return self._made.view[:nbytes]

    @property
    def message(self) -> Data:
        has_segment = self._made is not None
        return Data(self._index, self._nbytes, self.shape, has_segment)

    def send(self) -> None:
        if self._made is None:
            self._link.send(self.message)
            return
        with self._made as memory:
            self._link.send(self.message, [memory.fd])


class _Conversation:
    """One run: from its first message to its last."""

    def __init__(
        self,
        link: SessionLink,
        connections: AnchorConnections,
        prefetches: tuple[Prefetch, ...],
    ) -> None:
        self.over = True
        self._link = link
        self._sources: dict[int, InputSource] = dict(connections.sources)
        self._sinks: dict[int, OutputSink] = dict(connections.sinks)
        #: Reads that are certain to follow, the next first.
        self._prefetches: deque[Prefetch] = deque(prefetches)
        self._next: tuple[Prefetch, ...] = ()
        #: By anchor: answered reads that the device has not reported as made.
        self._given: Counter[int] = Counter()

    def begin(self) -> tuple[Data, ...]:
        """Return available data, to prefetch with the first message.

        One message for all takes one wake-up of the device instead of one for each.
        """
        data = tuple(answer.message for answer in self._available())
        self.over = False
        return data

    def hold(self) -> tuple[Prefetch, ...]:
        """Exchange messages until the programs have ended; returns the prefetch
        requests for the next run.
        """
        while not self.over:
            if self._prefetches:
                self._attempt(self._give_prefetched)
            message = self._link.receive()
            self._attempt(lambda: self._handle(message))  # noqa: B023 - called here
        return self._next

    def rewind(self) -> None:
        """Take back prefetched data that were not read, so that they can be sent
        again.
        """
        for index in +self._given:
            self._sources[index].rewind()

    def _attempt(self, what: Callable[[], None]) -> None:
        """Call a callback.

        If it fails, tell the programs to end before its error is raised.
        """
        try:
            what()
        except (SessionEnded, DeadlineExceeded):
            raise
        except Exception as error:
            if not self.over:  # otherwise the programs failed
                self._abort(f"{type(error).__name__}: {error}")
            raise

    def _abort(self, why: str) -> None:
        self._prefetches.clear()
        self._link.send(Abort(why[:1000]))
        while not self.over:
            message = self._link.receive()
            self.over = isinstance(message, RunEnded | RunFailed)
            # Reads before the failure count as consumed too.
            try:
                self._note_consumed(message)
            except Exception:
                logger.exception("another callback failed in a run that already fails")

    def _note_consumed(self, message: FromDevice) -> None:
        """Report to all sources what the program has read, even if a callback fails."""
        failed: Exception | None = None
        for index in message.consumed:
            try:
                self._consumed(index)
            except Exception as error:
                if failed is None:
                    failed = error
                else:
                    logger.exception("another callback failed")
        if failed is not None:
            raise failed

    def _handle(self, message: FromDevice) -> None:
        # Set this first. If a callback fails now, `_abort` must not wait for an end
        # that has already arrived.
        self.over = isinstance(message, RunEnded | RunFailed)
        try:
            self._note_consumed(message)
        except Exception as error:
            if isinstance(message, RunFailed):
                raise _error_of(message) from error
            raise
        match message:
            case Need():
                self._prefetches += message.prefetches
                self._needed(message.anchor, message.location)
            case Ahead():
                self._prefetches += message.prefetches
            case Wrote():
                self._written(message)
            case RunEnded():
                self._next = message.prefetches
            case RunFailed():
                raise _error_of(message)

    def _needed(self, index: int, location: DataLocation | None) -> None:
        if location is None:
            if not self._given[index]:
                self._give(index, self._prefetch_of(index))
            self._consumed(index)
            return
        self._give(index, location)
        self._consumed(index)

    def _prefetch_of(self, index: int) -> DataLocation:
        for position, (wanted, location) in enumerate(self._prefetches):
            if wanted == index:
                del self._prefetches[position]
                return location
        raise EngineBug(
            f"the device waits for anchor {index}, which it has not requested; "
            "this is a bug"
        )

    def _give(self, index: int, location: DataLocation) -> None:
        answer = _Answer(self._link, index, location)
        answer.shape = self._sources[index].fetch(answer.room, self._link.alive)
        self._given[index] += 1
        answer.send()

    def _consumed(self, index: int) -> None:
        self._given[index] -= 1
        self._sources[index].consumed()

    def _give_prefetched(self) -> None:
        """Answer prefetch requests whose data are available, until the device needs an
        answer.
        """
        for answer in self._available():
            answer.send()
            if self._link.has_news:
                return

    def _available(self) -> Iterator[_Answer]:
        """Yield prefetched data, in the order of the requests for each anchor."""
        nothing: set[int] = set()
        for prefetch in list(self._prefetches):
            index, location = prefetch
            if index not in nothing:
                answer = _Answer(self._link, index, location)
                shape = self._sources[index].try_fetch(answer.room)
                if shape is None:
                    nothing.add(index)
                    continue
                answer.shape = shape
                self._prefetches.remove(prefetch)
                self._given[index] += 1
                yield answer

    def _written(self, message: Wrote) -> None:
        data = self._link.memory(message.location)[: message.nbytes].toreadonly()
        self._sinks[message.anchor].put(data, message.shape, self._link.alive)
        if message.ack:
            self._link.send(Stored(message.anchor, message.location))


def _error_of(message: RunFailed) -> EngineError:
    error = message.report.to_error()
    if isinstance(error, ExecutionFailed):
        error.callers_fault = message.callers_fault
    return error
