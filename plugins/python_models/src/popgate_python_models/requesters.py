"""`Requesters`: the clients behind the requests to the models of a gateway."""

from __future__ import annotations

import os
from collections.abc import Iterable

import orjson

from app.observe.journal import NestedCall
from app.serving.calls.requester import (
    Asker,
    OtherRequesters,
    Requester,
    requester_of,
)
from app.serving.table import ModelTable
from engine import ModelRunner, process_of

NOBODY: Asker = ("", "", "")


def owner_in(said: str) -> str | None:
    """Return the owner of a request from a string of `said_of`."""
    owner: str | None = orjson.loads(said).get("key") if said else None
    return owner


class RemoteRequester:
    """A request of another process, by its number."""

    def __init__(self, number: int, others: OtherRequesters) -> None:
        self._number, self._others = number, others

    def asker(self) -> int:
        return self._number

    def add_nested_call(self, call: NestedCall) -> None:
        self._others.add_nested_call(self._number, call)


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
