"""Models in Python that call others: the gateway's end.

A call is a request like those of clients, to the model of that name: it is loaded
on demand, waits in its queue, shares its batches, is counted, and ends with its
deadline. It comes in on a socket from the process of the model that calls
(engine/transport/call_messages.py), or goes by a route of that process
(app/serving/call_routes.py). Everything here belongs to the event loop's thread, but
for `ModelCalls.attach`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

import numpy as np
import orjson

from app.codec import InferRequest
from app.codec.messages import Encoding
from app.errors import ModelNotReady, RequestError, UnknownModel, row_of
from app.observe.journal import Part
from app.observe.metrics import ModelMetrics
from app.observe.own_metrics import OwnMetrics
from app.serving.call_routes import CallRoutes, runs_any
from app.serving.ensembles import named
from app.serving.origin import Asker, ElsewhereOrigin, Origin, OtherOrigins, origin_of
from app.serving.pending import NotOneResponse
from app.serving.steps import StepRun, StepScheduler
from app.serving.table import ModelEntry, ModelTable, Submitted, infer_path
from app.serving.tensor_fit import checked_rows
from app.serving.timeout_policy import MAX_TIMEOUT, TimeoutPolicy
from app.spec import ModelSpec, TensorSpec
from engine import (
    Askers,
    AskersAsked,
    CallSocket,
    Cancelled,
    EngineError,
    ExecutionFailed,
    InvalidInput,
    MetricsTold,
    ModelCall,
    ModelRunner,
    ReadyAsked,
    Refused,
    ResponseTaken,
    RouteLeft,
    Tensor,
    process_of,
)

logger = logging.getLogger(__name__)

NOBODY = ("", "", "")
Answer: TypeAlias = "Mapping[str, Tensor] | Askers | EngineError | bool"


def leads_to(start: str, target: str, below_of: Callable[[str], Iterable[str]]) -> bool:
    """Returns whether `target` is `start`, or below it, however far down."""
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


class ModelCalls:
    """The calls of all models of a gateway, and who they are made for.

    `needs` are the models that one needs, as far as its options say. A call that would
    lead back to where it comes from is refused: the process that would have to answer
    is the one that waits. `others` know of the requests that are not made here.
    """

    def __init__(
        self,
        table: ModelTable,
        needs: Callable[[str], Iterable[str]],
        timeout: float,
        others: OtherOrigins,
        leave_timeout: float,
    ) -> None:
        self.table = table
        self.others = others
        self.timeout = timeout
        #: What the models count of their own.
        self.metrics = OwnMetrics()
        self._leave_timeout = leave_timeout
        self._news = asyncio.Event()
        self._needs = needs
        self._called: dict[str, set[str]] = {}
        self._callers: set[Caller] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Take calls from now on, in the running event loop."""
        self._loop = asyncio.get_running_loop()

    def attach(self, name: str, sock: CallSocket) -> None:
        """A process of model `name` calls on `sock`, until its other end is closed. For
        any thread."""
        if self._loop is None:
            sock.close()
            return
        try:
            self._loop.call_soon_threadsafe(self._attach, name, sock)
        except RuntimeError:  # the loop is closed
            sock.close()

    def _attach(self, name: str, sock: CallSocket) -> None:
        # What it called before it was changed does not count any more.
        if not any(caller.name == name for caller in self._callers):
            self._called.pop(name, None)
        self._callers.add(Caller(self, name, sock, self._gone))

    def check(self, caller: str, model: str) -> None:
        """Note the call. Raises Refused where it leads back to the caller."""
        called = self._called.setdefault(caller, set())
        if model in called:
            return
        if leads_to(
            model, caller, lambda n: [*self._needs(n), *self._called.get(n, ())]
        ):
            way = "itself" if model == caller else f"{model!r}, which calls it"
            raise Refused(f"model {caller!r} would call {way}")
        called.add(model)

    def origins(self, caller: str, numbers: Iterable[int]) -> list[Origin | None]:
        """For whom these requests to a model are made; None for one that has ended."""
        runners = [entry.runner for entry in self.table.entries(caller)]
        found: list[Origin | None] = []
        for number in numbers:
            if process_of(number) != os.getpid():
                found.append(ElsewhereOrigin(number, self.others))
                continue
            requests = (
                runner.request_of(number)
                for runner in runners
                if isinstance(runner, ModelRunner)
            )
            request = next(filter(None, requests), None)
            found.append(None if request is None else origin_of(request.on_done))
        return found

    # -- routes

    def changed(self, name: str | None = None) -> None:
        """A model has, or any of them: what leads to what it was is taken back."""
        for caller in self._callers:
            caller.routes.refresh(name)

    def count(self) -> None:
        """Count what was called by routes since."""
        for caller in self._callers:
            caller.routes.count()

    async def settled(self, leaving: Sequence[object]) -> None:
        """Returns when no process has a route to these runners any more, which are
        about to be unloaded; one that does not let go of them in time has failures."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._leave_timeout):
                while any(runs_any(one.routes, leaving) for one in self._callers):
                    self._news.clear()
                    await self._news.wait()

    def route_left(self) -> None:
        """Of any process."""
        self._news.set()

    def _gone(self, caller: Caller) -> None:
        self._callers.discard(caller)
        self.metrics.gone(caller)
        self._news.set()

    def close(self) -> None:
        """Take no more."""
        self._loop = None
        for caller in list(self._callers):
            caller.close()

    def __repr__(self) -> str:
        return f"<ModelCalls of {len(self._callers)} processes>"


class Caller:
    """One process of a model that calls others."""

    def __init__(
        self,
        calls: ModelCalls,
        name: str,
        sock: CallSocket,
        on_close: Callable[[Caller], None],
    ) -> None:
        self.name = name
        self._calls, self._sock, self._on_close = calls, sock, on_close
        self._under_way: dict[int, Called] = {}
        self._unsent: deque[Callable[[], None]] = deque()
        self._telling: set[asyncio.Task[None]] = set()
        self.routes = CallRoutes(calls.table, calls.timeout, sock, self._queue)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    def _read(self) -> None:
        """Take one message: others have their turn before the next."""
        try:
            found = self._sock.receive()
        except BlockingIOError:
            return
        except (OSError, EOFError, ValueError):
            self.close()
            return
        except EngineError as error:
            logger.error("a call of model %s: %s", self.name, error)
            self.close()
            return
        if isinstance(found, RouteLeft):
            self.routes.left(found.number)
            self._calls.route_left()
            return
        if isinstance(found, ResponseTaken):
            called = self._under_way.get(found.number)
            if called is not None:
                called.proceed()
            return
        if isinstance(found, AskersAsked):
            self._tell_askers(found)
            return
        if isinstance(found, ReadyAsked):
            entry = self._calls.table.paths.get(infer_path(found.model, found.version))
            self._answer(found.number, entry is not None and entry.ready)
            return
        if isinstance(found, MetricsTold):
            self._calls.metrics.take(self, self.name, found.series)
            return
        if isinstance(found, int):
            called = self._under_way.get(found)
            if called is not None:
                called.give_up(Cancelled("the call was given up"))
            return
        called = Called(self, self._calls, found)
        self._under_way[found.number] = called
        called.begin()

    def _tell_askers(self, asked: AskersAsked) -> None:
        origins = self._calls.origins(self.name, asked.requests)
        found = [NOBODY if one is None else one.asker() for one in origins]
        elsewhere = [one for one in found if isinstance(one, int)]

        async def tell() -> None:
            known = await self._calls.others.askers(elsewhere) if elsewhere else {}
            askers = (known.get(o, NOBODY) if isinstance(o, int) else o for o in found)
            if self._sock.fileno() >= 0:
                self._answer(asked.number, tuple(askers))

        task = self._loop.create_task(tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def answer(self, number: int, result: Answer) -> None:
        """A call has ended."""
        if self._under_way.pop(number, None) is not None:
            self._answer(number, result)

    def respond(self, number: int, outputs: Mapping[str, Tensor]) -> None:
        """A response of several."""
        self._queue(partial(self._sock.answer, number, outputs, True))

    def _answer(self, number: int, result: Answer) -> None:
        self._queue(partial(self._sock.answer, number, result))

    def _queue(self, send: Callable[[], None]) -> None:
        self._unsent.append(send)
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
        """Send what there is room for; a process that takes nothing holds up only
        itself."""
        while self._unsent:
            try:
                self._unsent[0]()
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._send)
                return
            except OSError:
                self.close()
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._sock)

    def close(self) -> None:
        """Give up what is under way."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self.routes.close()
        self._on_close(self)
        self._unsent.clear()
        for called in list(self._under_way.values()):
            called.give_up(Cancelled("the model that called has gone"))
        self._under_way.clear()

    def __repr__(self) -> str:
        return f"<Caller {self.name}, {len(self._under_way)} under way>"


class Called:
    """One call."""

    def __init__(self, caller: Caller, calls: ModelCalls, message: ModelCall) -> None:
        self._caller, self._calls, self._message = caller, calls, message
        self._entry: ModelEntry | None = None
        self._submitted: Submitted | None = None
        self._fetching: asyncio.Task[None] | None = None
        self._began = time.monotonic_ns()
        self._rows = 1
        self._is_over = False
        self._parts: list[Part] = []
        self._called: ModelMetrics | None = None
        #: For whom it is made, if that is shown later.
        self._origins: list[Origin] = []
        if calls.table.keeps_parts:
            found = calls.origins(caller.name, message.requests)
            self._origins = [origin for origin in found if origin is not None]

    def asker(self) -> Asker | int:
        """The first of those for whom it is made, with its own parameters."""
        found = self._calls.origins(self._caller.name, self._message.requests)
        asker = next((one.asker() for one in found if one is not None), NOBODY)
        if isinstance(asker, int):
            return asker
        given = self._message.parameters
        said = orjson.dumps({"parameters": given}, default=str).decode()
        return *asker[:2], said if given else ""

    def add_part(self, part: Part) -> None:
        """The model that is called has called another one."""
        self._parts.append(part)

    def _keep(self, submitted: Submitted | None, code: str = "") -> None:
        """Let the spans of those it was made for have one of it."""
        if self._called is None or not self._origins:
            return
        part = Part(
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
            (*getattr(submitted, "parts", ()), *self._parts),
        )
        for origin in self._origins:
            origin.add_part(part)

    def begin(self) -> None:
        """Look the model up and hand the request over."""
        message, table = self._message, self._calls.table
        try:
            self._calls.check(self._caller.name, message.model)
            path = infer_path(message.model, message.version)
            entry = table.paths.get(path)
            if entry is None and table.offers(path):
                loop = asyncio.get_running_loop()
                self._fetching = loop.create_task(self._fetch(path))
                return
            self._submit(entry or self._missing(path))
        except Exception as error:
            self._fail(error)

    def _missing(self, path: str) -> ModelEntry:
        raise self._calls.table.missing(path) or UnknownModel(path)

    async def _fetch(self, path: str) -> None:
        """`begin` once the model is loaded on demand."""
        try:
            left = max(0.0, min(self._deadline - time.monotonic(), MAX_TIMEOUT))
            entry = await self._calls.table.fetch(path, TimeoutPolicy(left, asked=left))
            self._submit(entry or self._missing(path))
        except Exception as error:
            self._fail(error)

    @property
    def _deadline(self) -> float:
        given = self._message.deadline_ns
        return given / 1e9 if given else self._began / 1e9 + self._calls.timeout

    def _submit(self, entry: ModelEntry) -> None:
        message = self._message
        self._called = entry.stats
        if not entry.ready:
            raise ModelNotReady(entry.spec.name)
        inputs = _inputs(entry.spec, message.inputs)
        outputs = message.outputs
        unknown = set(outputs or ()).difference(entry.spec.outputs_by_name)
        if unknown:
            raise InvalidInput(f"there is no output {min(unknown)!r}")
        self._rows = checked_rows(entry.spec, inputs)
        entry.stats.begin()
        self._entry = entry
        if entry.scheduler is None:
            submitted: Submitted = entry.runner.submit(
                inputs,
                deadline=self._deadline,
                on_done=self._done,
                priority=message.priority,
            )
        else:
            request = InferRequest(inputs, Encoding.JSON)
            request.outputs = outputs
            request.parameters = message.parameters
            request.rows = self._rows
            submit = entry.scheduler.submit
            if message.streams and isinstance(entry.scheduler, StepScheduler):
                submit = partial(entry.scheduler.stream, on_response=self._respond)
            submitted = submit(request, deadline=self._deadline, on_done=self._done)
        if not submitted.done:
            self._submitted = submitted

    def _respond(self, outputs: Mapping[str, Tensor]) -> None:
        self._caller.respond(self._message.number, self._wanted(outputs))

    def _wanted(self, outputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        assert self._entry is not None
        wanted = self._message.outputs or self._entry.spec.outputs_by_name
        return {n: t for n, t in outputs.items() if n in wanted}

    def proceed(self) -> None:
        """A response was taken: the next may come."""
        if isinstance(self._submitted, StepRun):
            self._submitted.proceed()

    def _done(self, submitted: Submitted) -> None:
        self._submitted = None
        if submitted.error is not None:
            self._fail(submitted.error)
            return
        if self._is_over:
            return
        self._is_over = True
        entry = self._entry
        assert entry is not None
        entry.stats.success(
            time.monotonic_ns() - self._began,
            submitted.queue_ns,
            submitted.compute_ns,
            rows=self._rows,
            batch_rows=submitted.batch_rows,
        )
        self._keep(submitted)
        self._caller.answer(self._message.number, self._wanted(submitted.outputs))
        self._caller.routes.offer(self._message.model, self._message.version)

    def _fail(self, error: Exception) -> None:
        if self._is_over:
            return
        self._is_over = True
        if self._entry is not None:
            took = time.monotonic_ns() - self._began
            self._entry.stats.failure(row_of(error).reason, took)
        self._keep(None, row_of(error).code)
        told = named(_as_engine_error(error), f"model {self._message.model!r}")
        self._caller.answer(self._message.number, told)

    def give_up(self, error: EngineError) -> None:
        """It is not waited for any more."""
        if self._fetching is not None:
            self._fetching.cancel()
        if self._submitted is not None and not self._submitted.done:
            self._submitted.abandon(error)
        self._fail(error)

    def __repr__(self) -> str:
        return f"<Called {self._message.model!r}>"


def _as_engine_error(error: Exception) -> EngineError:
    """What the author of the model that called sees."""
    if isinstance(error, EngineError):
        # What only the gateway has a name for is told by the name of its parent.
        return InvalidInput(str(error)) if isinstance(error, NotOneResponse) else error
    row = row_of(error)
    if isinstance(error, UnknownModel) or row.status == 503:
        return Refused(str(error))
    if isinstance(error, RequestError) and row.status < 500:
        return InvalidInput(str(error))
    return ExecutionFailed(str(error))


def _inputs(spec: ModelSpec, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The inputs as the model takes them. Raises InvalidInput."""
    found = {}
    for name, tensor in given.items():
        want = spec.inputs_by_name.get(name)
        if want is None:
            known = ", ".join(spec.inputs_by_name)
            raise InvalidInput(f"there is no input {name!r}; there are {known}")
        if tensor.data_type is not want.data_type:
            tensor = _converted(tensor, want)
        found[name] = tensor
    missing = [
        name
        for name in spec.inputs_by_name
        if name not in found and name not in spec.defaults and not spec.optional_inputs
    ]
    if missing:
        raise InvalidInput(f"input {missing[0]!r} is missing")
    rows = next((t.shape[0] for t in found.values() if t.shape), 1)
    for name in spec.defaults:
        if name not in found and name in spec.inputs_by_name:
            found[name] = spec.default(name, rows)
    return found


def _converted(tensor: Tensor, want: TensorSpec) -> Tensor:
    """Numbers of another type where that keeps their kind. Raises InvalidInput."""
    array, dtype = tensor.numpy(), want.type.dtype
    fits = dtype is not None and np.can_cast(array.dtype, dtype, "same_kind")
    if not fits or want.datatype == "BF16":
        raise InvalidInput(
            f"input {want.name!r} is {want.datatype}, got {array.dtype.name}"
        )
    return Tensor.from_numpy(array.astype(dtype), want.data_type)
