"""The process that is a device: one thread runs programs, connections load and ask.

Started by `engine.device` as `python -m engine.device_process`, with two descriptors:
the listening socket of its control messages and the read end of a pipe that its owner
holds open. When the owner dies the kernel sends SIGIO for the pipe and this process
ends at once, whatever it is doing. It inherits the exclusive claim on the device too,
so the device is free only when both owner and process are gone.

The main thread alone touches rings and replicas. Connection threads prepare (load a
model, map a channel) and hand over what they made as a command.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import functools
import logging
import os
import queue
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from engine import control
from engine.batch import ClientChannel
from engine.channel import AnchorRing, Channel, ChannelLayout
from engine.control import Message
from engine.descriptors import raise_descriptor_limit
from engine.errors import EngineBug, EngineError, ExecutionFailed, InvalidInput
from engine.link import Link
from engine.loading import load_replica
from engine.replica import Replica
from engine.ring_buffer import full_fence
from engine.shared_memory import keep_large_blocks

logger = logging.getLogger(__name__)

#: How long a result waits for room before its request is given up: a client that has
#: not collected anything for so long is not coming.
ROOM_TIMEOUT = 10.0
#: Another thread that wants the interpreter gets it after this long; the default of
#: 5 ms would hold up every batch while a model is being loaded.
_SWITCH_INTERVAL = 0.0005


class Client:
    """A client process: its link and the eventfd that wakes it."""

    def __init__(self, number: int, link: Link, wake_fd: int, pid: int) -> None:
        self.number = number
        self.link = link
        self.wake_fd = wake_fd
        self.pid = pid
        self.channels: dict[int, tuple[ClientChannel, Replica]] = {}
        self.gone = False

    def wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(self.wake_fd, 1)

    def close(self) -> None:
        self.link.close()
        os.close(self.wake_fd)

    def __repr__(self) -> str:
        return f"<Client {self.number} of process {self.pid}, {len(self.channels)}>"


class DeviceProcess:
    """State of the device; see the module's text for who may touch what."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._doorbell = os.eventfd(0, os.EFD_CLOEXEC)
        self._poller = select.poll()
        self._poller.register(self._doorbell, select.POLLIN)
        self._commands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._clients: dict[int, Client] = {}
        self._replicas: dict[int, Replica] = {}
        self._ready: deque[Replica] = deque()
        self._numbers = iter(range(1, 1 << 62))
        self._number_lock = threading.Lock()
        self._stopping = False
        self._started = time.monotonic()
        self._running_since = 0
        self._batches = 0

    # -- the thread that runs programs

    def run(self) -> None:
        """Serve until told to stop."""
        threading.Thread(target=self._accept, name="accept", daemon=True).start()
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
        """Wait for the doorbell, at most `wait_ns` (0: for ever), unless there is news.

        See "Waking" at the head of engine/link.py.
        """
        links = [client.link for client in self._clients.values()]
        for link in links:
            link.asleep = True
        full_fence()
        news = any(link.submissions.read_available for link in links)
        if not news and (not wait_ns or self._poller.poll(wait_ns / 1e6)):
            os.eventfd_read(self._doorbell)
        for link in links:
            link.asleep = False

    def _drain(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except queue.Empty:
                break
            command()
        for client in self._clients.values():
            link = client.link
            while (number := link.next_submission()) >= 0:
                found = client.channels.get(number)
                if found is None:
                    continue
                channel, replica = found
                channel.pending += 1
                if not replica.queued:
                    replica.queued = True
                    self._ready.append(replica)

    def _step(self) -> int:
        """Run the next batch; nanoseconds to wait where none is due yet."""
        now = time.monotonic_ns()
        wait = 0
        for _ in range(len(self._ready)):
            replica = self._ready.popleft()
            due = replica.due_ns(now)
            if due <= now:
                self._run_batch(replica, now)
                return 0
            self._ready.append(replica)
            wait = min(wait or due - now, due - now)
        return wait

    def _run_batch(self, replica: Replica, now: int) -> None:
        self._running_since = now
        touched = replica.step()
        self._running_since = 0
        self._batches += 1
        if replica.pending:
            self._ready.append(replica)
        else:
            replica.queued = False
        self._wake_clients(touched)

    def _wake_clients(self, touched: list[ClientChannel]) -> None:
        links = {id(channel.link) for channel in touched}
        for client in self._clients.values():
            if id(client.link) in links:
                client.wake()

    def _wait_room(self, channel: ClientChannel, anchor: AnchorRing, size: int) -> int:
        """Wait until an output slot has `size` bytes free; where they are."""
        deadline = time.monotonic() + ROOM_TIMEOUT
        channel.channel.starved = True
        try:
            while (offset := anchor.place(size)) < 0:
                self._wake_clients([channel])
                left = deadline - time.monotonic()
                if left <= 0 or self._stopping or self._is_gone(channel.link):
                    raise ExecutionFailed(
                        f"the client did not collect its results for {ROOM_TIMEOUT} s"
                    )
                # The doorbell also rings for submissions; what it announced is
                # looked at after this batch, because the loop always drains.
                if self._poller.poll(min(left, 0.1) * 1000):
                    os.eventfd_read(self._doorbell)
        finally:
            channel.channel.starved = False
            os.eventfd_write(self._doorbell, 1)
        return offset

    def _is_gone(self, link: Link) -> bool:
        return any(c.gone for c in self._clients.values() if c.link is link)

    # -- connections

    def _accept(self) -> None:
        while not self._stopping:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(sock,), name="connection", daemon=True
            ).start()

    def _serve(self, sock: socket.socket) -> None:
        owned: list[Client] = []
        with sock, contextlib.suppress(OSError, EOFError, ValueError):
            if control.peer_uid(sock) not in (os.getuid(), 0):
                return
            while True:
                message, fds = control.receive(sock)
                try:
                    answer, answer_fds = self._answer(sock, message, fds, owned)
                except Exception as error:
                    if not isinstance(error, EngineError):
                        logger.exception("control message %r", message.get("op"))
                    answer, answer_fds = control.from_error(error), []
                finally:
                    control.close_all(fds)
                control.send(sock, answer, answer_fds)
        for client in owned:
            client.gone = True
            self._do(functools.partial(self._drop_client, client))

    def _answer(
        self, sock: socket.socket, message: Message, fds: list[int], owned: list[Client]
    ) -> tuple[Message, list[int]]:
        match message.get("op"):
            case "ping":
                return self._status(), []
            case "load":
                return {"replica": self._load(message, fds)}, []
            case "unload":
                self._call(lambda: self._unload(int(message["replica"])))
                return {}, []
            case "link":
                client = self._link(sock, fds)
                owned.append(client)
                return {"link": client.number}, [self._doorbell]
            case "channel":
                return {"channel": self._channel(message, fds)}, []
            case "close_channel":
                self._call(lambda: self._close_channel(message))
                return {}, []
            case "stop":
                self._do(self._stop)
                return {}, []
            case other:
                raise EngineBug(f"unknown control message {other!r}")

    def _status(self) -> Message:
        since = self._running_since
        return {
            "pid": os.getpid(),
            "owner": os.getppid(),
            "uptime": time.monotonic() - self._started,
            "running_ns": time.monotonic_ns() - since if since else 0,
            "batches": self._batches,
            "replicas": len(self._replicas),
            "clients": len(self._clients),
        }

    def _load(self, message: Message, fds: list[int]) -> int:
        number = self._next_number()
        replica = load_replica(number, message, fds, self._wait_room)

        def add() -> None:
            self._replicas[number] = replica

        self._call(add)
        return number

    def _link(self, sock: socket.socket, fds: list[int]) -> Client:
        if len(fds) != 2:
            raise EngineBug("a link needs a segment and an eventfd")
        link = Link.attach(os.dup(fds[0]))
        wake_fd = os.dup(fds[1])
        client = Client(self._next_number(), link, wake_fd, control.peer_pid(sock))

        def add() -> None:
            self._clients[client.number] = client

        self._call(add)
        return client

    def _channel(self, message: Message, fds: list[int]) -> int:
        layout = ChannelLayout.from_message(message["layout"])
        channel = Channel.attach(os.dup(fds[0]), layout)
        number = self._next_number()

        def add() -> None:
            client = self._clients[int(message["link"])]
            replica = self._replicas.get(int(message["replica"]))
            if replica is None:
                raise InvalidInput("the model of this channel is not loaded")
            mine = ClientChannel(number, channel, client.link)
            client.channels[number] = (mine, replica)
            replica.add(mine)

        self._call(add)
        return number

    # -- commands, carried out between batches by the thread that runs programs

    def _do(self, command: Callable[[], None]) -> None:
        self._commands.put(command)
        os.eventfd_write(self._doorbell, 1)

    def _call(self, command: Callable[[], None]) -> None:
        """`_do`, and wait until it is done; its error is raised here."""
        done = threading.Event()
        errors: list[Exception] = []

        def wrapped() -> None:
            try:
                command()
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        self._do(wrapped)
        done.wait()
        if errors:
            raise errors[0]

    def _unload(self, number: int) -> None:
        replica = self._replicas.pop(number, None)
        if replica is None:
            return
        for client in self._clients.values():
            for key, (channel, of) in list(client.channels.items()):
                if of is replica:
                    del client.channels[key]
                    channel.channel.close()
        if replica in self._ready:
            self._ready.remove(replica)
        replica.close()

    def _close_channel(self, message: Message) -> None:
        client = self._clients.get(int(message["link"]))
        if client is None:
            return
        found = client.channels.pop(int(message["channel"]), None)
        if found is not None:
            channel, replica = found
            replica.remove(channel)
            channel.channel.close()

    def _drop_client(self, client: Client) -> None:
        """A client process has gone: free its channels; its replicas stay loaded
        only as long as the owner of the device wants them."""
        if self._clients.pop(client.number, None) is None:
            return
        for channel, replica in client.channels.values():
            replica.remove(channel)
            channel.channel.close()
        client.channels.clear()
        client.close()

    def _stop(self) -> None:
        self._stopping = True

    def _next_number(self) -> int:
        with self._number_lock:
            return next(self._numbers)

    def __repr__(self) -> str:
        return (
            f"<DeviceProcess {os.getpid()}, {len(self._replicas)} replicas, "
            f"{len(self._clients)} clients, {self._batches} batches>"
        )


def _die_with(owner_fd: int) -> None:
    """Have the kernel end this process when the other end of the pipe closes.

    SIGIO's default action is to terminate, and a pipe whose last writer goes raises
    it. Unlike a parent-death signal this does not depend on which thread of the
    owner started us, and unlike a thread that reads the pipe it needs no interpreter.
    """
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(owner_fd, fcntl.F_SETOWN, os.getpid())
    flags = fcntl.fcntl(owner_fd, fcntl.F_GETFL)
    fcntl.fcntl(owner_fd, fcntl.F_SETFL, flags | os.O_ASYNC | os.O_NONBLOCK)
    with contextlib.suppress(BlockingIOError):
        if os.read(owner_fd, 1) == b"":  # it was gone before we asked
            os._exit(0)


def _set_process_name(name: str) -> None:
    pr_set_name = 15
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(pr_set_name, name.encode()[:15], 0, 0, 0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="popgate-device")
    parser.add_argument("--listen-fd", type=int, required=True)
    parser.add_argument("--owner-fd", type=int, required=True)
    parser.add_argument("--name", default="device")
    parser.add_argument("--log-level", default="WARNING")
    options: Any = parser.parse_args(arguments)
    logging.basicConfig(
        level=options.log_level,
        format=f"%(asctime)s %(levelname)s {options.name} %(name)s: %(message)s",
    )
    # Ctrl-C in a terminal goes to the whole group; the owner decides when we end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with(options.owner_fd)
    _set_process_name(options.name)
    keep_large_blocks()
    raise_descriptor_limit()
    sys.setswitchinterval(_SWITCH_INTERVAL)
    listener = socket.socket(fileno=options.listen_fd)
    listener.setblocking(True)
    DeviceProcess(listener).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
