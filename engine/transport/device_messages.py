"""Control messages to a device process, and its answers.

A question states the descriptors beside it. `engine.transport.control` sends it and
receives the answer of the stated kind, or `ErrorReport`. A plugin's session adds
messages of its own: `OpenSession` carries the first one as bytes, and the session
decodes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

import msgspec

from engine.faults import DeviceFault
from engine.transport.messages import Message, Receiver

Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
#: A number of things that are made at once.
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=1 << 20)]
#: Offset and bytes of the table of tensors in a segment.
Place: TypeAlias = tuple[Number, Number]


#: Slots, then bytes of inputs, of outputs, and usual bytes (`ChannelLayout.to_message`,
#: which the device process checks).
LayoutTold: TypeAlias = tuple[
    Count, tuple[Number, ...], tuple[Number, ...], tuple[Number, ...]
]
#: Name, size, span and transfers of an anchor (`engine.model.batch_plan.AnchorRows`).
AnchorTold: TypeAlias = tuple[str, int, int, int]
#: A plan of rows of different length (`RaggedPlan.to_message`).
RaggedTold: TypeAlias = tuple[
    tuple[float | None, ...], tuple[tuple[int, ...], ...], int, float, tuple[int, ...]
]
#: A plan of batches (`BatchPlan.to_message`).
PlanTold: TypeAlias = tuple[
    int,
    int,
    int,
    int,
    tuple[AnchorTold, ...],
    tuple[AnchorTold, ...],
    RaggedTold | None,
]


# -- questions of the owner and of joined processes


class Ping(Message, frozen=True):
    """Asks for the `Status`."""


class LinkUp(Message, frozen=True):
    """Connects a client process. Beside it: the segment of the link, and an eventfd for
    results. The answer is `Linked`.
    """

    def descriptors(self) -> int:
        return 2


class OpenChannel(Message, frozen=True):
    """Opens a channel, whose segment is beside it. The answer is `ChannelOpened`."""

    link: Number
    replica: Number
    layout: LayoutTold
    priority: int = 0
    weight: int = 0
    lane: int = 0

    def descriptors(self) -> int:
        return 1


class CloseChannel(Message, frozen=True):
    link: Number
    channel: Number


# -- questions of the owner


class AdapterTold(msgspec.Struct, frozen=True, array_like=True):
    """The module of an adapter, and the folder of its package. Both are empty if the
    file needs none.
    """

    module: str
    folder: str


class PythonTold(msgspec.Struct, frozen=True, array_like=True):
    """A Python model. With `calls`, the last descriptor is the socket for its calls to
    `models`.
    """

    file: str
    config: Mapping[str, Any]
    requirements: tuple[str, ...]
    device: str
    models: tuple[str, ...] | None
    calls: bool
    declared: Mapping[str, Any]
    adapter: AdapterTold


class WaitingTimes(msgspec.Struct, frozen=True, array_like=True):
    """The waiting times of incomplete runs, and what ends them early."""

    fill_batch_ns: Number
    fill_run_ns: Number
    asks: bool
    drops_cancelled: bool
    look_ahead: int


class Load(Message, frozen=True):
    """Loads `count` replicas of a model. Beside it: the files of `sources`, the segment
    of the frozen inputs, if any, and the socket for calls, if any. The answer is
    `Loaded`.
    """

    count: Count
    name: str
    sources: tuple[str, ...]
    executable: str | None
    threads: Number
    providers: tuple[str, ...]
    plan: PlanTold
    delay_ns: Number
    preferred: tuple[int, ...]
    waiting: WaitingTimes
    check_package_hash: bool
    frozen: Place | None
    python: PythonTold | None
    load_timeout: float

    def descriptors(self) -> int:
        has_calls = self.python is not None and self.python.calls
        return len(self.sources) + (self.frozen is not None) + has_calls


class Describe(Message, frozen=True):
    """Asks for the interface of a Python model. Beside it: its file. The answer is
    `Described`.
    """

    python: PythonTold

    def descriptors(self) -> int:
        return 1


class Save(Message, frozen=True):
    """Runs the save programs of a replica. The answer is `Saved`."""

    replica: Number


class Unload(Message, frozen=True):
    replica: Number


class OpenSession(Message, frozen=True):
    """Opens a session on this connection. The class `service` ("module:name") reads
    `content` and the `fds` descriptors beside it. The answer is `SessionOpened`. Then
    the messages are those of the class.
    """

    service: str
    content: bytes
    fds: Number

    def descriptors(self) -> int:
        return self.fds


class EndSession(Message, frozen=True):
    session: Number


class Invite(Message, frozen=True):
    """Lets other processes join through the socket beside it (`Connect`)."""

    def descriptors(self) -> int:
        return 1


class Connect(Message, frozen=True):
    """Opens a connection through a door: the socket beside it."""

    def descriptors(self) -> int:
        return 1


class InjectFailure(Message, frozen=True):
    """Orders a failure after so many runs (engine/worker/injected_failures.py)."""

    failure: str
    after: Number


class EndRun(Message, frozen=True):
    """Ends the run of a replica that began at `since`."""

    replica: Number
    since: Number
    why: str


class Stop(Message, frozen=True):
    """Lets the process end."""


# -- answers


class Done(Message, frozen=True):
    """The process has done what a message without another answer asks for."""


class RunTold(Message, frozen=True):
    """A present run: the number of its replica, when it began (`time.monotonic_ns`),
    how long it has lasted, and how long it has lasted since all its clients left (0:
    some wait), in nanoseconds. While its results wait for room, all but the number
    are 0.
    """

    replica: Number
    since: int
    running_ns: int
    unwanted_ns: int


class Status(Message, frozen=True):
    """The state of the process. `runs` are the present runs, at most two."""

    pid: Number
    owner: Number
    runs: tuple[RunTold, ...]
    batches: Number
    replicas: Number
    clients: Number
    sessions: Number

    @property
    def running_ns(self) -> int:
        """Return how long the longest present run has lasted; 0 if none runs."""
        return max((run.running_ns for run in self.runs), default=0)


class Linked(Message, frozen=True):
    """A link is made. Beside it: the eventfds that wake the process for requests and
    for cancellations.
    """

    link: Number

    def descriptors(self) -> int:
        return 2


class ChannelOpened(Message, frozen=True):
    channel: Number


class Loaded(Message, frozen=True):
    replicas: tuple[Number, ...]


#: Name, data type and shape of a tensor.
TensorTold: TypeAlias = tuple[str, str, tuple[int, ...]]


class Described(Message, frozen=True):
    """The interface of a Python model (`PythonInterface.to_message`)."""

    inputs: tuple[TensorTold, ...]
    outputs: tuple[TensorTold, ...]
    batching: bool
    streams: bool
    routes: str


class Saved(Message, frozen=True):
    """The outputs of save programs, in the segment beside it."""

    place: Place

    def descriptors(self) -> int:
        return 1


class SessionOpened(Message, frozen=True):
    session: Number


class FaultTold(Message, frozen=True):
    """The fault that ends the process. It comes on the connection of each link."""

    fault: DeviceFault


#: The kinds that a joined process may send, which only feed loaded models.
GuestQuestion: TypeAlias = Ping | LinkUp | OpenChannel | CloseChannel
Question: TypeAlias = (
    GuestQuestion | Load | Describe | Save | Unload | OpenSession | EndSession | Invite
    | InjectFailure | EndRun | Stop
)  # fmt: skip

QUESTIONS = Receiver[Question](
    *(Ping, LinkUp, OpenChannel, CloseChannel, Load, Describe, Save, Unload),
    *(OpenSession, EndSession, Invite, InjectFailure, EndRun, Stop),
)
DOOR = Receiver[Connect](Connect)
FAULTS = Receiver[FaultTold](FaultTold)
#: The kinds of answers.
ANSWERS: tuple[type[Message], ...] = (
    *(Done, Status, Linked, ChannelOpened, Loaded, Described, Saved, SessionOpened),
)
