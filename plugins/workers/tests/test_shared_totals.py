"""A bound that holds for several processes."""

from __future__ import annotations

import os

from app.http.connection_limit import ConnectionLimit, Entry
from popgate_workers.shared_totals import SharedTotals


def test_each_has_a_part_and_what_died_has_none() -> None:
    mine = SharedTotals.create(3)
    theirs = SharedTotals.attach(os.dup(mine.memory.fd), 3)
    assert mine.connections(0).publish(5) == 5
    assert theirs.connections(2).publish(4) == 9
    assert theirs.bytes_held(2).publish(1 << 40) == 1 << 40
    mine.forget(2)
    assert mine.connections(0).publish(1) == 1
    assert mine.bytes_held(1).publish(0) == 0
    assert repr(mine) == "<SharedTotals [1, 0, 0], [0, 0, 0]>"
    assert repr(mine.bytes_held(1)) == "<SharedTotal [0, 0, 0], of which mine is 1>"
    theirs.memory.close()
    mine.memory.close()


class Connection:
    """A connection that has sent a request."""

    is_evicted = False

    def has_asked(self) -> bool:
        return True

    def evict(self) -> None:
        raise AssertionError


def test_connections_of_all_count() -> None:
    totals = SharedTotals.create(2)
    one, other = (ConnectionLimit(10, totals.connections(n)) for n in range(2))
    assert one.enter(Connection(), "", 7) is Entry.FREE
    assert other.enter(Connection(), "", 3) is Entry.FREE
    assert other.enter(Connection(), "", 4) is Entry.EXTRA
    one.leave(Connection(), "", 6)
    assert other.enter(Connection(), "", 4) is Entry.FREE
    assert repr(one).startswith("<ConnectionLimit 10, <SharedTotal [6, 4]")
    totals.memory.close()
