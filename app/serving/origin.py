"""For whom a request to a device is made: found from the callback that it ends with.

Requests lead back to what waits for them and to nothing else, so that following their
callbacks costs nothing until one is looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import orjson

from app.codec import InferRequest
from app.observe.journal import Part

Asker: TypeAlias = tuple[str, str, str]


@runtime_checkable
class Origin(Protocol):
    """A request of a client, or a model's call of another one."""

    def asker(self) -> Asker | int:
        """The request's id, the header ``traceparent`` for what is asked on its behalf
        (empty where nobody traces it), and what it says of itself, as `said_of` has it.
        A number is that of the request of another process, which knows."""

    def add_part(self, part: Part) -> None:
        """Something that was asked on its behalf has ended."""


def said_of(request: InferRequest | None) -> str:
    """The id, timeout (in microseconds) and parameters of a request, in JSON; empty
    where it has none."""
    if request is None:
        return ""
    said: dict[str, object] = {}
    if request.id:
        said["id"] = request.id
    if request.timeout is not None:
        said["timeout"] = int(request.timeout * 1e6)
    if request.parameters:
        said["parameters"] = dict(request.parameters)
    return orjson.dumps(said, default=str).decode() if said else ""


class OtherOrigins(Protocol):
    """The other processes of a server, as far as requests to devices are theirs."""

    async def askers(self, numbers: Iterable[int]) -> Mapping[int, Asker]:
        """Those of the requests with these numbers, where they are still there."""

    def add_part(self, number: int, part: Part) -> None:
        """`Origin.add_part` of a request."""


class ElsewhereOrigin:
    """A request that another process has made, by its number."""

    def __init__(self, number: int, others: OtherOrigins) -> None:
        self._number, self._others = number, others

    def asker(self) -> int:
        return self._number

    def add_part(self, part: Part) -> None:
        self._others.add_part(self._number, part)


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
