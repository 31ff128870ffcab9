"""Find the clients behind a request to a device, from its callback.

A request refers only to the objects that wait for it, so nothing is computed until a
client is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import orjson

from app.codec.messages import InferRequest
from app.observe.journal import NestedCall

ClientRequest: TypeAlias = tuple[str, str, str]
#: Returns the request with a number to the processes of a model, while it is in flight.
FindRequest: TypeAlias = Callable[[int], Any]


@runtime_checkable
class ParentRequest(Protocol):
    """A request of a client, or a model's call to another model."""

    def client_request(self) -> ClientRequest | int:
        """Return the request's id, the header ``traceparent`` for calls on its behalf
        (empty if it is not traced), and its description by `stated_by`.

        A number stands for the request of another process.
        """

    def add_nested_call(self, call: NestedCall) -> None:
        """Record that a call on its behalf has ended."""


def stated_by(request: InferRequest | None, owner: str | None) -> str:
    """Return the id, timeout (in microseconds), parameters and owner of a request as
    JSON.

    The result is empty if the request has none of these.
    """
    if request is None:
        return ""
    stated: dict[str, object] = {}
    if owner is not None:
        stated["key"] = owner
    if request.id:
        stated["id"] = request.id
    if request.timeout is not None:
        stated["timeout"] = int(request.timeout * 1e6)
    if request.parameters:
        stated["parameters"] = dict(request.parameters)
    return orjson.dumps(stated, default=str).decode() if stated else ""


class RemoteParents(Protocol):
    """The other processes of a server, by default none, for the requests that they
    made.
    """

    async def client_requests(
        self, numbers: Iterable[int]
    ) -> Mapping[int, ClientRequest]:
        """Return the clients of the requests with these numbers that still exist.

        Raises Refused if a process does not answer.
        """
        return {}

    def add_nested_call(self, number: int, call: NestedCall) -> None:
        """Record a call, as `ParentRequest.add_nested_call` of a request."""
        return


def parent_of(on_done: Callable[[Any], object] | None) -> ParentRequest | None:
    """Return the client behind a callback, through any wrappers."""
    left = [on_done]
    while left:
        for holder in _holders(left.pop()):
            if isinstance(holder, ParentRequest):
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
