"""Find circles among models that need each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable


def leads_to(start: str, target: str, below_of: Callable[[str], Iterable[str]]) -> bool:
    """Return whether `target` is `start`, or is reachable from it."""
    seen: set[str] = set()
    below = [start]
    while below:
        name = below.pop()
        if name == target:
            return True
        if name not in seen:
            seen.add(name)
            below += below_of(name)
    return False
