"""Messages between the supervisor and its workers, mainly about models to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from app.config.keys import KeysConfig
from app.observe.journal import NestedCall
from app.observe.log import LogSettings
from app.observe.metrics import ModelMetrics
from app.repository.formats import SharedFormat, SharedScheduler
from app.serving.stateful import StatefulScheduler
from app.serving.table import ModelEntry
from app.spec import ModelSpec
from engine import Message, ObjectField, Receiver, RunnerDescription, SharedMemory

#: The most bytes of a message.
MOST = 160 * 1024


class SharedEnsemble(Message, frozen=True):
    """An ensemble (`Ensemble.shared`), and the tensors of its members."""

    graph: bytes
    members: tuple[ObjectField[ModelSpec], ...]


class SharedModel(Message, frozen=True):
    """A model that a device runs."""

    description: ObjectField[RunnerDescription]


#: What a worker needs to run a version.
Shared = SharedModel | SharedEnsemble


class SharedEntry(Message, frozen=True):
    """A version of a model that workers run.

    `key` is unique for each load, so a worker's runner belongs to one load only.
    `block` is its block of counters. `timeout`, `max_timeout` and `level_timeouts` are
    those of the `ModelEntry`. `generator` has all tensors of a model that gives several
    responses. `format` describes the scheduler of a plugin's format.
    """

    key: int
    block: int
    spec: ObjectField[ModelSpec]
    runner: Shared
    timeout: float | None = None
    max_timeout: float | None = None
    level_timeouts: Mapping[int, float | None] = {}
    generator: ObjectField[ModelSpec] | None = None
    format: ObjectField[SharedFormat] | None = None

    @classmethod
    def of(cls, key: int, block: int, entry: ModelEntry, runner: Shared) -> SharedEntry:
        scheduler = entry.scheduler
        generator = None
        if isinstance(scheduler, StatefulScheduler):
            generator = scheduler.generator
        return cls(
            key,
            block,
            ObjectField(entry.spec),
            runner,
            entry.timeout,
            entry.max_timeout,
            entry.level_timeouts or {},
            None if generator is None else ObjectField(generator),
            ObjectField(scheduler.shared)
            if isinstance(scheduler, SharedScheduler)
            else None,
        )


# -- to a worker


class Files(msgspec.Struct, frozen=True, gc=False):
    """The contents of files that the server reloads, as the supervisor uses them.

    A worker must be able to start while these files are missing or wrong.
    """

    keys: KeysConfig
    tls: Sequence[bytes]


class Start(Message, frozen=True):
    """The first message to a worker. Beside it are the memory of its counters and of
    the totals, its listener, and the memory of its `Files`, which take `files` bytes.

    `relay` is the address of the supervisor's application. `log` and `access` are set
    if they were changed since the server started.
    """

    settings: Mapping[str, Any]
    workers: int
    keeps_listener: bool
    number: int = 0
    relay: str = ""
    is_drained: bool = False
    log: LogSettings | None = None
    access: str | None = None
    files: int = 0

    def descriptors(self) -> int:
        return 4


class JoinDevice(Message, frozen=True):
    """A device that the worker may join through the door beside the message."""

    key: str
    id: str
    number: int

    def descriptors(self) -> int:
        return 1


class ModelChanged(Message, frozen=True):
    """The versions of a model that the worker runs from now on.

    `failed` are keys of models that will not come back, with the reasons.
    """

    seq: int
    name: str
    default: str
    entries: tuple[SharedEntry, ...]
    failed: tuple[tuple[int, str], ...]


class SetLog(Message, frozen=True):
    settings: LogSettings


class SetAccess(Message, frozen=True):
    """A new share of logged requests (`Journal.set_access`)."""

    text: str


class ServeConnection(Message, frozen=True):
    """The connection beside the message was accepted for another worker."""

    def descriptors(self) -> int:
        return 1


class SetDrained(Message, frozen=True):
    """Every answer must be its connection's last."""


class Drain(Message, frozen=True):
    """Finish the requests, and end."""


class AddNestedCall(Message, frozen=True):
    """A nested call of a request of the worker has ended; `call` is as
    `nested_call_message` returns it.
    """

    number: int
    call: Any


def nested_call_message(call: NestedCall) -> list[Any]:
    """Return a nested call for another process, in types that msgpack supports."""
    label, model, *rest, nested = call
    known = [label, [model.name, model.version], *rest]
    return [*known, list(map(nested_call_message, nested))]


def nested_call_of(message: Sequence[Any]) -> NestedCall:
    """Return the nested call that another process sent by `nested_call_message`."""
    label, key, *rest, nested = message
    below = tuple(map(nested_call_of, nested))
    return NestedCall._make([label, ModelMetrics(*key), *rest, below])


class PingWorker(Message, frozen=True):
    ask: int


class AskJournal(Message, frozen=True):
    ask: int


class AskParents(Message, frozen=True):
    """Asks for the clients of those of these requests that still exist."""

    ask: int
    numbers: tuple[int, ...]


Question = PingWorker | AskJournal | AskParents
ToWorker = (
    JoinDevice
    | ModelChanged
    | SetLog
    | SetAccess
    | ServeConnection
    | SetDrained
    | Drain
    | AddNestedCall
    | Question
)


# -- to the supervisor


class Listening(Message, frozen=True):
    """The worker has begun to accept connections."""


class Switched(Message, frozen=True):
    """The worker has applied a `ModelChanged`."""

    seq: int


class Left(Message, frozen=True):
    """The worker has released a runner."""

    key: int


class NotJoined(Message, frozen=True):
    """The worker had no descriptors to join the device with this key, or, if it is
    empty, to open channels on its devices.
    """

    key: str


class Pong(Message, frozen=True):
    ask: int


class JournalTold(Message, frozen=True):
    """The journal is a document of so many bytes in the memory beside the message."""

    ask: int
    size: int

    def descriptors(self) -> int:
        return 1


class ParentsTold(Message, frozen=True):
    """The clients are a document of so many bytes in the memory beside the message."""

    ask: int
    size: int

    def descriptors(self) -> int:
        return 1


Answer = Pong | JournalTold | ParentsTold
ToSupervisor = Listening | Switched | Left | NotJoined | Answer


def memory_of(document: bytes) -> SharedMemory:
    """Return memory with a document of any size, for another process."""
    memory = SharedMemory.create("document", len(document))
    memory.view[: len(document)] = document
    return memory


def document_in(fd: int, size: int) -> bytes:
    """Return the document in the memory of another process. Closes `fd`."""
    with SharedMemory.attach(fd, size) as memory:
        return bytes(memory.view[:size])


START = Receiver[Start](Start, most=MOST)
TO_WORKER = Receiver[ToWorker](
    *(JoinDevice, ModelChanged, SetLog, SetAccess, ServeConnection, SetDrained),
    *(Drain, AddNestedCall, PingWorker, AskJournal, AskParents),
    most=MOST,
)
TO_SUPERVISOR = Receiver[ToSupervisor](
    *(Listening, Switched, Left, NotJoined, Pong, JournalTold, ParentsTold), most=MOST
)
