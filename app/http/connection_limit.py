"""`ConnectionLimit`: the most connections of a server, and which one to close."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from app.limits import Total

#: Connections beyond the limit that are let in, for health checks and management.
MOST_EXTRA: Final = 64


class Entry(enum.Enum):
    """Decision about a new connection."""

    FREE = enum.auto()
    #: The connection may send health checks and management calls only. It exceeds the
    #: limit of all connections, or (the second value) the limit of its address.
    EXTRA = enum.auto()
    EXTRA_OF_ADDRESS = enum.auto()
    REFUSED = enum.auto()


class LimitedConnection(Protocol):
    """The part of a connection that the limit uses."""

    def has_asked(self) -> bool:
        """Return whether the head of a request has arrived."""

    def evict(self) -> None:
        """Close the connection immediately, to make room for another."""


@dataclass(eq=False, repr=False)
class ConnectionLimit:
    """Limits the number of connections.

    `most` counts in this process, or in all processes if a `total` is given.
    `per_address` limits one address in this process (0: any number), unless `is_proxy`
    says that the address is a proxy.

    Beyond these limits a new connection replaces the one that has been silent longest,
    so silent connections do not block clients. The latest `most_extra` of them have
    some time to send a request.
    """

    most: int = sys.maxsize
    total: Total | None = None
    per_address: int = 0
    is_proxy: Callable[[str], bool] = lambda address: False
    most_extra: int = MOST_EXTRA
    # Connections in the order of their arrival: those without a request at the last
    # check, and all of an address if addresses are limited.
    _silent: dict[LimitedConnection, None] = field(default_factory=dict, init=False)
    _of_address: dict[str, dict[LimitedConnection, None]] = field(
        default_factory=dict, init=False
    )
    _evicted: set[LimitedConnection] = field(default_factory=set, init=False)

    def enter(self, connection: LimitedConnection, address: str, count: int) -> Entry:
        """Count a connection from an address (empty: unknown); this process now has
        `count`.
        """
        excess = self._excess(count)
        if excess > 0:
            is_crowded = excess > self.most_extra
            if self._evict_silent(0 if is_crowded else self.most_extra):
                excess -= 1
        self._silent[connection] = None
        entry = self._decide(excess, Entry.EXTRA)
        if self.per_address and address and not self.is_proxy(address):
            same = self._of_address.setdefault(address, {})
            of_address = len(same) + 1 - self.per_address
            if of_address > 0:
                silent = next((g for g in same if not g.has_asked()), None)
                if silent is not None:
                    del same[silent]
                    self._silent.pop(silent, None)
                    self._evict(silent)
                    of_address -= 1
            same[connection] = None
            if entry is Entry.FREE:
                entry = self._decide(of_address, Entry.EXTRA_OF_ADDRESS)
        return entry

    def leave(self, connection: LimitedConnection, address: str, count: int) -> None:
        """Count a closed connection; this process now has `count`."""
        self._silent.pop(connection, None)
        self._evicted.discard(connection)
        same = self._of_address.get(address)
        if same is not None:
            same.pop(connection, None)
            if not same:
                del self._of_address[address]
        if self.total is not None:
            self.total.publish(count)

    def left(self, count: int) -> int:
        """Return how many may do their handshake beside `count` connections."""
        return max(self.most_extra, self.most - count)

    def _excess(self, count: int) -> int:
        total = self.total
        known = count if total is None else total.publish(count)
        return known - len(self._evicted) - self.most

    def _decide(self, excess: int, extra: Entry) -> Entry:
        if excess <= 0:
            return Entry.FREE
        return extra if excess <= self.most_extra else Entry.REFUSED

    def _evict_silent(self, but: int) -> bool:
        """Close the connection that has been silent longest, except the last few, and
        return whether one was closed.

        A connection that has sent a request leaves the list here.
        """
        while len(self._silent) > but:
            connection = next(iter(self._silent))
            del self._silent[connection]
            if not connection.has_asked():
                self._evict(connection)
                return True
        return False

    def _evict(self, connection: LimitedConnection) -> None:
        self._evicted.add(connection)
        connection.evict()

    def __repr__(self) -> str:
        return f"<ConnectionLimit {self.most}, {self.total!r}>"
