"""`ParentRequests`: the clients behind the requests to the models of a gateway."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import orjson

from app.observe.journal import NestedCall
from app.serving.calls.parent_request import (
    ClientRequest,
    FindRequest,
    ParentRequest,
    RemoteParents,
    parent_of,
)
from engine import process_of

NOBODY: ClientRequest = ("", "", "")
#: The server itself, on a server with keys.
OWN: ClientRequest = ("", "", '{"key":""}')


def owners_in(stated: str) -> set[str]:
    """Return the owners of a request from a string of `stated_by`; a call may have
    several. The result is empty if the string names none.
    """
    key = orjson.loads(stated).get("key") if stated else None
    if key is None:
        return set()
    return {key} if isinstance(key, str) else set(key)


def is_known(client: ClientRequest) -> bool:
    """Return whether this is a client or a model, and not `NOBODY`, perhaps with the
    parameters of a call.
    """
    request_id, _, stated = client
    return bool(request_id) or bool(owners_in(stated))


@runtime_checkable
class CallOfModel(Protocol):
    """A call to another model."""

    async def all_clients(self) -> ClientRequest:
        """Return what `client_request` returns, with the owners of all requests for
        which the call is made, and with what other processes know of them.
        """


class RemoteParent:
    """A request of another process, by its number."""

    def __init__(self, number: int, others: RemoteParents) -> None:
        self._number, self._others = number, others

    def client_request(self) -> int:
        return self._number

    def add_nested_call(self, call: NestedCall) -> None:
        self._others.add_nested_call(self._number, call)


class OwnRequest:
    """A request of the server itself, for a warm-up."""

    def client_request(self) -> ClientRequest:
        return OWN

    def add_nested_call(self, call: NestedCall) -> None:
        """Do nothing: no client sees the call."""


class ParentRequests:
    """Clients behind the requests to the models of a gateway.

    `others` know the requests of other processes. `has_keys` says that requests belong
    to keys.
    """

    def __init__(self, others: RemoteParents, *, has_keys: bool) -> None:
        self._others = others
        self._without_client = OwnRequest() if has_keys else None

    def of(
        self, find: FindRequest, numbers: Iterable[int]
    ) -> list[ParentRequest | None]:
        """Return the clients of the requests with these numbers; None for one that has
        ended.
        """
        found: list[ParentRequest | None] = []
        for number in numbers:
            if process_of(number) != os.getpid():
                found.append(RemoteParent(number, self._others))
                continue
            request = find(number)
            if request is None:
                found.append(None)
            else:
                found.append(parent_of(request.on_done) or self._without_client)
        return found

    def first_client_request(
        self, find: FindRequest, numbers: Iterable[int]
    ) -> ClientRequest | int:
        """Return the first client whose request has not ended."""
        found = self.of(find, numbers)
        return next((one.client_request() for one in found if one is not None), NOBODY)

    async def client_requests(
        self, find: FindRequest, numbers: Iterable[int]
    ) -> tuple[ClientRequest, ...]:
        """Return all clients, including those of other processes."""
        found = self.of(find, numbers)
        clients = [
            await one.all_clients()
            if isinstance(one, CallOfModel)
            else (NOBODY if one is None else one.client_request())
            for one in found
        ]
        elsewhere = [one for one in clients if isinstance(one, int)]
        known = await self._others.client_requests(elsewhere) if elsewhere else {}
        return tuple(
            known.get(one, NOBODY) if isinstance(one, int) else one for one in clients
        )
