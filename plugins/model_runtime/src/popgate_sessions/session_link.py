"""The host's end of a session: it answers the reads of programs and stores their
writes.

The messages are described at the head of `popgate_session_worker.host_streams`. The
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
from typing import TYPE_CHECKING, Any, NoReturn

from engine.errors import (
    DeadlineExceeded,
    EngineBug,
    EngineError,
    ExecutionFailed,
)
from engine.transport import control
from engine.transport.control import RUN_MESSAGE
from engine.transport.device_messages import (
    Done,
    EndSession,
    OpenSession,
    SessionOpened,
)
from engine.transport.messages import close_all
from engine.transport.shared_memory import SharedMemory
from popgate_sessions.bindings import InputSource, OutputSink
from popgate_sessions.connections import Connections

if TYPE_CHECKING:
    from engine.devices.device import Device

logger = logging.getLogger("engine.session.session_link")

#: Seconds for sending the end of a session to the device.
_END_TIMEOUT = 2.0

Message = dict[str, Any]
PlaceMessage = list[int]
"""Segment, offset, room."""
Prefetch = tuple[int, PlaceMessage]
"""A request to prefetch: an anchor, and the place for its next data."""


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
        self._next: tuple[list[int] | None, list[Prefetch]] = None, []
        self.ended = False
        watch = device.process.watch
        self._sock = control.connect(device.process.address, None, watch)
        try:
            answer, _ = control.ask(
                self._sock, message, SessionOpened, list(fds), watch
            )
            if watch is not None:
                for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    control.limit_blocking(self._sock, direction, watch.interval)
        except BaseException:
            self._sock.close()
            raise
        self._number = answer.session
        self._poller = select.poll()
        self._poller.register(self._sock, select.POLLIN)

    def run(
        self,
        programs: Iterable[int],
        connections: Connections,
        deadline: float | None = None,
    ) -> None:
        """Run `programs` in order, and return when they have ended.

        `deadline` is a `time.monotonic()` time. Raises the error of the programs or of
        a callback, DeadlineExceeded, and SessionEnded if the connection ended.
        """
        bind = None
        if self._bound_version != connections.version:
            bind = connections.to_message()
        numbers = list(programs)
        expected, prefetches = self._next
        self._next = None, []
        resume = bind is None and numbers == expected
        self._deadline = deadline
        connections.begin()
        conversation = _Conversation(self, connections, prefetches if resume else [])
        message: Message = {
            "op": "run",
            "programs": numbers,
            "bind": bind,
            "resume": resume,
        }
        try:
            message["data"] = conversation.begin()
            self.send(message)
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
                return control.send(self._sock, message, list(fds))
            except BlockingIOError:
                self._check_responsive()
            except OSError:
                raise SessionEnded from None

    @property
    def has_news(self) -> bool:
        return bool(self._poller.poll(0))

    def receive(self) -> Message:
        """Receive the next message of the device and map its new segments."""
        while True:
            if self._deadline is not None:
                left = self._deadline - time.monotonic()
                if left <= 0 or not self._poller.poll(left * 1000):
                    self._too_late()
            try:
                message, fds = control.receive(self._sock, RUN_MESSAGE)
                break
            except BlockingIOError:
                self._check_responsive()
            except (EOFError, OSError):
                raise SessionEnded from None
        try:
            for (number, size), fd in zip(message.get("new", []), fds, strict=True):
                memory = SharedMemory.attach(os.dup(fd), int(size))
                memory.detach_fd()
                self._segments[number] = memory
        finally:
            close_all(fds)
        return message

    def memory(self, place: PlaceMessage) -> memoryview:
        number, offset, room = place
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

    __slots__ = ("_index", "_link", "_made", "_nbytes", "_place", "shape")

    def __init__(self, link: SessionLink, index: int, place: PlaceMessage) -> None:
        self.shape: tuple[int, ...] = ()
        self._link = link
        self._index = index
        self._place = place
        self._made: SharedMemory | None = None
        self._nbytes = 0

    def room(self, nbytes: int) -> memoryview:
        self._nbytes = nbytes
        if nbytes <= self._place[2]:
            return self._link.memory(self._place)[:nbytes]
        self._made = SharedMemory.create("stream", nbytes)
        return self._made.view[:nbytes]

    def to_message(self) -> Message:
        return {
            "op": "data",
            "anchor": self._index,
            "nbytes": self._nbytes,
            "shape": list(self.shape),
        }

    def send(self) -> None:
        if self._made is None:
            self._link.send(self.to_message())
            return
        with self._made as memory:
            self._link.send(self.to_message(), [memory.fd])


class _Conversation:
    """One run: from its first message to its last."""

    def __init__(
        self, link: SessionLink, connections: Connections, prefetches: list[Prefetch]
    ) -> None:
        self.over = True
        self._link = link
        self._sources: dict[int, InputSource] = dict(connections.sources)
        self._sinks: dict[int, OutputSink] = dict(connections.sinks)
        #: Reads that are certain to follow, the next first.
        self._prefetches: deque[Prefetch] = deque(prefetches)
        self._next: list[Prefetch] = []
        #: By anchor: answered reads that the device has not reported as made.
        self._given: Counter[int] = Counter()

    def begin(self) -> list[Message]:
        """Return available data, to prefetch with the first message.

        One message for all takes one wake-up of the device instead of one for each.
        """
        data = [answer.to_message() for answer in self._available()]
        self.over = False
        return data

    def hold(self) -> list[Prefetch]:
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
        self._link.send({"op": "abort", "why": why[:1000]})
        while not self.over:
            message = self._link.receive()
            self.over = message["op"] in ("done", "failed")
            # Reads before the failure count as consumed too.
            try:
                self._note_consumed(message)
            except Exception:
                logger.exception("another callback failed in a run that already fails")

    def _note_consumed(self, message: Message) -> None:
        """Report to all sources what the program has read, even if a callback fails."""
        failed: Exception | None = None
        for index in message.get("consumed", []):
            try:
                self._consumed(index)
            except Exception as error:
                if failed is None:
                    failed = error
                else:
                    logger.exception("another callback failed")
        if failed is not None:
            raise failed

    def _handle(self, message: Message) -> None:
        # Set this first. If a callback fails now, `_abort` must not wait for an end
        # that has already arrived.
        self.over = message["op"] in ("done", "failed")
        try:
            self._note_consumed(message)
        except Exception as error:
            if message["op"] == "failed":
                raise _error_of(message) from error
            raise
        match message["op"]:
            case "need":
                self._prefetches += _prefetches_in(message)
                self._needed(int(message["anchor"]), message.get("place"))
            case "prefetch":
                self._prefetches += _prefetches_in(message)
            case "wrote":
                self._written(message)
            case "done":
                self._next = _prefetches_in(message)
            case "failed":
                raise _error_of(message)

    def _needed(self, index: int, place: PlaceMessage | None) -> None:
        if place is None:
            if not self._given[index]:
                self._give(index, self._prefetch_of(index))
            self._consumed(index)
            return
        self._give(index, place)
        self._consumed(index)

    def _prefetch_of(self, index: int) -> PlaceMessage:
        for position, (wanted, place) in enumerate(self._prefetches):
            if wanted == index:
                del self._prefetches[position]
                return place
        raise EngineBug(
            f"the device waits for anchor {index}, which it has not requested; "
            "this is a bug"
        )

    def _give(self, index: int, place: PlaceMessage) -> None:
        answer = _Answer(self._link, index, place)
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
            index, place = prefetch
            if index not in nothing:
                answer = _Answer(self._link, index, place)
                shape = self._sources[index].try_fetch(answer.room)
                if shape is None:
                    nothing.add(index)
                    continue
                answer.shape = shape
                self._prefetches.remove(prefetch)
                self._given[index] += 1
                yield answer

    def _written(self, message: Message) -> None:
        place, nbytes = message["place"], int(message["nbytes"])
        data = self._link.memory(place)[:nbytes].toreadonly()
        index = int(message["anchor"])
        self._sinks[index].put(data, tuple(message["shape"]), self._link.alive)
        if message["ack"]:
            self._link.send({"op": "ack", "anchor": index, "place": place})


def _prefetches_in(message: Message) -> list[Prefetch]:
    return [(index, place) for index, place in message.get("prefetches", [])]


def _error_of(message: Message) -> EngineError:
    error = control.to_error(message)
    if isinstance(error, ExecutionFailed):
        error.callers_fault = bool(message["callers_fault"])
    return error
