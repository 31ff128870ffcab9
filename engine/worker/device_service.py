"""The service of a device process. It answers control messages, with a thread for each
connection.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import socket
import threading
import time
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from engine.errors import EngineBug, EngineError, InvalidInput, InvalidModel
from engine.faults import DeviceFault
from engine.programs.save_programs import SavePrograms
from engine.tensor import Tensor
from engine.transport import control
from engine.transport.channel import Channel, ChannelLayout
from engine.transport.control import Message
from engine.transport.link import Link
from engine.transport.messages import close_all
from engine.transport.tensor_pack import pack_tensors
from engine.worker import injected_failures
from engine.worker.cancellation import Terminator
from engine.worker.loading import LoadedReplica, load_replicas
from engine.worker.python_loading import describe
from engine.worker.scheduler import ClientProcess, Scheduler
from popef_io import PopefError

logger = logging.getLogger(__name__)


class SessionService(Protocol):
    """A session's part in this process. The owner of the device names the class.

    Its arguments are a number, the connection, the message that requests it, and the
    message's descriptors. Raises EngineError.
    """

    over: threading.Event

    def serve(self) -> None:
        """Serve the connection to its end."""

    def end(self) -> None:
        """End the present run."""


#: Commands that a joined process may send, which only feed loaded models.
_OF_GUESTS = frozenset({"ping", "link", "channel", "close_channel"})


class _Guests:
    """The connections of one process that the owner has invited."""

    def __init__(self) -> None:
        #: The numbers of its links. The process may open channels only on these.
        self.links: set[int] = set()

    def check(self, message: Message) -> None:
        """Raise InvalidInput for commands that only the owner may send."""
        op = message.get("op")
        if op not in _OF_GUESTS:
            raise InvalidInput(f"only the owner of the device may request {op!r}")
        if "link" in message and int(message["link"]) not in self.links:
            raise InvalidInput("the link belongs to another process")


class DeviceService:
    """Listens and answers. It passes work on rings to the scheduler.

    With `runs_python` it runs only Python models, otherwise no Python models.
    """

    def __init__(
        self,
        listener: socket.socket,
        scheduler: Scheduler,
        runs_python: bool = False,
    ) -> None:
        self._runs_python = runs_python
        self._listener = listener
        self._scheduler = scheduler
        self._numbers = itertools.count(1)  # atomic: one C call
        self._saves: dict[int, SavePrograms] = {}
        self._links: set[socket.socket] = set()
        self._sessions: dict[int, SessionService] = {}
        self._started = time.monotonic()
        self._terminator = Terminator(scheduler.running)

    def start(self) -> None:
        """Begin to accept connections, in threads that end with the process."""
        self._terminator.start()
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def report(self, fault: DeviceFault) -> None:
        """Report to every client process the fault that will end this process."""
        for sock in list(self._links):
            with contextlib.suppress(OSError):
                control.send(sock, dict(fault.to_message()))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(sock,), name="connection", daemon=True
            ).start()

    def _open_door(self, door: socket.socket) -> None:
        """Serve a connection on each socket that comes through the door, until the door
        closes.
        """
        guests = _Guests()
        with door, contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                _, fds = control.receive(door)
                for fd in fds:
                    sock = socket.socket(fileno=fd)
                    arguments = sock, guests
                    threading.Thread(
                        target=self._serve, args=arguments, name="guest", daemon=True
                    ).start()

    def _serve(self, sock: socket.socket, guests: _Guests | None = None) -> None:
        owned: list[ClientProcess] = []
        with sock, contextlib.suppress(OSError, EOFError, ValueError):
            if control.peer_uid(sock) not in (os.getuid(), 0):
                return
            while True:
                message, fds = control.receive(sock)
                if message.get("op") == "session" and guests is None:
                    self._serve_session(sock, message, fds)
                    break
                try:
                    if guests is not None:
                        guests.check(message)
                    answer, answer_fds = self._answer(sock, message, fds, owned)
                    if guests is not None and message["op"] == "link":
                        guests.links.add(answer["link"])
                except Exception as error:
                    if not isinstance(error, EngineError | PopefError):
                        logger.exception("control message %r", message.get("op"))
                    answer, answer_fds = control.from_error(error), []
                finally:
                    close_all(fds)
                try:
                    control.send(sock, answer, answer_fds)
                finally:
                    close_all(answer_fds)
        self._links.discard(sock)
        for client in owned:
            logger.debug("%r disconnected", client)
            # The order matters. With `gone` set, the terminator ends a run that only
            # this client waits for. Then the scheduler can run the command.
            client.link.gone = True
            self._terminator.wake()
            self._scheduler.commands.do(partial(self._scheduler.drop_client, client))

    def _serve_session(
        self, sock: socket.socket, message: Message, fds: list[int]
    ) -> None:
        """Serve a session on the connection to its end."""
        number = next(self._numbers)
        try:
            self._refuse_unless(python=False)
            module, _, name = str(message["service"]).partition(":")
            # Guests may not request sessions, because only the owner of this process
            # may name the module to import.
            make: Any = getattr(import_module(module), name)
            session: SessionService = make(number, sock, message, fds)
        except Exception as error:
            if not isinstance(error, EngineError):
                logger.exception("loading a session")
            control.send(sock, control.from_error(error))
            return
        finally:
            close_all(fds)
        self._sessions[number] = session
        try:
            control.send(sock, {"session": number})
            session.serve()
        finally:
            del self._sessions[number]
            session.over.set()

    def _answer(
        self,
        sock: socket.socket,
        message: Message,
        fds: list[int],
        owned: list[ClientProcess],
    ) -> tuple[Message, list[int]]:
        scheduler = self._scheduler
        match message.get("op"):
            case "ping":
                return self._status(), []
            case "describe" | "load":
                return self._load_or_describe(message, fds), []
            case "save":
                return self._save(int(message["replica"]))
            case "unload":
                number = int(message["replica"])
                self._saves.pop(number, None)
                scheduler.commands.call(partial(scheduler.unload, number))
                scheduler.commands.do(scheduler.give_back_memory)
                logger.debug("unloaded replica %s", number)
                return {}, []
            case "link":
                client = self._link(sock, fds)
                owned.append(client)
                self._links.add(sock)
                eventfds = (scheduler.wake_fd, self._terminator.cancel_fd)
                return {"link": client.number}, [os.dup(fd) for fd in eventfds]
            case "channel":
                return {"channel": self._channel(message, fds)}, []
            case "close_channel":
                link, channel = int(message["link"]), int(message["channel"])
                scheduler.commands.call(partial(scheduler.close_channel, link, channel))
                return {}, []
            case "invite" | "inject" | "end_run" | "end_session" | "stop":
                self._obey(message, fds)
                return {}, []
            case other:
                raise EngineBug(f"unknown control message {other!r}")

    def _obey(self, message: Message, fds: list[int]) -> None:
        """Carry out a message of the owner that has no answer."""
        scheduler = self._scheduler
        match message["op"]:
            case "invite":
                door = socket.socket(fileno=os.dup(fds[0]))
                threading.Thread(
                    target=self._open_door, args=(door,), name="door", daemon=True
                ).start()
            case "inject":
                replicas = list(scheduler.replicas.values())
                what = message["failure"], int(message["after"])
                scheduler.commands.call(
                    partial(injected_failures.obey, replicas, *what)
                )
            case "end_run":
                self._terminator.end_run(int(message["since"]), str(message["why"]))
                failed = partial(scheduler.has_failed, int(message["replica"]))
                scheduler.commands.do(failed)
            case "end_session":
                session = self._sessions.get(int(message["session"]))
                if session is not None:
                    session.end()
            case "stop":
                scheduler.commands.do(scheduler.stop)

    def _status(self) -> Message:
        scheduler = self._scheduler
        run = scheduler.status()
        return {
            "pid": os.getpid(),
            "owner": os.getppid(),
            "uptime": time.monotonic() - self._started,
            "running_ns": run.running_ns,
            "running_since": run.since,
            "running": run.replica,
            "unwanted_ns": run.unwanted_ns,
            "batches": scheduler.batches,
            "replicas": len(scheduler.replicas),
            "clients": len(scheduler.clients),
            "sessions": len(self._sessions),
        }

    def _load_or_describe(self, message: Message, fds: list[int]) -> Message:
        if message["op"] == "load":
            return {"replicas": self._load_replicas(message, fds)}
        self._refuse_unless(python=True)
        described: Message = {}
        self._scheduler.commands.call(lambda: described.update(describe(message, fds)))
        return described

    def _load_replicas(self, message: Message, fds: list[int]) -> list[int]:
        numbers = [next(self._numbers) for _ in range(int(message["count"]))]
        scheduler = self._scheduler
        self._refuse_unless(python=message.get("python") is not None)
        loaded: list[LoadedReplica] = []

        def load() -> None:
            room, running = scheduler.wait_room, scheduler.running
            loaded.extend(load_replicas(numbers, message, fds, room, running))

        if self._runs_python:
            scheduler.commands.call(load)  # in the thread that will run it
        else:
            load()
        for number, one in zip(numbers, loaded, strict=True):
            self._saves[number] = one.save
            scheduler.commands.call(partial(scheduler.add_replica, number, one.replica))
            logger.debug("loaded %r from %s", one.replica, message["sources"])
        return numbers

    def _refuse_unless(self, *, python: bool) -> None:
        """Raise InvalidModel if a model is of the other kind, because a process accepts
        code only if it was started for that.
        """
        if python and not self._runs_python:
            raise InvalidModel("this device runs no Python models")
        if self._runs_python and not python:
            raise InvalidModel("this device runs Python models only")

    def _save(self, replica: int) -> tuple[Message, list[int]]:
        """Run the save programs between two batches."""
        save = self._saves.get(replica)
        if save is None:
            raise InvalidInput("cannot save a model that is not loaded")
        saved: dict[str, Tensor] = {}
        self._scheduler.commands.call(lambda: saved.update(save.run()))
        place, memory = pack_tensors("saved", saved)
        fd = os.dup(memory.fd)
        memory.close()
        return {"tensors": place}, [fd]

    def _link(self, sock: socket.socket, fds: list[int]) -> ClientProcess:
        if len(fds) != 2:
            raise EngineBug("a link needs a segment and an eventfd")
        link = Link.attach(os.dup(fds[0]))
        pid = control.peer_pid(sock)
        client = ClientProcess(next(self._numbers), link, os.dup(fds[1]), pid)
        self._scheduler.commands.call(partial(self._scheduler.add_client, client))
        logger.debug("%r connected", client)
        return client

    def _channel(self, message: Message, fds: list[int]) -> int:
        layout = ChannelLayout.from_message(message["layout"])
        channel = Channel.attach(os.dup(fds[0]), layout)
        number = next(self._numbers)
        link, replica = int(message["link"]), int(message["replica"])
        line = (int(message.get(key, 0)) for key in ("priority", "weight", "lane"))
        add = self._scheduler.add_channel
        try:
            self._scheduler.commands.call(
                partial(add, number, channel, link, replica, *line)
            )
        except BaseException:
            channel.close()
            raise
        return number

    def __repr__(self) -> str:
        return f"<DeviceService of {self._scheduler!r}>"
