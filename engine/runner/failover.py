"""`Failover`: requests that another replica may run if their device is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from engine.devices.request import Request
from engine.errors import EngineError
from engine.tensor import Tensor

#: A function that moves a request to another replica, with its inputs. The first
#: replica has not begun the request. Returns whether a replica took it.
Reroute = Callable[[Request, Mapping[str, Tensor], int], bool]
#: Requests, with their inputs.
Moving = list[tuple[Request, Mapping[str, Tensor]]]


class Failover:
    """The requests in flight on a channel that may move to another replica.

    `priority` is the priority that requests state to the other replica. The lock of the
    device guards `kept`, which are the requests' inputs by number.
    """

    __slots__ = ("_priority", "_reroute", "kept")

    def __init__(self, reroute: Reroute, priority: int) -> None:
        self._reroute = reroute
        self._priority = priority
        self.kept: dict[int, Mapping[str, Tensor]] = {}

    def unstarted(
        self, in_flight: Mapping[int, Request], untaken: Iterable[Request]
    ) -> Moving:
        """Return the requests in flight that may move, oldest first. `untaken` are the
        requests in the rings that no run has taken.
        """
        waiting = {id(request) for request in untaken}
        kept = self.kept
        return [
            (request, kept[number])
            for number, request in in_flight.items()
            if number in kept
            and not request.done
            and (request.slot < 0 or id(request) in waiting)
        ]

    def hand_over(self, moving: Moving, error: EngineError) -> None:
        """Move requests to another device and take its lock. Requests that find no
        replica fail with `error`.

        The caller does not hold the lock of this device.
        """
        for request, tensors in moving:
            if not request.done and not self._reroute(request, tensors, self._priority):
                request.resolve(error)

    def __repr__(self) -> str:
        return f"<Failover of {len(self.kept)} requests>"
