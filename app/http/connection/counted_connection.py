"""`CountedConnection`: a connection as its limit and the floods count it."""

from __future__ import annotations

from typing import Any

from app.http.connection_limit import ConnectionLimit, Entry, LimitedConnection
from app.http.floods import ENTRY, HANDSHAKE, Floods


class CountedConnection:
    """Counts a new connection from an address (empty: unknown).

    `connections` are those of this process. `entry` is the decision of the limit.
    """

    __slots__ = ("_address", "_connections", "_floods", "_limit", "entry")

    def __init__(
        self,
        connection: LimitedConnection,
        address: str,
        connections: set[Any],
        limit: ConnectionLimit,
        floods: Floods,
    ) -> None:
        self._address = address
        self._connections = connections
        self._limit = limit
        self._floods = floods
        connections.add(connection)
        floods.charge(ENTRY)
        self.entry: Entry = limit.enter(connection, address, len(connections))

    def leave(self, connection: LimitedConnection) -> None:
        """Count the connection as closed."""
        self._connections.discard(connection)
        self._limit.leave(connection, self._address, len(self._connections))

    def judge(self, was_idle: bool, is_tls: bool) -> None:
        """Charge a closed connection that has sent no whole request, and forgive one
        that has, because clients may open one for each request.
        """
        if not was_idle:
            self._floods.charge(-ENTRY)
        else:
            self._floods.charge(HANDSHAKE if is_tls else 1.0)

    def __repr__(self) -> str:
        return f"<CountedConnection of {self._address or '?'}, {self.entry.name}>"
