"""A call of one model by another, as a request to the called model.

For the event loop's thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import orjson

from app.codec.messages import Encoding, InferRequest
from app.errors import RequestError, UnknownModel, labelled, row_of
from app.observe.journal import NestedCall
from app.observe.metrics import ModelMetrics
from app.serving.calls.parent_request import ClientRequest, ParentRequest
from app.serving.deadlines import SWEEP
from app.serving.pending import NotOneResponse, Pending, ResponseScheduler, Streamed
from app.serving.runner import RequestScheduler, Submitted
from app.serving.stateful import StatefulScheduler
from app.serving.table import ModelEntry, ModelTable, infer_path
from app.serving.tensor_fit import checked_rows
from app.serving.timeout_policy import MAX_TIMEOUT, TimeoutPolicy
from engine import (
    DeadlineExceeded,
    EngineError,
    ExecutionFailed,
    InvalidInput,
    Refused,
    Tensor,
)
from popgate_python_messages.call_messages import CallAnswer, ModelCall
from popgate_python_models.called_inputs import called_inputs, spec_of_call
from popgate_python_models.parent_requests import NOBODY, is_known, owners_in

#: Seconds after its deadline until a call is given up. The requests behind the call
#: often have the same deadline, and must end first (`app.serving.deadlines`): a model
#: that catches the call's error would still answer them.
_LATER = 2 * SWEEP


class Caller(Protocol):
    """The process of the model that calls."""

    def check(self, model: str) -> None:
        """Raise Refused if the call would lead back to the caller."""

    def parents(self, numbers: Sequence[int]) -> list[ParentRequest | None]:
        """Return the requests with these numbers, for which the call is made."""

    def client_request(self, numbers: Sequence[int]) -> ClientRequest | int:
        """Return the first of the requests for which the calls are made."""

    async def client_requests(self, numbers: Sequence[int]) -> Sequence[ClientRequest]:
        """Return all requests for which the calls are made."""

    def respond(self, message: ModelCall, outputs: Mapping[str, Tensor]) -> None:
        """Send one of several responses."""

    def answer(self, message: ModelCall, result: CallAnswer) -> None:
        """Send the outcome of the call."""


class CalledRequest:
    """One call, from its message to its answer; `timeout` is in seconds."""

    def __init__(
        self,
        message: ModelCall,
        inputs: Mapping[str, Tensor],
        caller: Caller,
        table: ModelTable,
        timeout: float,
    ) -> None:
        self._message, self._caller, self._table = message, caller, table
        self._inputs = inputs
        self._entry: ModelEntry | None = None
        self._submitted: Submitted | None = None
        self._streamed: Streamed | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._began = time.monotonic_ns()
        given = message.deadline_ns
        self._deadline = given / 1e9 if given else self._began / 1e9 + timeout
        self._rows = 1
        self._owner: str | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self._nested_calls: list[NestedCall] = []
        self._called: ModelMetrics | None = None
        #: The requests for which it is made, if the call reveals them later.
        self._parents: list[ParentRequest] = []
        if table.keeps_nested_calls:
            found = caller.parents(message.requests)
            self._parents = [one for one in found if one is not None]

    def client_request(self) -> ClientRequest | int:
        """Return the first request for which the call is made, with the call's
        parameters.
        """
        found = self._caller.client_request(self._message.requests)
        if isinstance(found, int):
            return found
        return self._with_call(found, owners_in(found[2]))

    async def all_clients(self) -> ClientRequest:
        """Return the same with the owners of all requests, and for requests of other
        processes too.
        """
        found = await self._caller.client_requests(self._message.requests)
        known = list(filter(is_known, found))
        owners = [owners_in(stated) for _, _, stated in known]
        every = set().union(*(one or {""} for one in owners)) if any(owners) else set()
        return self._with_call(known[0] if known else NOBODY, every)

    def _with_call(self, client: ClientRequest, owners: set[str]) -> ClientRequest:
        stated: dict[str, object] = {}
        if self._message.parameters:
            stated["parameters"] = self._message.parameters
        if owners:
            stated["key"] = sorted(owners) if len(owners) > 1 else owners.pop()
        elif self._table.has_keys and not self._message.requests:
            stated["key"] = ""  # the caller's own call, for no request
        text = orjson.dumps(stated, default=str).decode() if stated else ""
        return *client[:2], text

    def add_nested_call(self, call: NestedCall) -> None:
        """Record that the called model has called another one."""
        self._nested_calls.append(call)

    def _keep(self, submitted: Submitted | None, code: str = "") -> None:
        """Record a span for the requests it was made for."""
        if self._called is None or not self._parents:
            return
        call = NestedCall(
            f"call {self._message.model}",
            self._called,
            self._began,
            0 if submitted is None else submitted.queue_ns,
            0 if submitted is None else submitted.compute_ns,
            time.monotonic_ns(),
            self._rows,
            0 if submitted is None else submitted.batch_rows,
            "" if submitted is None else submitted.device_id,
            code,
            (*getattr(submitted, "nested_calls", ()), *self._nested_calls),
        )
        for parent in self._parents:
            parent.add_nested_call(call)

    def begin(self) -> None:
        """Look the model up and hand the request over."""
        message, table = self._message, self._table
        try:
            path = infer_path(message.model, message.version)
            entry = table.paths.get(path)
            if entry is None and not table.offers(path):
                self._missing(path)
            self._caller.check(message.model)  # which keeps the name
            if entry is None:
                loop = asyncio.get_running_loop()
                self._fetching = loop.create_task(self._fetch(path))
                return
            if self._needs_owner(entry):
                loop = asyncio.get_running_loop()
                self._fetching = loop.create_task(self._find_owner(entry))
                return
            self._submit(entry)
        except Exception as error:
            self._fail(error)

    def _needs_owner(self, entry: ModelEntry) -> bool:
        """Return whether the model keeps data by the key of the caller."""
        scheduler = entry.scheduler
        return (
            self._table.has_keys
            and isinstance(scheduler, StatefulScheduler)
            and scheduler.has_sequences
        )

    async def _find_owner(self, entry: ModelEntry) -> None:
        """Submit the call for the key of the requests for which it is made."""
        try:
            await self._take_owner()
            self._submit(entry)
        except Exception as error:
            self._fail(error)

    async def _take_owner(self) -> None:
        requests = self._message.requests
        found = await self._caller.client_requests(requests)
        # A request that has ended has no owner any more. It must not become one of a
        # client without a key.
        known = (owners_in(one[2]) or {""} for one in found if is_known(one))
        owners: set[str] = set().union(*known)
        if requests and not owners:
            msg = (
                f"a call to model '{self._message.model}', which has sequences, needs "
                "the key of a request, and the requests of the present run have ended"
            )
            raise Refused(msg)
        if len(owners) > 1:
            msg = (
                f"a call to model '{self._message.model}', which has sequences, was "
                "made for a batch of requests with several keys; set batching = False "
                "in the calling model"
            )
            raise InvalidInput(msg)
        self._owner = owners.pop() if owners else ""

    def _missing(self, path: str) -> ModelEntry:
        raise self._table.missing(path) or UnknownModel(path)

    async def _fetch(self, path: str) -> None:
        """Begin once the model is loaded on demand."""
        try:
            left = max(0.0, min(self._deadline - time.monotonic(), MAX_TIMEOUT))
            entry = await self._table.fetch(path, TimeoutPolicy(left, asked=left))
            entry = entry or self._missing(path)
            if self._needs_owner(entry):
                await self._take_owner()
            self._submit(entry)
        except Exception as error:
            self._fail(error)

    def _submit(self, entry: ModelEntry) -> None:
        message = self._message
        self._called = entry.stats
        spec = spec_of_call(entry.spec, self._inputs)
        inputs = called_inputs(spec, self._inputs)
        unknown = set(message.outputs or ()).difference(entry.spec.outputs_by_name)
        if unknown:
            raise InvalidInput(f"the model has no output {min(unknown)!r}")
        self._rows = checked_rows(spec, inputs)
        entry.stats.begin()
        self._entry = entry
        if entry.scheduler is not None:
            submitted = self._schedule(entry.scheduler, inputs)
        else:
            submitted = entry.runner.submit(
                inputs,
                deadline=self._deadline,
                on_done=self._done,
                priority=message.priority,
            )
        if not submitted.done:
            self._submitted = submitted
            # Schedulers and devices check the deadline only when a run begins.
            left = max(0.0, min(self._deadline - time.monotonic(), MAX_TIMEOUT))
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(left + _LATER, self._expire)

    def _expire(self) -> None:
        self.give_up(DeadlineExceeded())

    def _schedule(
        self, scheduler: RequestScheduler, inputs: dict[str, Tensor]
    ) -> Submitted:
        request = InferRequest(inputs, Encoding.JSON)
        request.outputs = self._message.outputs
        request.parameters = self._message.parameters
        request.priority = self._message.priority
        request.rows = self._rows
        request.owner = self._owner
        if self._message.streams and isinstance(scheduler, ResponseScheduler):
            deadline = self._deadline
            streamed = scheduler.stream(request, deadline, self._respond, self._done)
            if not streamed.done:
                self._streamed = streamed
            return streamed
        return scheduler.submit(request, deadline=self._deadline, on_done=self._done)

    def _respond(self, outputs: Mapping[str, Tensor]) -> None:
        self._caller.respond(self._message, self._wanted(outputs))

    def _wanted(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert self._entry is not None
        wanted = self._message.outputs or self._entry.spec.outputs_by_name
        return {n: t for n, t in outputs.items() if n in wanted}

    def proceed(self) -> None:
        """Make the next response after the caller has taken the one before."""
        if self._streamed is not None:
            self._streamed.proceed()

    def _done(self, submitted: Submitted) -> None:
        self._submitted = self._streamed = None
        if submitted.error is not None:
            self._fail(submitted.error, submitted)
            return
        if not self._end():
            return
        entry = self._entry
        assert entry is not None
        if isinstance(submitted, Pending) and submitted.tokens is not None:
            entry.stats.count_tokens(submitted.tokens)
        entry.stats.success(
            time.monotonic_ns() - self._began,
            submitted.queue_ns,
            submitted.compute_ns,
            rows=self._rows,
            batch_rows=submitted.batch_rows,
        )
        self._keep(submitted)
        self._caller.answer(self._message, self._wanted(submitted.outputs))

    def _end(self) -> bool:
        """Mark the call as over. Return False if it was over before."""
        was_over, self._is_over = self._is_over, True
        if self._timer is not None:
            self._timer.cancel()
        return not was_over

    def _fail(self, error: Exception, submitted: Submitted | None = None) -> None:
        if not self._end():
            return
        if self._entry is not None:
            took = time.monotonic_ns() - self._began
            self._entry.stats.failure(row_of(error), took)
        self._keep(submitted, row_of(error).code)
        told = labelled(_as_engine_error(error), f"model {self._message.model!r}")
        self._caller.answer(self._message, told)

    def give_up(self, error: EngineError) -> None:
        """Cancel the request."""
        if self._fetching is not None:
            self._fetching.cancel()
        if self._submitted is not None and not self._submitted.done:
            self._submitted.abandon(error)
        self._fail(error)

    def __repr__(self) -> str:
        return f"<CalledRequest {self._message.model!r}>"


def _as_engine_error(error: Exception) -> EngineError:
    """Return the error that the author of the calling model sees."""
    if isinstance(error, EngineError):
        # An error class that only the gateway knows is reported as its parent class.
        return InvalidInput(str(error)) if isinstance(error, NotOneResponse) else error
    row = row_of(error)
    if isinstance(error, UnknownModel) or row.status == 503:
        return Refused(str(error))
    if isinstance(error, RequestError) and row.status < 500:
        return InvalidInput(str(error))
    return ExecutionFailed(str(error))
