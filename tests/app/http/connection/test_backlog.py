"""What waits behind a request keeps its order and is counted."""

from __future__ import annotations

from app.http.connection.backlog import MOST, Backlog


def test_bytes_come_out_in_their_order() -> None:
    backlog = Backlog()
    assert not backlog.data
    backlog.hold(b"..ab", 2)
    backlog.hold(b"cd", 0)
    backlog.hold(b"...ef", 3)
    data, at = backlog.pop()
    assert data[at:] == b"abcdef"
    assert not backlog.data
    assert repr(backlog) == "<Backlog of 0 bytes>"


def test_it_is_full_by_what_waits_and_not_by_what_was_read() -> None:
    backlog = Backlog()
    backlog.hold(bytes(MOST + 9), 10)
    assert not backlog.is_full
    backlog.hold(b".", 0)
    assert backlog.is_full
    backlog.clear()
    assert not backlog.is_full
    assert backlog.pop() == (b"", 0)
