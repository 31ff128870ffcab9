"""Cache of answers to input that clients send repeatedly."""

from __future__ import annotations

from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")

REMEMBERED: Final = 128


def remember(known: dict[K, V], key: K, value: V) -> V:
    """Keep `value` for `key` in `known`, if the caller has not found `key` there.

    A client can send any number of keys. When `REMEMBERED` keys are kept, all are
    dropped. Keys in use return immediately, and a look-up needs no bookkeeping.
    """
    if len(known) >= REMEMBERED:
        known.clear()
    known[key] = value
    return value
