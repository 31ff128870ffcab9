"""The service of a device process. It answers control messages, with a thread for each
connection.
"""

from __future__ import annotations

import _thread
import contextlib
import itertools
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from typing import Any, Protocol

from engine.errors import EngineBug, EngineError, InvalidInput
from engine.faults import DeviceFault
from engine.programs.save_programs import SavePrograms
from engine.tensor import Tensor
from engine.transport import control
from engine.transport.channel import Channel, ChannelLayout
from engine.transport.device_messages import (
    DOOR,
    QUESTIONS,
    ChannelOpened,
    CloseChannel,
    Describe,
    Done,
    EndRun,
    EndSession,
    FaultTold,
    GuestQuestion,
    InjectFailure,
    Invite,
    Linked,
    LinkUp,
    Load,
    Loaded,
    OpenChannel,
    OpenSession,
    Ping,
    Question,
    Save,
    Saved,
    SessionOpened,
    Status,
    Stop,
    Unload,
)
from engine.transport.error_report import ErrorReport
from engine.transport.held_socket import HeldSocket
from engine.transport.link import Link
from engine.transport.messages import (
    MAX_MESSAGE,
    DescriptorsLost,
    MalformedMessage,
    Message,
    close_all,
    send,
)
from engine.transport.tensor_pack import pack_tensors
from engine.worker import injected_failures
from engine.worker.batch import RunningBatch
from engine.worker.cancellation import Terminator
from engine.worker.connections import ClientProcess
from engine.worker.loading import LoadedReplica, load_replicas
from engine.worker.present_runs import runs_of, status_of
from engine.worker.python_kind import PythonKind, refuse_unless
from engine.worker.scheduler import Scheduler
from popef_io import PopefError

logger = logging.getLogger(__name__)

#: Seconds until a process that lacks descriptors or threads tries again.
_PAUSE = 0.01


class SessionService(Protocol):
    """A session's part in this process. The owner of the device names the class.

    Its arguments are a number, the connection, the content of the `OpenSession`
    message, and the descriptors beside it. It raises EngineError, or MalformedMessage
    for other content.
    """

    over: threading.Event

    def serve(self) -> None:
        """Serve the connection to its end."""

    def end(self) -> None:
        """End the present run."""


class _Guests:
    """The connections of one process that the owner has invited."""

    def __init__(self) -> None:
        #: The numbers of its links. The process may open channels only on these.
        self.links: set[int] = set()

    def check(self, message: Question) -> None:
        """Raise InvalidInput for messages that only the owner may send."""
        if not isinstance(message, GuestQuestion):
            name = type(message).__name__
            raise InvalidInput(f"only the owner of the device may send {name}")
        if (
            isinstance(message, OpenChannel | CloseChannel)
            and message.link not in self.links
        ):
            raise InvalidInput("the link belongs to another process")


def _begin(serve: Callable[..., None], *arguments: object) -> None:
    """Serve a connection in a thread. Wait while threads are short."""
    while True:
        try:
            # `Thread.start` waits for ever if the new thread lacks memory.
            _thread.start_new_thread(serve, arguments)
            return
        except RuntimeError:
            time.sleep(_PAUSE)


class DeviceService:
    """Listens and answers. It passes work on rings to the scheduler.

    With `python` it runs only Python models, otherwise no Python models.
    """

    def __init__(
        self,
        listener: socket.socket,
        scheduler: Scheduler,
        python: PythonKind | None = None,
    ) -> None:
        self._python = python
        self._listener = listener
        self._scheduler = scheduler
        self._connections = scheduler.connections
        self._numbers = itertools.count(1)  # atomic: one C call
        self._saves: dict[int, SavePrograms] = {}
        self._links: set[socket.socket] = set()
        self._sessions: dict[int, SessionService] = {}
        self._terminator = Terminator(lambda: runs_of(scheduler.at_work()))

    def start(self) -> None:
        """Begin to accept connections, in threads that end with the process."""
        self._terminator.start()
        threading.Thread(target=self._accept, name="accept", daemon=True).start()

    def report(self, fault: DeviceFault) -> None:
        """Report to every client process the fault that will end this process."""
        said = replace(fault, message=fault.message[: MAX_MESSAGE // 8])
        for sock in list(self._links):
            with contextlib.suppress(OSError):
                send(sock, FaultTold(said))

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:  # descriptors are short
                time.sleep(_PAUSE)
                continue
            _begin(self._serve, HeldSocket(sock.detach()), None)

    def _open_door(self, door: socket.socket) -> None:
        """Serve a connection on each socket that comes through the door, until the door
        closes.
        """
        guests = _Guests()
        with door, contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                try:
                    _, fds = DOOR.receive(door)
                except DescriptorsLost:
                    continue
                for fd in fds:
                    _begin(self._serve, HeldSocket(fd), guests)

    def _serve(self, sock: socket.socket, guests: _Guests | None = None) -> None:
        owned: list[ClientProcess] = []
        with sock, contextlib.suppress(OSError, EOFError, ValueError):
            if control.peer_uid(sock) not in (os.getuid(), 0):
                return
            while True:
                try:
                    message, fds = QUESTIONS.receive(sock)
                except MalformedMessage as error:
                    send(sock, ErrorReport.of(EngineBug(str(error))))
                    continue
                if isinstance(message, OpenSession) and guests is None:
                    self._serve_session(sock, message, fds)
                    break
                answer, answer_fds = self._answered(sock, message, fds, owned, guests)
                try:
                    send(sock, answer, answer_fds)
                finally:
                    close_all(answer_fds)
        self._links.discard(sock)
        for client in owned:
            logger.debug("%r disconnected", client)
            # The order matters. With `gone` set, the terminator ends a run that only
            # this client waits for. Then the scheduler can run the command.
            client.link.gone = True
            self._terminator.wake()
            self._scheduler.commands.do(partial(self._connections.drop_client, client))

    def _answered(
        self,
        sock: socket.socket,
        message: Question,
        fds: list[int],
        owned: list[ClientProcess],
        guests: _Guests | None,
    ) -> tuple[Message, list[int]]:
        """Carry out a message, close its descriptors, and return the answer."""
        try:
            if guests is not None:
                guests.check(message)
            answer, answer_fds = self._answer(sock, message, fds, owned)
            if guests is not None and isinstance(answer, Linked):
                guests.links.add(answer.link)
        except Exception as error:
            if not isinstance(error, EngineError | PopefError):
                logger.exception("control message %s", type(message).__name__)
            return ErrorReport.of(error), []
        finally:
            close_all(fds)
        return answer, answer_fds

    def _serve_session(
        self, sock: socket.socket, message: OpenSession, fds: list[int]
    ) -> None:
        """Serve a session on the connection to its end."""
        number = next(self._numbers)
        try:
            refuse_unless(self._python, python=False)
            module, _, name = message.service.partition(":")
            # Guests may not request sessions, because only the owner of this process
            # may name the module to import.
            make: Any = getattr(import_module(module), name)
            session: SessionService = make(number, sock, message.content, fds)
        except Exception as error:
            if not isinstance(error, EngineError):
                logger.exception("loading a session")
            send(sock, ErrorReport.of(error))
            return
        finally:
            close_all(fds)
        self._sessions[number] = session
        try:
            send(sock, SessionOpened(number))
            session.serve()
        finally:
            del self._sessions[number]
            session.over.set()

    def _answer(
        self,
        sock: socket.socket,
        message: Question,
        fds: list[int],
        owned: list[ClientProcess],
    ) -> tuple[Message, list[int]]:
        scheduler = self._scheduler
        match message:
            case Ping():
                return self._status(), []
            case Load():
                return Loaded(tuple(self._load_replicas(message, fds))), []
            case Describe():
                return self._describe(message, fds), []
            case Save():
                return self._save(message.replica)
            case LinkUp():
                client = self._link(sock, fds)
                owned.append(client)
                self._links.add(sock)
                eventfds = (scheduler.wake_fd, self._terminator.cancel_fd)
                return Linked(client.number), [os.dup(fd) for fd in eventfds]
            case OpenChannel():
                return ChannelOpened(self._channel(message, fds)), []
            case OpenSession():
                raise EngineBug("a session needs a connection of its owner")
            case _:
                self._obey(message, fds)
                return Done(), []

    def _obey(
        self,
        message: Unload | CloseChannel | Invite | InjectFailure | EndRun | EndSession
        | Stop,
        fds: list[int],
    ) -> None:  # fmt: skip
        """Carry out a message whose answer is `Done`."""
        scheduler = self._scheduler
        match message:
            case Unload(replica):
                self._saves.pop(replica, None)
                scheduler.commands.call(partial(self._connections.unload, replica))
                scheduler.commands.do(scheduler.give_back_memory)
                logger.debug("unloaded replica %s", replica)
            case CloseChannel(link, channel):
                scheduler.commands.call(
                    partial(self._connections.close_channel, link, channel)
                )
            case Invite():
                door = HeldSocket(os.dup(fds[0]))
                threading.Thread(
                    target=self._open_door, args=(door,), name="door", daemon=True
                ).start()
            case InjectFailure(failure, after):
                replicas = list(scheduler.replicas.values())
                scheduler.commands.call(
                    partial(injected_failures.obey, replicas, failure, after)
                )
            case EndRun(replica, since, why):
                self._terminator.end_run(since, why)
                scheduler.commands.do(
                    partial(scheduler.has_failed, replica), beside=True
                )
            case EndSession(number):
                session = self._sessions.get(number)
                if session is not None:
                    session.end()
            case Stop():
                scheduler.commands.do(scheduler.stop)

    def _status(self) -> Status:
        scheduler = self._scheduler
        return Status(
            pid=os.getpid(),
            owner=os.getppid(),
            runs=tuple(map(status_of, scheduler.at_work())),
            batches=scheduler.batches,
            replicas=len(scheduler.replicas),
            clients=len(scheduler.clients),
            sessions=len(self._sessions),
        )

    def _describe(self, message: Describe, fds: list[int]) -> Message:
        refuse_unless(self._python, python=True)
        kind = self._python
        assert kind is not None
        found: list[Message] = []
        self._scheduler.commands.call(
            lambda: found.append(kind.describe(message.python, fds))
        )
        return found[0]

    def _load_replicas(self, message: Load, fds: list[int]) -> list[int]:
        numbers = [next(self._numbers) for _ in range(message.count)]
        scheduler = self._scheduler
        refuse_unless(self._python, python=message.python is not None)
        loaded: list[LoadedReplica] = []

        def running() -> RunningBatch | None:
            return next(iter(runs_of(scheduler.at_work())), None)

        def load() -> None:
            room = scheduler.wait_room
            loaded.extend(
                load_replicas(numbers, message, fds, room, running, self._python)
            )

        if self._python is not None:
            scheduler.commands.call(load)  # in the thread that will run it
        else:
            load()
        for number, one in zip(numbers, loaded, strict=True):
            self._saves[number] = one.save
            scheduler.commands.call(
                partial(self._connections.add_replica, number, one.replica)
            )
            logger.debug("loaded %r from %s", one.replica, ", ".join(message.sources))
        return numbers

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
        return Saved(place), [fd]

    def _link(self, sock: socket.socket, fds: list[int]) -> ClientProcess:
        link = Link.attach(os.dup(fds[0]))
        pid = control.peer_pid(sock)
        client = ClientProcess(next(self._numbers), link, os.dup(fds[1]), pid)
        self._scheduler.commands.call(partial(self._connections.add_client, client))
        logger.debug("%r connected", client)
        return client

    def _channel(self, message: OpenChannel, fds: list[int]) -> int:
        try:
            layout = ChannelLayout.from_message(message.layout)
        except ValueError as error:
            raise EngineBug(str(error)) from error
        channel = Channel.attach(os.dup(fds[0]), layout)
        number = next(self._numbers)
        line = message.priority, message.weight, message.lane
        add = self._connections.add_channel
        try:
            self._scheduler.commands.call(
                partial(add, number, channel, message.link, message.replica, *line)
            )
        except BaseException:
            channel.close()
            raise
        return number

    def __repr__(self) -> str:
        return f"<DeviceService of {self._scheduler!r}>"
