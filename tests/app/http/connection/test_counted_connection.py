"""The limit of connections and the floods count each connection once."""

from __future__ import annotations

from app.http.connection.counted_connection import CountedConnection
from app.http.connection_limit import ConnectionLimit, Entry
from app.http.floods import BURST, ENTRY, HANDSHAKE, Floods


class Connection:
    def has_asked(self) -> bool:
        return False

    def evict(self) -> None:
        raise AssertionError("there is room")


def test_a_connection_is_counted_until_it_ends() -> None:
    connections: set[Connection] = set()
    connection, limit = Connection(), ConnectionLimit(most=1, most_extra=1)
    counted = CountedConnection(connection, "192.0.2.1", connections, limit, Floods())
    assert (counted.entry, connections) == (Entry.FREE, {connection})
    assert repr(counted) == "<CountedConnection of 192.0.2.1, FREE>"
    counted.leave(connection)
    assert not connections
    again = CountedConnection(connection, "", connections, limit, Floods())
    assert (again.entry, repr(again)) == (Entry.FREE, "<CountedConnection of ?, FREE>")


def cost(was_idle: bool, is_tls: bool) -> float:
    """Return the refusals that a connection costs."""
    floods, now = Floods(lambda: 0.0), 0.0
    counted = CountedConnection(Connection(), "", set(), ConnectionLimit(), floods)
    counted.judge(was_idle, is_tls)
    while not floods.charge(1.0):
        now += 1.0
    return BURST - now


def test_a_client_that_asks_nothing_pays_and_most_over_tls() -> None:
    asked, plain, tls = cost(False, False), cost(True, False), cost(True, True)
    assert asked < plain < tls
    assert (ENTRY, HANDSHAKE) == (0.2, 4.0)
