"""Ids that are taken, ids that are made, and trace ids."""

from __future__ import annotations

import pytest

from app.observe.request_ids import LONGEST, id_of, taken_id, trace_context

PARENT = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_made_ids_differ() -> None:
    made = [id_of({}) for _ in range(100)]
    assert len(set(made)) == 100
    assert all(taken_id(one) == one for one in made)


@pytest.mark.parametrize("given", [b"a", b"7f3a b", b"x" * LONGEST])
def test_an_id_is_taken_as_it_is(given: bytes) -> None:
    assert id_of({b"x-request-id": given}) == given


@pytest.mark.parametrize(
    "given", [b"", b"x" * (LONGEST + 1), b"a\tb", b"\x1b[31m", "ü".encode(), b"\xff"]
)
def test_what_is_no_id_is_not_taken(given: bytes) -> None:
    made = id_of({b"x-request-id": given})
    assert made != given
    assert made.isascii()


def test_a_trace_context() -> None:
    ids = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", 1)
    assert trace_context(PARENT) == trace_context(PARENT.upper()) == ids
    assert trace_context(PARENT + b"-what the future brings") == ids


@pytest.mark.parametrize(
    "given",
    [b"", b"00-4bf9-00f0-01", PARENT.replace(b"4bf9", b"4bg9"),
     b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01", PARENT[:-1], PARENT + b"x"],
)  # fmt: skip
def test_no_trace_context(given: bytes) -> None:
    assert trace_context(given) is None
