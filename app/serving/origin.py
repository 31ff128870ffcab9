"""For whom a request to a device is made: found from the callback that it ends with.

Requests lead back to what waits for them and to nothing else, so that following their
callbacks costs nothing until somebody asks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Protocol, runtime_checkable

from app.observe.journal import Part


@runtime_checkable
class Origin(Protocol):
    """A request of a client, or a model's call of another one."""

    def asker(self) -> tuple[str, str]:
        """The request's id, and the header ``traceparent`` for what is asked on its
        behalf; empty where nobody traces it."""

    def add_part(self, part: Part) -> None:
        """Something that was asked on its behalf has ended."""


def origin_of(on_done: Callable[[Any], object] | None) -> Origin | None:
    """Who waits behind a callback, through whatever is between."""
    left = [on_done]
    while left:
        for holder in _holders(left.pop()):
            if isinstance(holder, Origin):
                return holder
            if getattr(holder, "on_done", None) is not None:
                left.append(holder.on_done)
    return None


def _holders(on_done: Any) -> Iterator[Any]:
    if isinstance(on_done, partial):
        for argument in on_done.args:
            yield argument
            yield getattr(argument, "__self__", None)
        on_done = on_done.func
    yield getattr(on_done, "__self__", None)
