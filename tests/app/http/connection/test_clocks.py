"""What becomes of a connection at each look, by numbers alone."""

from __future__ import annotations

from app.http.connection.clocks import (
    ANSWER,
    REQUEST,
    REST_OF_BODY,
    REST_OF_HEAD,
    Clocks,
    Patience,
    Verdict,
)

PATIENCE = Patience(head=10.0, body=5.0, send=20.0)
MESSAGE = object()


def looks(
    clocks: Clocks, *seen: tuple[float, int, int, int], message: object = MESSAGE
) -> list[Verdict]:
    """Looks at these times, with bytes unsent, what is awaited, and what has come."""
    return [
        clocks.look(now, unsent, awaited, message, arrived, PATIENCE)
        for now, unsent, awaited, arrived in seen
    ]


def test_an_idle_connection_is_closed() -> None:
    clocks = Clocks(75.0, 100.0)
    assert looks(clocks, (174.9, 0, REQUEST, 0), (175.0, 0, REQUEST, 0)) == [
        Verdict.STAYS,
        Verdict.IDLE,
    ]
    clocks.idle_since = 175.0
    assert looks(clocks, (200.0, 0, REQUEST, 0)) == [Verdict.STAYS]


def test_a_head_has_so_long_in_all() -> None:
    clocks = Clocks(75.0, 0.0)
    seen = [(float(now), 0, REST_OF_HEAD, 1) for now in (0, 10, 11)]
    assert looks(clocks, *seen) == [Verdict.STAYS, Verdict.STAYS, Verdict.HEAD_TOO_SLOW]
    assert clocks.stalled == 11.0
    again = [(12.0, 0, REST_OF_HEAD, 2), (22.0, 0, REST_OF_HEAD, 2)]
    assert looks(clocks, *again) == [Verdict.STAYS, Verdict.STAYS]


def test_a_body_may_take_long_if_it_goes_on() -> None:
    clocks = Clocks(75.0, 0.0)
    seen = [(4.0 * step, 0, REST_OF_BODY, step) for step in range(100)]
    assert set(looks(clocks, *seen)) == {Verdict.STAYS}
    still = [(now, 0, REST_OF_BODY, 99) for now in (401.0, 402.0)]
    assert looks(clocks, *still) == [Verdict.STAYS, Verdict.BODY_STOPPED]
    assert clocks.stalled == 6.0


def test_an_answer_may_take_any_time_but_has_to_be_taken() -> None:
    clocks = Clocks(75.0, 0.0)
    assert looks(clocks, (1e6, 0, ANSWER, 0)) == [Verdict.STAYS]
    taken = [(1e6 + 15.0 * step, 1000 - step, ANSWER, 0) for step in range(9)]
    assert set(looks(clocks, *taken)) == {Verdict.STAYS}
    now = taken[-1][0]
    assert looks(clocks, (now + 20.5, 992, ANSWER, 0)) == [Verdict.NOT_TAKEN]
    # Taking it is something that happens.
    idle = [(now + 30.0, 0, REQUEST, 0), (now + 95.5, 0, REQUEST, 0)]
    assert looks(clocks, *idle) == [Verdict.STAYS, Verdict.IDLE]
