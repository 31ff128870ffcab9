"""Run ensembles: requests go through several models without leaving the gateway.

Tensors between steps are copies in the gateway's memory, from one device's slot and
into the next. A step starts as soon as its inputs are available. So independent steps
run at the same time, and each is batched with its model's other requests. Everything
here belongs to the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec

from app.codec.bounded_cache import remember
from app.errors import InvalidTensor, ModelNotReady, labelled, row_of
from app.observe.journal import NestedCall
from app.serving.ensemble import Ensemble, why_no_member
from app.serving.pending import Pending
from app.serving.runner import Submitted
from app.serving.table import ModelEntry, ModelTable, infer_path
from app.serving.tensor_fit import checked_rows
from app.serving.timeout_policy import MAX_TIMEOUT, TimeoutPolicy
from app.spec import ModelSpec
from engine import Cancelled, Device, EngineError, RunnerClosed, Tensor
from popgate_ensembles.graph import EnsembleGraph, StepPlan
from popgate_ensembles.shapes import given, reshaped, with_rank

_DRAIN_TICK = 0.01  # seconds


class EnsembleRunner(Ensemble):
    """Runs the requests of an ensemble.

    The runner looks up members in the table for each request. So a member that is
    swapped for an equal one is used immediately. If a member is unloaded, requests that
    need it fail with 503 until it is back. `compose` makes the graph of other members,
    or raises ValueError.
    """

    def __init__(
        self,
        graph: EnsembleGraph,
        members: Sequence[ModelSpec],
        table: ModelTable,
        compose: Callable[[Sequence[ModelSpec]], EnsembleGraph],
    ) -> None:
        super().__init__(graph.spec, graph.steps, members)
        self.graph = graph
        self.table = table
        self.compose = compose
        self._plans: dict[tuple[str, ...], StepPlan] = {}
        self._paths = [infer_path(step.model, step.version) for step in graph.steps]
        self._requests: set[EnsembleRequest] = set()
        self._closed = False

    # -- interface of a loaded model

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices of its members; none if a member is not loaded."""
        found: dict[Device, None] = {}
        for entry in self.entries():
            if entry is None:
                return ()
            found |= dict.fromkeys(getattr(entry.runner, "devices", ()))
        return tuple(found)

    @property
    def serving(self) -> bool:
        """Return whether all of its members accept requests."""
        return all(
            e is not None and getattr(e.runner, "serving", True) for e in self.entries()
        )

    @property
    def fits(self) -> bool:
        """Return whether it can run with its present members."""
        if not self.serving:
            return False
        try:
            self._take_over()
        except ModelNotReady:
            return False
        return True

    def entries(self) -> list[ModelEntry | None]:
        """Return the present entries of its members."""
        return [self.table.paths.get(path) for path in self._paths]

    @property
    def missing(self) -> str:
        """Return which member prevents it from running, and why; else empty."""
        for step, path in zip(self.steps, self._paths, strict=True):
            if path not in self.table.paths and not self.table.offers(path):
                return f"{step.label} needs a model that is not loaded"
        return ""

    @property
    def is_current(self) -> bool:
        """Return whether its members are those of its graph or load on demand."""
        return all(
            self.table.offers(path) if entry is None else entry.spec is spec
            for entry, path, spec in zip(
                self.entries(), self._paths, self.members, strict=True
            )
        )

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    @property
    def shared(self) -> bytes:
        """Return the graph as a message."""
        return msgspec.msgpack.encode(self.graph.to_message())

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: Callable[[Any], None] | None = None,
        priority: int = 0,
        outputs: Sequence[str] | None = None,
    ) -> EnsembleRequest:
        """Start a request for these `outputs`."""
        if self._closed:
            raise RunnerClosed(f"ensemble {self.spec.name!r} was unloaded")
        plan = self.plan(tuple(outputs or self.spec.outputs_by_name))
        request = EnsembleRequest(self, plan, inputs, deadline, on_done, priority)
        self._requests.add(request)
        try:
            request.start()
        except BaseException:
            request.withdraw()
            raise
        return request

    def plan(self, outputs: tuple[str, ...]) -> StepPlan:
        """Return the steps to run for these outputs."""
        found = self._plans.get(outputs)
        if found is None:
            found = remember(self._plans, outputs, StepPlan.of(self.steps, outputs))
        return found

    def forget(self, request: EnsembleRequest) -> None:
        self._requests.discard(request)

    def drain(self, timeout: float) -> bool:
        """Wait until no request is in flight, at most `timeout` seconds.

        For a thread.
        """
        end = time.monotonic() + timeout
        while self._requests:
            if time.monotonic() > end:
                return False
            time.sleep(_DRAIN_TICK)
        return True

    def close(self) -> None:
        """Fail the requests in flight, and accept no more."""
        self._closed = True
        for request in list(self._requests):
            request.abandon(RunnerClosed(f"ensemble {self.spec.name!r} was unloaded"))

    # -- calls from its requests

    def entry_of(self, number: int) -> ModelEntry | None:
        """Return the member that runs a step now; None if it must be loaded on demand.

        Raises `ModelNotReady` if it cannot run.
        """
        path = self._paths[number]
        entry = self.table.paths.get(path)
        if entry is None:
            if self.table.offers(path):
                return None
            missing = self.table.missing(path)
            raise missing or ModelNotReady(self.steps[number].model, "not loaded")
        if entry.spec is not self.members[number]:
            self._take_over()
        return entry

    async def fetch(self, number: int, deadline: float | None) -> None:
        """Load the member of a step."""
        left = MAX_TIMEOUT if deadline is None else deadline - time.monotonic()
        left = max(0.0, left)
        await self.table.fetch(self._paths[number], TimeoutPolicy(left, asked=left))

    def _take_over(self) -> None:
        """Continue with swapped members if they have the same tensors."""
        entries = self.entries()
        members = tuple(
            before if entry is None else entry.spec
            for entry, before in zip(entries, self.members, strict=True)
        )
        mine = self.spec
        why = "the ensemble would take or return other tensors than before"
        try:
            for step, entry in zip(self.steps, entries, strict=True):
                if entry is not None and (reason := why_no_member(entry.scheduler)):
                    raise ValueError(f"{step.label}: {reason}")
            graph = self.compose(members)
        except ValueError as e:
            why = str(e)
        else:
            if face_of(graph.spec) == face_of(mine) and graph.steps == self.steps:
                self.members = members
                return
        why = f"its member models have changed: {why}; load the ensemble again"
        raise ModelNotReady(mine.name, why)

    def __repr__(self) -> str:
        return (
            f"<EnsembleRunner {self.spec.name!r} {len(self.steps)} steps, "
            f"{self.in_flight} in flight>"
        )


class EnsembleRequest(Pending):
    """One request to an ensemble.

    `queue_ns` and `compute_ns` are sums over its steps; `batch_rows` is the value of
    the step that ended last.
    """

    def __init__(
        self,
        runner: EnsembleRunner,
        plan: StepPlan,
        inputs: Mapping[str, Tensor],
        deadline: float | None,
        on_done: Callable[[Any], None] | None,
        priority: int,
    ) -> None:
        super().__init__(inputs, deadline, on_done, priority)
        self._runner = runner
        self._plan = plan
        self._needs = [step.needs for step in runner.steps]
        self._left = len(plan.asked)
        self._running: dict[int, Submitted] = {}
        self._began = [0] * len(runner.steps)
        self._fetching: set[asyncio.Task[None]] = set()
        #: The work of its steps in the order of their ends, if that is recorded.
        self.nested_calls: list[NestedCall] = []
        # The tensors so far: inputs, and outputs of ended steps.
        self._tensors = self.inputs

    def start(self) -> None:
        """Start the steps that depend on no other step."""
        runner, tensors = self._runner, self._tensors
        try:
            for face in runner.graph.inputs:
                if face.outer != face.inner and face.name in tensors:
                    tensor, batched = tensors[face.name], runner.spec.is_batched
                    tensors[face.name] = reshaped(tensor, face.inner, batched=batched)
        except InvalidTensor as error:
            self.resolve(error)
            return
        for number in self._plan.asked:
            if not runner.steps[number].needs:
                self._start(number)

    def withdraw(self) -> None:
        """Withdraw the request: its end is not reported."""
        self.on_done = None
        self.resolve(Cancelled("the step could not be started"))

    def _start(self, number: int) -> None:
        if self.done:
            return
        try:
            entry = self._runner.entry_of(number)
            if entry is None:
                self._fetch(number)
            else:
                self._submit(number, entry)
        except Exception as error:  # otherwise the request would never end
            self._fail(number, error)

    def _submit(self, number: int, entry: ModelEntry) -> None:
        step, tensors = self._runner.steps[number], self._tensors
        spec, runner = entry.spec, entry.runner
        feed = {
            own: with_rank(tensors[name], spec.inputs_by_name[own].shape, spec)
            for own, name in step.inputs
        }
        rows = checked_rows(spec, feed)
        for name in spec.defaults:
            if name not in feed and name in spec.inputs_by_name:
                feed[name] = spec.default(name, rows)
        self._began[number] = time.monotonic_ns()
        entry.stats.begin()
        try:
            on_done = partial(self._ended, number, entry, rows)
            options: dict[str, Any] = {}
            if isinstance(runner, Ensemble):
                options["outputs"] = self._plan.asked[number]
            submitted = runner.submit(
                feed,
                deadline=self.deadline,
                on_done=on_done,
                priority=self.priority,
                **options,
            )
        except Exception as error:
            entry.stats.failure(row_of(error))
            raise
        if not submitted.done:
            self._running[number] = submitted

    def _ended(
        self, number: int, entry: ModelEntry, rows: int, submitted: Submitted
    ) -> None:
        """Record the end of a step, successful or not."""
        self._running.pop(number, None)
        took = time.monotonic_ns() - self._began[number]
        error = submitted.error
        if self._runner.table.keeps_nested_calls:
            self._keep(number, entry, rows, submitted)
        queue_ns, compute_ns = submitted.queue_ns, submitted.compute_ns
        self.batch_rows = submitted.batch_rows
        self.device_id = submitted.device_id
        if error is not None:
            self.queue_ns += queue_ns
            self.compute_ns += compute_ns
            entry.stats.failure(row_of(error), took)
            self._fail(number, error)
            return
        entry.stats.success(
            took, queue_ns, compute_ns, rows=rows, batch_rows=self.batch_rows
        )
        if self.done:
            return
        try:
            self._go_on(number, submitted)
        except Exception as raised:
            if self.done:
                raise  # the callback has raised it
            self._fail(number, raised)

    def _keep(
        self, number: int, entry: ModelEntry, rows: int, submitted: Submitted
    ) -> None:
        error = submitted.error
        call = NestedCall(
            self._runner.steps[number].label,
            entry.stats,
            self._began[number],
            submitted.queue_ns,
            submitted.compute_ns,
            time.monotonic_ns(),
            rows,
            submitted.batch_rows,
            submitted.device_id,
            "" if error is None else row_of(error).code,
            getattr(submitted, "nested_calls", ()),
        )
        self.nested_calls.append(call)

    def _go_on(self, number: int, submitted: Submitted) -> None:
        """Start the steps that wait for the outputs of a step."""
        self.queue_ns += submitted.queue_ns
        self.compute_ns += submitted.compute_ns
        step = self._runner.steps[number]
        outputs = submitted.outputs
        for own, name in step.outputs:
            if own in outputs:  # a member ensemble returns only needed outputs
                self._tensors[name] = outputs[own]
        self._left -= 1
        if not self._left:
            self._end()
            return
        for follower in step.followers:
            self._needs[follower] -= 1
            if not self._needs[follower] and follower in self._plan.asked:
                self._start(follower)

    def _end(self) -> None:
        """Return the outputs of the ensemble after all steps have ended."""
        spec = self._runner.spec
        outputs: dict[str, Tensor] = {}
        try:
            for face in self._runner.graph.outputs:
                if face.name in self._plan.outputs:
                    tensor = with_rank(self._tensors[face.name], face.inner, spec)
                    outputs[face.name] = given(tensor, face, spec)
        except InvalidTensor as error:
            self.resolve(error)
            return
        self.outputs = outputs
        self.resolve()

    def _fetch(self, number: int) -> None:
        """Start a step once its model is loaded on demand."""
        task = asyncio.get_running_loop().create_task(self._fetched(number))
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)

    async def _fetched(self, number: int) -> None:
        try:
            await self._runner.fetch(number, self.deadline)
        except Exception as error:  # otherwise the request would never end
            self._fail(number, error)
            return
        self._start(number)

    def _fail(self, number: int, error: Exception) -> None:
        self.resolve(labelled(error, self._runner.steps[number].label))

    def resolve(self, error: Exception | None = None) -> None:
        if self.done:
            return
        # This must come first, because the steps that are abandoned below end here,
        # too.
        self.done, self.error = True, error
        self.inputs = self._tensors = {}
        self._runner.forget(self)
        try:
            for task in self._fetching:
                task.cancel()
            gone = (
                error if isinstance(error, EngineError) else Cancelled("another failed")
            )
            for submitted in list(self._running.values()):
                submitted.abandon(gone)
        finally:
            self.notify()


def face_of(spec: ModelSpec) -> tuple[object, ...]:
    """Return the part of a model that requests see."""
    tensors = (*spec.inputs, *spec.outputs)
    known = ((t.name, t.datatype, t.shape) for t in tensors)
    return *known, spec.is_batched, *spec.defaults
