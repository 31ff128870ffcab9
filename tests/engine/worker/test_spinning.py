"""A device polls for requests while that pays."""

from __future__ import annotations

from engine.transport.link import ALONE, Link
from engine.worker.spinning import SPIN_CREDIT, SPIN_FROM_NS, WAKE_NS, Spinning

MILLISECOND = 1_000_000


def test_a_short_sleep_makes_the_next_one_a_spin() -> None:
    spinning = Spinning(MILLISECOND)
    spinning.learn_from_sleep(2 * SPIN_FROM_NS + WAKE_NS, ())
    assert spinning.credit == SPIN_CREDIT
    for left in range(SPIN_CREDIT - 1, -1, -1):
        assert not spinning.spin(())
        assert spinning.credit == left


def test_requests_that_gather_to_a_batch_are_not_polled_for() -> None:
    link = Link.create()
    try:
        spinning = Spinning(MILLISECOND)
        spinning.learn_from_sleep(WAKE_NS, [link])
        assert spinning.credit < 0
        link.words[ALONE] = 1  # one client that sends one at a time
        spinning.learn_from_sleep(WAKE_NS, [link])
        assert spinning.credit == SPIN_CREDIT
        link.submissions.put(1)
        assert spinning.spin([link])
    finally:
        link.close()
