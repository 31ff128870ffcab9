"""Calls of Python models as requests: for whom they are, and until when."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import orjson
import pytest

from app.codec.messages import InferRequest
from app.observe.metrics import ModelMetrics
from app.serving.calls.parent_request import ClientRequest, ParentRequest, RemoteParents
from app.serving.pending import Pending
from app.serving.stateful import StatefulScheduler
from app.serving.table import ModelEntry, ModelTable
from engine import DeadlineExceeded, EngineError, InvalidInput, Refused, Tensor
from engine.runner.request_numbers import request_numbers
from popgate_python_messages.call_messages import CallAnswer, ModelCall, Tensors
from popgate_python_models.called_request import CalledRequest
from popgate_python_models.parent_requests import NOBODY, OWN, ParentRequests
from tests.app.fronts import Doubler, spec
from tests.support import WAIT

ONE = {"x": Tensor.from_numpy(np.ones((1, 2), np.float32))}


class Sequences(StatefulScheduler):
    """A scheduler that notes for whom requests are, and runs none."""

    has_sequences = True

    def __init__(self) -> None:
        super().__init__(spec())
        self.owners: list[str | None] = []
        self.priorities: list[int] = []
        self.requests: list[Pending] = []

    def submit(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> Pending:
        self.owners.append(request.owner)
        self.priorities.append(request.priority)
        self.requests.append(Pending(request.inputs, deadline, on_done, 0))
        return self.requests[-1]


class Alone(RemoteParents):
    """A server of one process."""


class Caller:
    """A process whose model answers requests of these clients."""

    def __init__(self, *clients: ClientRequest) -> None:
        self.clients = clients
        self.answered: asyncio.Future[CallAnswer] = asyncio.Future()
        self.checked: list[str] = []

    def check(self, model: str) -> None:
        self.checked.append(model)

    def parents(self, numbers: Sequence[int]) -> list[ParentRequest | None]:
        return []

    def client_request(self, numbers: Sequence[int]) -> ClientRequest | int:
        return next((one for one in self.clients if one[0]), NOBODY)

    async def client_requests(self, numbers: Sequence[int]) -> Sequence[ClientRequest]:
        return self.clients

    def respond(self, message: ModelCall, outputs: Mapping[str, Tensor]) -> None:
        raise NotImplementedError

    def answer(self, message: ModelCall, result: CallAnswer) -> None:
        self.answered.set_result(result)


class Called:
    """A model with sequences that these clients' model calls, on a server with keys."""

    def __init__(
        self,
        *clients: ClientRequest,
        seconds: float = WAIT,
        priority: int = 0,
        model: str = "m",
    ) -> None:
        self.scheduler = Sequences()
        table = ModelTable(has_keys=True)
        stats = ModelMetrics("m", "1")
        entry = ModelEntry(spec(), Doubler(), stats, scheduler=self.scheduler)
        table.publish("m", [entry])
        self.caller = Caller(*clients)
        numbers = tuple(range(1, len(clients) + 1))
        message = ModelCall(1, model, "", 0, Tensors(), None, {}, numbers, priority)
        self.request = CalledRequest(message, ONE, self.caller, table, seconds)

    async def begin(self) -> None:
        """Begin, and return when the call is submitted or answered."""
        self.request.begin()
        while not (self.scheduler.requests or self.caller.answered.done()):  # noqa: ASYNC110
            await asyncio.sleep(0)

    async def answer(self) -> CallAnswer:
        async with asyncio.timeout(WAIT):
            return await self.caller.answered


SHOP, OTHER = ("id 1", "", '{"key":"shop"}'), ("id 2", "", '{"key":"other"}')
#: A client without a key. An HTTP worker does not say that it has none.
KEYLESS, KEYLESS_THERE = ("id 3", "", '{"key":""}'), ("id 4", "", "")
#: The call of a model for a request that has ended.
ENDED = "", "", '{"parameters":{"sequence_id":1}}'


@pytest.mark.parametrize(
    ("clients", "owner"),
    [
        ((), ""),
        ((SHOP, SHOP), "shop"),
        ((NOBODY, SHOP, ENDED), "shop"),
        ((KEYLESS, NOBODY), ""),
        ((KEYLESS_THERE, KEYLESS), ""),
        ((OWN,), ""),
    ],
)
def test_a_call_has_the_key_of_its_requests(
    clients: tuple[ClientRequest, ...], owner: str
) -> None:
    async def check() -> None:
        called = Called(*clients)
        await called.begin()
        assert called.scheduler.owners == [owner]

    asyncio.run(check())


def test_a_call_through_a_scheduler_has_the_priority_of_its_requests() -> None:
    async def check() -> None:
        called = Called(SHOP, priority=2)
        await called.begin()
        assert called.scheduler.priorities == [2]

    asyncio.run(check())


@pytest.mark.parametrize(("model", "checked"), [("m", ["m"]), ("nobody", [])])
def test_only_calls_of_known_models_are_recorded(
    model: str, checked: list[str]
) -> None:
    """A model may take the names that it calls from its clients."""

    async def check() -> None:
        called = Called(SHOP, model=model)
        await called.begin()
        assert called.caller.checked == checked

    asyncio.run(check())


@pytest.mark.parametrize(("has_keys", "own"), [(True, OWN), (False, NOBODY)])
def test_a_warm_up_is_the_servers_own(has_keys: bool, own: ClientRequest) -> None:
    """A request in flight without a client: no number stands for one that has ended."""
    number = next(request_numbers())
    parents = ParentRequests(Alone(), has_keys=has_keys)
    in_flight = {number: Pending({}, 0.0, lambda _: None, 0)}

    async def check() -> None:
        for one, client in ((number, own), (number + 1, NOBODY)):
            assert parents.first_client_request(in_flight.get, [one]) == client
            assert await parents.client_requests(in_flight.get, [one]) == (client,)

    asyncio.run(check())


@pytest.mark.parametrize(
    ("clients", "kind", "why"),
    [
        ((NOBODY, ENDED), Refused, "the requests of the present run have ended"),
        ((SHOP, OTHER), InvalidInput, "a batch of requests with several keys"),
        ((SHOP, KEYLESS), InvalidInput, "a batch of requests with several keys"),
    ],
)
def test_a_call_has_no_key_but_one(
    clients: tuple[ClientRequest, ...], kind: type[EngineError], why: str
) -> None:
    async def check() -> None:
        called = Called(*clients)
        await called.begin()
        error = await called.answer()
        assert isinstance(error, kind)
        assert why in str(error)
        assert called.scheduler.owners == []

    asyncio.run(check())


@pytest.mark.parametrize(
    ("clients", "told"),
    [
        ((), OWN),
        ((NOBODY,), NOBODY),
        ((NOBODY, SHOP), SHOP),
        ((KEYLESS_THERE,), KEYLESS_THERE),
    ],
)
def test_a_called_model_hands_on_the_key(
    clients: tuple[ClientRequest, ...], told: ClientRequest
) -> None:
    async def check() -> None:
        assert Called(*clients).request.client_request() == told

    asyncio.run(check())


@pytest.mark.parametrize(
    ("clients", "told"),
    [
        ((), OWN),
        ((NOBODY,), NOBODY),
        ((NOBODY, SHOP, SHOP), SHOP),
        ((KEYLESS_THERE, NOBODY), KEYLESS_THERE),
        ((SHOP, OTHER), ("id 1", "", '{"key":["other","shop"]}')),
        ((SHOP, KEYLESS_THERE), ("id 1", "", '{"key":["","shop"]}')),
    ],
)
def test_a_called_model_hands_on_the_keys_of_all_requests(
    clients: tuple[ClientRequest, ...], told: ClientRequest
) -> None:
    async def check() -> None:
        assert await Called(*clients).request.all_clients() == told
        below = Called(told)
        await below.begin()
        if "[" in told[2]:
            assert "several keys" in str(await below.answer())
        elif told == NOBODY:
            assert "have ended" in str(await below.answer())
        else:
            assert below.scheduler.owners == [
                orjson.loads(told[2] or "{}").get("key", "")
            ]

    asyncio.run(check())


def test_a_call_that_waits_in_a_scheduler_ends_at_its_deadline() -> None:
    async def check() -> None:
        called = Called(SHOP, seconds=0.01)
        await called.begin()
        assert isinstance(await called.answer(), DeadlineExceeded)
        (waiting,) = called.scheduler.requests
        assert isinstance(waiting.error, DeadlineExceeded)

    asyncio.run(check())


@pytest.mark.parametrize("error", [None, InvalidInput("no")])
def test_nothing_is_left_of_a_call_that_has_ended(error: EngineError | None) -> None:
    async def check() -> None:
        called = Called(SHOP)
        await called.begin()
        (waiting,) = called.scheduler.requests
        waiting.resolve(error)
        answer = await called.answer()
        assert answer == {} if error is None else isinstance(answer, InvalidInput)
        left = weakref.ref(called.request)
        del called, waiting, answer
        gc.collect()
        assert left() is None

    asyncio.run(check())
