"""Messages of sessions, between their host and the device process.

Both processes import this package. May import of PopGate: `engine`. `OpenSession` of
the core carries `SessionModel` as its content. All later messages belong to a run.

The host begins a run (`Run`). Whenever the program waits for an input, the device asks
for it (`Need`, answered by `Data`); it writes outputs (`Wrote`, answered by `Stored` if
it asks). The run ends with `RunEnded` or `RunFailed`. The device also requests reads in
advance, in `Ahead` or beside these messages. The host may end the run (`Abort`).

The device names the places of data in its shared memory, by `DataLocation`. A segment
that a message names for the first time is beside that message, as a descriptor.
"""

from __future__ import annotations

from typing import Final, NamedTuple, TypeAlias

from engine.transport.device_messages import Number
from engine.transport.error_report import ErrorReport
from engine.transport.messages import Message, Receiver

#: The most bytes of a message while programs run. A larger limit takes more time.
MOST_BYTES: Final = 16 * 1024
#: The most characters of an error's text.
MOST_TEXT: Final = 3000

Shape: TypeAlias = tuple[Number, ...]


class DataLocation(NamedTuple):
    """`room` bytes at an offset of a segment."""

    segment: Number
    offset: Number
    room: Number


class Prefetch(NamedTuple):
    """A read that is certain to follow, and the place for its data."""

    anchor: Number
    location: DataLocation


class Segment(NamedTuple):
    """A segment of `size` bytes that the host does not know yet."""

    number: Number
    size: Number


class AnchorBinding(NamedTuple):
    """The source of each anchor, as places in the metadata of the model.

    `host` are the anchors that the host serves, `ready` those of them that can be
    prefetched, `empty` those that nothing serves, and `file` those of the file.
    """

    host: tuple[Number, ...]
    ready: tuple[Number, ...]
    empty: tuple[Number, ...]
    file: tuple[Number, ...]


class SessionModel(Message, frozen=True):
    """The model of a session. Its files are beside the message."""

    sources: tuple[str, ...]
    executable: str | None
    threads: Number
    providers: tuple[str, ...]
    check_package_hash: bool
    look_ahead: Number


# -- from the host


class Data(Message, frozen=True):
    """The data of a read.

    They are in the oldest place that the device named for the anchor, or, if
    `has_segment` is set, in a segment of their own beside the message.
    """

    anchor: Number
    nbytes: Number
    shape: Shape
    has_segment: bool = False

    def descriptors(self) -> int:
        return int(self.has_segment)


class Run(Message, frozen=True):
    """Run programs. `data` answers the prefetches of the run before, if `resume` says
    that this run goes on where that one ended. `binding` is None if it has not changed.
    """

    programs: tuple[Number, ...]
    binding: AnchorBinding | None
    resume: bool
    data: tuple[Data, ...]


class Stored(Message, frozen=True):
    """The host has taken what `Wrote` told, so the device may use the place again."""

    anchor: Number
    location: DataLocation


class Abort(Message, frozen=True):
    """End the run."""

    why: str


# -- from the device


class DeviceMessage(Message, frozen=True, kw_only=True):
    """`consumed` are the anchors whose prefetched data the program has read meanwhile.
    `segments` are beside the message.
    """

    consumed: tuple[Number, ...] = ()
    segments: tuple[Segment, ...] = ()

    def descriptors(self) -> int:
        return len(self.segments)


class Need(DeviceMessage, frozen=True):
    """The program waits for data. `location` is None if a prefetch of them was
    requested before.
    """

    anchor: Number
    location: DataLocation | None
    prefetches: tuple[Prefetch, ...] = ()


class Ahead(DeviceMessage, frozen=True):
    """Requests of prefetches, while the program goes on."""

    prefetches: tuple[Prefetch, ...]


class Wrote(DeviceMessage, frozen=True):
    """The program has written an output. `ack` asks for `Stored`."""

    anchor: Number
    location: DataLocation
    nbytes: Number
    shape: Shape
    ack: bool


class RunEnded(DeviceMessage, frozen=True):
    """The programs have ended. The prefetches are for the next run, if it has the same
    programs and the same binding.
    """

    prefetches: tuple[Prefetch, ...] = ()


class RunFailed(DeviceMessage, frozen=True):
    """The programs have failed. `callers_fault` belongs to an `ExecutionFailed`."""

    report: ErrorReport
    callers_fault: bool


FromDevice: TypeAlias = Need | Ahead | Wrote | RunEnded | RunFailed

SESSION_MODEL: Final = Receiver[SessionModel](SessionModel)
#: What a device receives between runs. `Run` comes only there, and may be long.
BETWEEN_RUNS: Final = Receiver[Run | Data | Stored | Abort](Run, Data, Stored, Abort)
#: What a device receives during a run.
DURING_RUN: Final = Receiver[Data | Stored | Abort](
    Data, Stored, Abort, most=MOST_BYTES
)
FROM_DEVICE: Final = Receiver[FromDevice](
    Need, Ahead, Wrote, RunEnded, RunFailed, most=MOST_BYTES
)
