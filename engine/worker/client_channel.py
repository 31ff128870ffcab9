"""A channel from the device process's view: its client, and the slots of waiting
requests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from engine.transport.anchor_ring import lock_all
from engine.transport.channel import REQUEST, UNDELAYED, Channel

if TYPE_CHECKING:
    from engine.transport.link import Completions, Link


#: A time before any request, for any clock and any delay.
LONG_AGO: Final = -(1 << 61)


class DeviceShare:
    """The device time that channels of one weight and lane have used together, divided
    by their weight, over all its models (engine/worker/fair_queue.py).
    """

    __slots__ = ("turn", "used")

    def __init__(self, used: float = 0.0) -> None:
        #: Device time in nanoseconds, divided by the weight.
        self.used = used
        #: The last turn in which a request of this share was waiting.
        self.turn = 0

    def __repr__(self) -> str:
        return f"<DeviceShare, {self.used:g} used>"


class ClientChannel:
    """A channel, the link of its client, and the number of announced requests.

    A read-locked slot stays locked until it is released or put back. Only for the
    thread that runs programs.
    """

    __slots__ = (
        "_large_until", "channel", "completions", "lane", "last_turn", "link",
        "number", "pending", "priority", "share", "weight",
    )  # fmt: skip

    def __init__(
        self,
        number: int,
        channel: Channel,
        link: Link,
        priority: int = 0,
        weight: int = 0,
        lane: int = 0,
    ) -> None:
        self.number = number
        #: Level, weight and lane of all its requests. They use a share of the device
        #: together with other clients' requests of the same weight and lane
        #: (engine/worker/fair_queue.py).
        self.priority = priority
        self.weight = weight
        self.lane = lane
        self.share = DeviceShare()
        #: The last turn of the fair queue that took from this channel.
        self.last_turn = 0
        self.channel = channel
        self.link = link
        #: Where completions go: into the ring of the link. If the replica runs aside,
        #: they go there through the thread that schedules.
        self.completions: Completions = link.completions
        self.pending = 0
        self._large_until = 0

    def pass_on(self, completions: Completions) -> None:
        """Put completions there from now on."""
        self.completions = completions

    @property
    def is_aside(self) -> bool:
        """Return whether the replica runs aside (engine/worker/large_runs.py)."""
        return self.completions is not self.link.completions

    @property
    def has_large(self) -> bool:
        """Return whether a large request may be among those that are not released."""
        return self.channel.requests.released < self._large_until

    def note_large(self) -> None:
        """Record that the last announced request, which `pending` counts, is large."""
        requests = self.channel.requests
        # Some replicas count requests as pending that they hold. Then `has_large` holds
        # for a few requests more.
        self._large_until = requests.released + requests.held + self.pending

    def peek(self, with_inputs: bool = False) -> list[tuple[int, int, list[int]]]:
        """Return (submitted, rows, slots) of each waiting request.

        `submitted` is `LONG_AGO` if the request must not be delayed. `with_inputs`
        includes the slots of the inputs, which can be read until the next call. A
        request that was written but not announced does not count. It belongs to a later
        batch, so the next batch must not wait for it.
        """
        requests, inputs = self.channel.requests, self.channel.inputs
        waiting: list[tuple[int, int, list[int]]] = []
        while len(waiting) < self.pending and (slot := requests.try_read_lock()) >= 0:
            at = self.channel.request_at(slot)
            number, rows, flags, _, submitted = REQUEST.unpack_from(
                self.channel.view, at
            )
            slots = lock_all(inputs, number) if with_inputs else []
            since = LONG_AGO if flags & UNDELAYED else submitted
            waiting.append((since, rows, slots))
        requests.read_reset()
        if with_inputs:
            for ring in inputs:
                ring.read_reset()
        return waiting

    def shape_of(self, slots: list[int], dim: int) -> tuple[object, ...]:
        """Return the shape of each input of a request, without its rows."""
        shape: list[object] = []
        for ring, slot in zip(self.channel.inputs, slots, strict=True):
            if slot < 0:
                shape.append(None)
                continue
            dims = ring.dims(slot, ring.head(slot)[3])
            shape.append(dims[1:] if not dim else (*dims[:dim], *dims[dim + 1 :]))
        return tuple(shape)

    def __repr__(self) -> str:
        return f"<ClientChannel {self.number}, {self.pending} pending>"
