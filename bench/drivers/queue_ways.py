"""The ways that `bench.queues` compares.

Each sends messages to another process, which sends them back.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import ClassVar, Protocol

from bench.drivers.queue_echo import echo_pipe, echo_queue
from bench.servers.server import ROOT
from engine.transport.channel import REQUEST, Channel, ChannelLayout
from engine.transport.link import Completion, Link
from engine.transport.shared_memory import page_aligned

#: Seconds after which a message that did not come back is lost.
TIMEOUT = 30.0
SLOTS = 64


class Way(Protocol):
    """Messages go out by `send` and come back by `receive`, in order."""

    name: ClassVar[str]

    def send(self, message: bytes) -> None: ...
    def receive(self) -> list[bytes]:
        """Wait and return at least one message."""
        ...

    def close(self) -> None: ...


class Rings:
    """The engine's channel: rings in shared memory, one eventfd for each direction."""

    name: ClassVar[str] = "rings"
    spin_ns: ClassVar[int] = 0

    def __init__(self, size: int, in_flight: int) -> None:
        room = page_aligned(size) * (in_flight + 1)
        layout = ChannelLayout(SLOTS, (room,), (room,))
        self._channel = Channel.create("bench", layout)
        self._link = Link.create()
        self._device_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._client_fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._client_poller = select.poll()
        self._client_poller.register(self._client_fd, select.POLLIN)
        fds = [
            self._link.memory.fd,
            self._channel.memory.fd,
            self._device_fd,
            self._client_fd,
        ]
        numbers = map(str, [*fds, SLOTS, room, self.spin_ns])
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.drivers.queue_echo", *numbers],
            stdin=subprocess.PIPE,
            pass_fds=fds,
            cwd=ROOT,
        )
        self._number = 0

    def send(self, message: bytes) -> None:
        channel, link = self._channel, self._link
        anchor = channel.inputs[0]
        self._number += 1
        slot = channel.requests.try_write_lock()
        size = len(message)
        offset = anchor.place(size)
        anchor.payload[offset : offset + size] = message
        anchor.describe(0, self._number, offset, size, (size,))
        anchor.write_complete()
        REQUEST.pack_into(
            channel.view,
            channel.request_at(slot),
            *(self._number, 1, 0, 0, time.monotonic_ns()),
        )
        channel.requests.write_complete()
        if link.submit(0):
            os.eventfd_write(self._device_fd, 1)

    def receive(self) -> list[bytes]:
        if not self._client_poller.poll(TIMEOUT * 1e3):
            raise TimeoutError("the echo process does not answer")
        os.eventfd_read(self._client_fd)
        output = self._channel.outputs[0]
        messages = []
        completions: deque[Completion] = deque()
        self._link.completions.drain(completions)
        for _, _, number, *_ in completions:
            slot = output.find(number)
            assert slot >= 0, "a completion without its data"
            offset, nbytes, _ = output.record(slot)
            messages.append(bytes(output.payload[offset : offset + nbytes]))
            output.skip()
        return messages

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(TIMEOUT)
        finally:
            self._process.kill()
            self._process.wait()
            self._channel.memory.detach_fd()
            self._channel.close()
            self._link.close()
            os.close(self._device_fd)
            os.close(self._client_fd)


class LookingRings(Rings):
    """Rings with an echo process that polls for 300 us before it sleeps, as a device
    does if requests follow each other.
    """

    name: ClassVar[str] = "rings, looking"
    spin_ns: ClassVar[int] = 300_000


class Pipe:
    """`multiprocessing.Pipe`, by `send_bytes` and `recv_bytes`.

    A thread receives, because both ends of a full pipe would wait for each other.
    """

    name: ClassVar[str] = "Pipe"

    def __init__(self, size: int, in_flight: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=echo_pipe, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        _limit_waits(self._connection)
        self._alone = in_flight == 1
        self._came: list[bytes] = []
        self._news = threading.Condition()
        if not self._alone:
            threading.Thread(target=self._collect, daemon=True).start()

    def send(self, message: bytes) -> None:
        self._connection.send_bytes(message)

    def receive(self) -> list[bytes]:
        if self._alone:
            return [self._connection.recv_bytes()]
        with self._news:
            if not self._news.wait_for(lambda: self._came, TIMEOUT):
                raise TimeoutError("the echo process does not answer")
            messages, self._came = self._came, []
        return messages

    def _collect(self) -> None:
        while True:
            try:
                message = self._connection.recv_bytes()
            except BlockingIOError:
                continue  # idle for longer than the limit: wait again
            except (EOFError, OSError):
                return
            with self._news:
                self._came.append(message)
                self._news.notify()

    def close(self) -> None:
        self._process.terminate()
        self._process.join()
        self._connection.close()


def _limit_waits(connection: Connection) -> None:
    """Limit in the kernel how long a wait for the other end lasts. It costs no time."""
    limit = struct.pack("ll", int(TIMEOUT), 0)
    with socket.socket(fileno=os.dup(connection.fileno())) as pipe:
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        pipe.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


class Queue:
    """`multiprocessing.Queue`, one for each direction: `put` and `get`."""

    name: ClassVar[str] = "Queue"

    def __init__(self, size: int, in_flight: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._there = context.Queue()
        self._back = context.Queue()
        self._process = context.Process(
            target=echo_queue, args=(self._there, self._back), daemon=True
        )
        self._process.start()

    def send(self, message: bytes) -> None:
        self._there.put(message)

    def receive(self) -> list[bytes]:
        return [self._back.get(timeout=TIMEOUT)]

    def close(self) -> None:
        self._there.put(None)
        self._process.join(TIMEOUT)
        self._process.kill()
        self._process.join()
        for queue in (self._there, self._back):
            # If that process failed, it takes nothing more from the thread.
            queue.cancel_join_thread()
            queue.close()


class Copies:
    """Lower bound: the copies of the rings, in one process, without wake-ups."""

    name: ClassVar[str] = "three copies"

    def __init__(self, size: int, in_flight: int) -> None:
        self._source, self._target = (memoryview(bytearray(size)) for _ in range(2))
        self._waiting = 0

    def send(self, message: bytes) -> None:
        self._source[:] = message
        self._target[:] = self._source
        self._waiting += 1

    def receive(self) -> list[bytes]:
        messages = [bytes(self._target) for _ in range(self._waiting)]
        self._waiting = 0
        return messages

    def close(self) -> None:
        """Do nothing: there is nothing to end."""


WAYS: tuple[Callable[[int, int], Way], ...] = (Rings, LookingRings, Pipe, Queue, Copies)


class Opened:
    """A way as a context manager."""

    def __init__(
        self, make: Callable[[int, int], Way], size: int, in_flight: int
    ) -> None:
        self.way = make(size, in_flight)

    def __enter__(self) -> Way:
        return self.way

    def __exit__(self, *exception: object) -> None:
        self.way.close()
