"""`WorkerProcess`: one worker from the supervisor's view."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol, TypeAlias

import msgpack

from app.observe.shared_counters import CounterSegment
from app.observe.shared_totals import SharedTotals
from app.serving.ensembles import EnsembleRunner
from app.workers.messages import (
    Message,
    SharedEntry,
    TooLong,
    close_all,
    receive,
    send,
)
from engine import Device, EngineError, ModelRunner, SharedMemory, environment, starting

logger = logging.getLogger(__name__)

#: Seconds that a worker may take to report its last requests.
JOURNAL_TIMEOUT = 2.0
#: Seconds that a worker may take to name the clients of its last requests. A model in
#: Python waits for the answer.
ASKERS_TIMEOUT = 1.0
#: Seconds before a dead worker is started again: the first, doubled up to the last.
FIRST_PAUSE, LAST_PAUSE = 0.05, 5.0
#: A worker that has lived for this many seconds begins again with the first pause.
LIVED = 30.0
#: The least time in seconds that a worker has from its start to its first answer.
START_TIMEOUT = 60.0
#: Seconds without an answer to a ping. Then other workers take its connections.
STALLED = 1.0
#: Seconds between checks for connections that a worker does not accept.
_ACCEPT_TICK = 0.01
#: Seconds between attempts to send a message to a worker that does not read.
_FULL_TICK = 0.02


#: A runner of a model that workers run too.
SharedRunner: TypeAlias = ModelRunner | EnsembleRunner


class Supervisor(Protocol):
    """Interface of the supervisor for a worker (`app.workers.supervisor.Workers`)."""

    @property
    def is_ending(self) -> bool: ...
    @property
    def start_message(self) -> Message: ...
    @property
    def ping_timeout(self) -> float: ...
    @property
    def totals(self) -> SharedTotals: ...
    def names(self) -> list[str]: ...
    def default_of(self, name: str) -> str: ...
    def entries_of(self, name: str) -> list[tuple[SharedEntry, SharedRunner]]: ...
    def runner_of(self, name: str, key: int) -> SharedRunner | None: ...
    def hand_over(self, connection: socket.socket) -> bool: ...
    def device_key(self, device: Device) -> str: ...
    def device_number(self, device_id: str) -> int: ...
    def keep_counts(self, counters: CounterSegment) -> None: ...


class WorkerProcess:
    """One worker: its process, the next process after a death, and its state."""

    def __init__(
        self, workers: Supervisor, number: int, listener: socket.socket
    ) -> None:
        self.number = number
        self.restarts = 0
        self.counters: CounterSegment | None = None
        #: Keys of the runners that it has, or was told to run.
        self.held: set[int] = set()
        self._workers = workers
        self.listener = listener
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_pipe = -1
        #: Whether its process has begun to accept connections, and whether it still
        #: does. Before its first start no other worker replaces it.
        self._is_up = False
        self._accepts = True
        self._standing_in: asyncio.Task[None] | None = None
        self._sock: socket.socket | None = None
        self._devices: set[str] = set()
        #: Models whose changes must be sent to it, in this order.
        self._due: dict[str, None] = {}
        self._sending = False
        self._unacknowledged: set[int] = set()
        self._sequence = itertools.count(1)
        self._asks = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._news = asyncio.Event()
        self._wanted = asyncio.Event()

    # -- life

    async def run(self) -> None:
        """Start the worker, and start it again whenever it has died."""
        pause = FIRST_PAUSE
        loop = asyncio.get_running_loop()
        while not self._workers.is_ending:
            began = loop.time()
            try:
                self._start()
                await self._feed()
            except OSError as error:
                logger.error("worker %d cannot start: %s", self.number, error)
            finally:
                self._clean_up()
            if self._workers.is_ending:
                return
            if loop.time() - began > LIVED:
                pause = FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)
            self.restarts += 1

    def _start(self) -> None:
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.counters = CounterSegment.create()
        self._sock = mine
        read_end, self._owner_pipe = os.pipe()
        try:
            with starting():
                self._process = subprocess.Popen(
                    [
                        *(sys.executable, "-P", "-m", "app.workers.process"),
                        *("--control-fd", str(theirs.fileno())),
                        *("--owner-fd", str(read_end)),
                    ],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno(), read_end],
                    env=environment(),
                )
        finally:
            os.close(read_end)
            theirs.close()
        totals = self._workers.totals
        fds = [self.counters.memory.fd, totals.memory.fd, self.listener.fileno()]
        message = {"op": "start", "number": self.number, **self._workers.start_message}
        send(mine, message, fds)
        mine.setblocking(False)
        self.counters.memory.detach_fd()
        for name in self._workers.names():
            self.mark(name)
        logger.debug("worker %d is process %d", self.number, self.pid)

    async def _feed(self) -> None:
        """Send the changes to the worker until it ends."""
        process = self._process
        assert process is not None
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()
        fd = os.pidfd_open(process.pid)
        loop.add_reader(fd, ended.set)
        sock = self._sock
        assert sock is not None
        loop.add_reader(sock.fileno(), self._receive)
        tasks = [loop.create_task(self._tell_models())]
        if self._workers.ping_timeout > 0:
            tasks.append(loop.create_task(self._watch(self._workers.ping_timeout)))
        try:
            await ended.wait()
            code = process.wait()
        finally:
            for task in tasks:
                task.cancel()
            loop.remove_reader(fd)
            os.close(fd)
            loop.remove_reader(sock.fileno())
        if not self._workers.is_ending or code:
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            logger.warning("worker %d, process %d: %s", self.number, process.pid, how)

    async def _watch(self, most: float) -> None:
        """End the worker if it does not answer a ping for `most` seconds.

        Otherwise its connections would wait forever. Its event loop, which can hang,
        answers the ping.
        """
        first = max(START_TIMEOUT, most)
        # A ping has two attempts: the first may time out because this process was
        # stopped.
        while await self._answers(first / 2) or await self._answers(first / 2):
            first = most
            await asyncio.sleep(min(most / 2, STALLED))
        if not self._workers.is_ending:
            text = "worker %d has not answered a ping for %g s: ending it"
            logger.error(text, self.number, first)
            self.kill()

    async def _answers(self, seconds: float) -> bool:
        if self._workers.is_ending:
            return True
        answer = await self._ask("ping", min(seconds, STALLED))
        if answer is None:
            if self._is_up:
                self._stand_in()
            answer = await self._ask("ping", max(0.0, seconds - STALLED))
        self._accepts |= answer is not None
        return answer is not None

    def _stand_in(self) -> None:
        """Let other workers accept its connections until it accepts them again."""
        self._accepts = False
        if self._standing_in is None or self._standing_in.done():
            accept = self._accept_for_it()
            self._standing_in = asyncio.get_running_loop().create_task(accept)

    async def _accept_for_it(self) -> None:
        """Accept the connections in its socket, which otherwise would wait until it is
        back.
        """
        waiting: socket.socket | None = None
        try:
            while self.listener.fileno() >= 0 and (waiting or not self._accepts):
                if waiting is None:
                    with contextlib.suppress(OSError):  # no client waits
                        waiting = self.listener.accept()[0]
                if waiting is not None and self._workers.hand_over(waiting):
                    waiting.close()
                    waiting = None
                    await asyncio.sleep(0)
                else:
                    await asyncio.sleep(_ACCEPT_TICK)
        finally:
            if waiting is not None:
                waiting.close()

    def take(self, connection: socket.socket) -> bool:
        """Let the worker serve a connection, if it can."""
        if self._sock is None or not self._accepts or not self._is_up:
            return False
        try:
            send(self._sock, {"op": "connection"}, [connection.fileno()])
        except OSError:
            return False
        return True

    def _clean_up(self) -> None:
        self._is_up = False
        self._stand_in()
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        self._process = None
        if self._owner_pipe >= 0:
            os.close(self._owner_pipe)
            self._owner_pipe = -1
        if self._sock is not None:
            self._sock.close()
            self._sock = None
        counters, self.counters = self.counters, None
        if counters is not None:
            self._workers.keep_counts(counters)
            counters.close()
        self._workers.totals.forget(self.number)
        for asked in self._asked.values():
            if not asked.done():
                asked.set_result(None)
        self._asked.clear()
        self.held.clear()
        self._devices.clear()
        self._due.clear()
        self._unacknowledged.clear()
        self._sending = False
        self._tell_news()

    @property
    def is_alive(self) -> bool:
        return self._process is not None

    @property
    def pid(self) -> int:
        return 0 if self._process is None else self._process.pid

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    # -- messages to the worker

    def tell(self, message: Message) -> None:
        if self._sock is not None:
            with contextlib.suppress(OSError):
                send(self._sock, message)

    async def _send(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send a message, and wait while the socket has no room. Raises `TooLong`."""
        while self._sock is not None:
            try:
                send(self._sock, message, fds)
            except BlockingIOError:
                await asyncio.sleep(_FULL_TICK)
                continue
            except OSError:  # it has just died
                pass
            return

    def mark(self, name: str) -> None:
        """Mark a model as changed."""
        if self._sock is not None:
            self._due[name] = None
            self._wanted.set()

    @property
    def is_behind(self) -> bool:
        """Return whether the worker still has changes to apply."""
        return bool(self._due or self._sending or self._unacknowledged)

    async def until(self, condition: Callable[[WorkerProcess], bool]) -> None:
        while self._sock is not None and not condition(self):
            await self._news.wait()

    def _tell_news(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    async def _tell_models(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while self._due:
                name = next(iter(self._due))
                del self._due[name]
                self._sending = True
                try:
                    await self._tell_model(name)
                finally:
                    self._sending = False
                    self._tell_news()

    async def _tell_model(self, name: str) -> None:
        workers = self._workers
        entries = []
        for entry, runner in workers.entries_of(name):
            try:
                for device in dict.fromkeys(runner.devices):
                    await self._invite(device)
            except EngineError as error:  # sent again when the device is back
                logger.debug("model %s: %s", name, error)
                continue
            entries.append(entry)
        message = self._model_message(name, entries)
        new = self._expect(message)
        try:
            await self._send(message)
        except TooLong:
            logger.info(
                "model %s runs in the supervisor: its description exceeds the message "
                "limit",
                name,
            )
            self.held -= new
            self._unacknowledged.discard(message["seq"])
            message = self._model_message(name, ())
            self._expect(message)
            await self._send(message)

    def _expect(self, message: Message) -> set[int]:
        """Expect an answer, and return the new keys.

        This comes before the message is sent, because the answer arrives quickly.
        """
        new = {entry["key"] for entry in message["entries"]} - self.held
        self.held |= new
        self._unacknowledged.add(message["seq"])
        return new

    def _model_message(self, name: str, entries: Iterable[SharedEntry]) -> Message:
        workers = self._workers
        failed = []
        for key in self.held:
            runner = workers.runner_of(name, key)
            if isinstance(runner, ModelRunner) and runner.failure is not None:
                failed.append([key, str(runner.failure)])
        return {
            "op": "model",
            "seq": next(self._sequence),
            "name": name,
            "default": workers.default_of(name),
            "entries": [entry.to_message() for entry in entries],
            "failed": failed,
        }

    async def _invite(self, device: Device) -> None:
        """Let it join a device, unless it has joined the device's present process."""
        key = self._workers.device_key(device)
        if key in self._devices:
            return
        door = await asyncio.to_thread(device.invite)
        with door:
            if self._workers.device_key(device) != key:
                return  # the message is sent again
            message = {
                "op": "device",
                "key": key,
                "id": device.id,
                "number": self._workers.device_number(device.id),
            }
            await self._send(message, [door.fileno()])
        self._devices.add(key)

    # -- messages from the worker

    def _receive(self) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            message, fds = receive(sock)
        except BlockingIOError:
            return
        except (OSError, EOFError):
            asyncio.get_running_loop().remove_reader(sock.fileno())
            return
        try:
            match message["op"]:
                case "listening":
                    self._is_up = self._accepts = True
                case "switched":
                    self._unacknowledged.discard(message["seq"])
                case "left":
                    self.held.discard(message["key"])
                case "answer":
                    asked = self._asked.pop(message["ask"], None)
                    if asked is not None and not asked.done():
                        told = message["told"]
                        asked.set_result(_journal_of(told, fds) if fds else told)
        finally:
            close_all(fds)
        self._tell_news()

    async def ask_journal(self) -> Any:
        """Return its journal of the last requests; None after a timeout."""
        return await self._ask("journal", JOURNAL_TIMEOUT)

    async def ask_askers(self, numbers: list[int]) -> list[tuple[int, str, str, str]]:
        """Return the requests with these numbers that the worker made, if they still
        exist.
        """
        return await self._ask("askers", ASKERS_TIMEOUT, numbers=numbers) or []

    async def _ask(self, op: str, seconds: float, **more: Any) -> Any:
        """Ask the worker and return its answer; None if it does not answer in time."""
        if self._sock is None:
            return None
        number = next(self._asks)
        asked = self._asked[number] = asyncio.get_running_loop().create_future()
        self.tell({"op": op, "ask": number, **more})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return await asked
        self._asked.pop(number, None)
        return None

    def __repr__(self) -> str:
        return f"<WorkerProcess {self.number}, process {self.pid}>"


def _journal_of(size: int, fds: Sequence[int]) -> Any:
    with SharedMemory.attach(os.dup(fds[0]), size) as memory:
        return msgpack.unpackb(bytes(memory.view[:size]), use_list=False)
