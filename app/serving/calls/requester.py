"""Find the clients behind a request to a device, from its callback.

A request refers only to the objects that wait for it, so nothing is computed until a
client is needed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias, runtime_checkable

import orjson

from app.codec.messages import InferRequest
from app.observe.journal import Part
from app.serving.table import ModelTable
from engine import ModelRunner, process_of

Asker: TypeAlias = tuple[str, str, str]
NOBODY: Asker = ("", "", "")


@runtime_checkable
class Requester(Protocol):
    """A request of a client, or a model's call to another model."""

    def asker(self) -> Asker | int:
        """Return the request's id, the header ``traceparent`` for calls on its behalf
        (empty if it is not traced), and its description by `said_of`.

        A number stands for the request of another process.
        """

    def add_part(self, part: Part) -> None:
        """Record that a call on its behalf has ended."""


def said_of(request: InferRequest | None, owner: str | None) -> str:
    """Return the id, timeout (in microseconds), parameters and owner of a request as
    JSON.

    The result is empty if the request has none of these.
    """
    if request is None:
        return ""
    said: dict[str, object] = {}
    if owner is not None:
        said["key"] = owner
    if request.id:
        said["id"] = request.id
    if request.timeout is not None:
        said["timeout"] = int(request.timeout * 1e6)
    if request.parameters:
        said["parameters"] = dict(request.parameters)
    return orjson.dumps(said, default=str).decode() if said else ""


def owner_in(said: str) -> str | None:
    """Return the owner of a request from a string of `said_of`."""
    owner: str | None = orjson.loads(said).get("key") if said else None
    return owner


class OtherRequesters(Protocol):
    """The other processes of a server, for the requests that they made."""

    async def askers(self, numbers: Iterable[int]) -> Mapping[int, Asker]:
        """Return the clients of the requests with these numbers that still exist."""

    def add_part(self, number: int, part: Part) -> None:
        """Record a call, as `Requester.add_part` of a request."""


class RemoteRequester:
    """A request of another process, by its number."""

    def __init__(self, number: int, others: OtherRequesters) -> None:
        self._number, self._others = number, others

    def asker(self) -> int:
        return self._number

    def add_part(self, part: Part) -> None:
        self._others.add_part(self._number, part)


class Requesters:
    """Clients behind the requests to the models of a gateway.

    `others` know the requests of other processes.
    """

    def __init__(self, table: ModelTable, others: OtherRequesters) -> None:
        self._table, self._others = table, others

    def of(self, model: str, numbers: Iterable[int]) -> list[Requester | None]:
        """Return the clients of the requests with these numbers; None for one that has
        ended.
        """
        runners = [entry.runner for entry in self._table.entries(model)]
        found: list[Requester | None] = []
        for number in numbers:
            if process_of(number) != os.getpid():
                found.append(RemoteRequester(number, self._others))
                continue
            requests = (
                runner.request_of(number)
                for runner in runners
                if isinstance(runner, ModelRunner)
            )
            request = next(filter(None, requests), None)
            found.append(None if request is None else requester_of(request.on_done))
        return found

    def first_asker(self, model: str, numbers: Iterable[int]) -> Asker | int:
        """Return the first client whose request has not ended."""
        found = self.of(model, numbers)
        return next((one.asker() for one in found if one is not None), NOBODY)

    async def askers(self, model: str, numbers: Iterable[int]) -> tuple[Asker, ...]:
        """Return all clients, including those of other processes."""
        found = self.of(model, numbers)
        askers = [NOBODY if one is None else one.asker() for one in found]
        elsewhere = [one for one in askers if isinstance(one, int)]
        known = await self._others.askers(elsewhere) if elsewhere else {}
        return tuple(
            known.get(one, NOBODY) if isinstance(one, int) else one for one in askers
        )


def requester_of(on_done: Callable[[Any], object] | None) -> Requester | None:
    """Return the client behind a callback, through any wrappers."""
    left = [on_done]
    while left:
        for holder in _holders(left.pop()):
            if isinstance(holder, Requester):
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
