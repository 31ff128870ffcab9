"""Cache of answers to input that clients send repeatedly."""

from __future__ import annotations

from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED: Final = 128


def remember(known: dict[K, V], key: K, value: V) -> V:
    """Keep `value` for `key` in `known`, which the caller has looked it up in before.

    A client can send any number of keys. Where `REMEMBERED` are kept, all are let go
    of: what is in use comes back at once, and what is found costs no bookkeeping.
    """
    if len(known) >= REMEMBERED:
        known.clear()
    known[key] = value
    return value
