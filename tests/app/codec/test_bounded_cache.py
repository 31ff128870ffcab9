"""What is kept of what clients send has a bound."""

from __future__ import annotations

from app.codec.bounded_cache import REMEMBERED, remember


def test_what_is_kept_has_a_bound_and_the_newest_is_in_it() -> None:
    known: dict[int, str] = {}
    for key in range(10 * REMEMBERED):
        assert remember(known, key, str(key)) == str(key)
        assert known[key] == str(key)
        assert len(known) <= REMEMBERED
    assert len(known) == REMEMBERED
