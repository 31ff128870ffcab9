"""Generators: Python models that give several responses to a request.

When the client has taken a response, a step asks the generator of the request for the
next one. The generator lives in the process of the replica that started it. If the
client needs no more responses, a last step ends the generator. Otherwise it ends at the
deadline of its request.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from app.codec.messages import InferRequest
from app.config.stateful_config import StepsConfig
from app.serving.runner import OnResponse, Submitted
from app.serving.stateful import ReplicaRunner
from app.spec import ModelSpec
from engine import (
    PYTHON_MORE,
    PYTHON_STEP,
    DeviceLost,
    EngineError,
    Tensor,
    request_numbers,
)
from popef_io import DataType
from popgate_stateful.steps import StepRun, StepScheduler, is_true

#: Most responses to one request.
MAX_RESPONSES = 1 << 20
_NO_MORE = -1


class GeneratorRun(StepRun):
    """The responses to one request, all from one replica."""

    number: int = 0
    replica: int = -1
    #: The number of losses of the replica's device when the run began.
    restarts: int = 0
    is_exhausted: bool = False
    on_end: Callable[[GeneratorRun], None] | None = None

    def resolve(self, error: Exception | None = None) -> None:
        on_end, self.on_end = self.on_end, None
        if on_end is not None:
            on_end(self)
        super().resolve(error)


class GeneratorScheduler(StepScheduler):
    """Runs one version of a Python model that is a generator.

    Belongs to the event loop's thread.
    """

    def __init__(self, spec: ModelSpec, runner: ReplicaRunner) -> None:
        config = StepsConfig(more=PYTHON_MORE, max_steps=MAX_RESPONSES)
        visible = spec.without([PYTHON_STEP], ())
        super().__init__(visible, runner, config, Path())
        self.generator = spec
        self._replicas = runner
        self._live: dict[int, int] = {}
        # The inputs of later steps: the generator has the real ones from its first
        # step.
        self._empty = {t.name: _empty(t.shape, t.data_type) for t in visible.inputs}

    def _make(
        self,
        request: InferRequest,
        deadline: float,
        on_response: OnResponse,
        on_done: Callable[[Any], None],
    ) -> StepRun:
        run = GeneratorRun(
            request.inputs, deadline, on_response, on_done, request.priority
        )
        run.number = next(request_numbers())
        run.on_end = self._ended
        return run

    def _submit(self, run: StepRun, on_done: Callable[[Submitted], None]) -> Submitted:
        assert isinstance(run, GeneratorRun)
        if not run.step:
            return self._begin(run, on_done)
        device = self._replicas.devices[run.replica]
        if device.restarts != run.restarts:
            raise DeviceLost(f"device {device.id} was lost while the generator ran")
        return self._ask(run, self._empty, run.step, on_done)

    def _begin(
        self, run: GeneratorRun, on_done: Callable[[Submitted], None]
    ) -> Submitted:
        """Return the first step, on the replica with the fewest generators of this
        process.

        The replica must take the step. Among several, one is chosen whose device runs
        nothing.
        """
        devices = self._replicas.devices
        order = sorted(
            range(len(devices)),
            key=lambda n: (self._live.get(n, 0), devices[n].report.is_occupied),
        )
        lost: DeviceLost | None = None
        for run.replica in order:
            run.restarts = devices[run.replica].restarts
            self._live[run.replica] = self._live.get(run.replica, 0) + 1
            try:
                return self._ask(run, run.inputs, 0, on_done)
            except DeviceLost as error:
                self._live[run.replica] -= 1
                lost = lost or error
            except BaseException:
                self._live[run.replica] -= 1
                raise
        raise lost or DeviceLost("the model has no replica")

    def _ask(
        self,
        run: GeneratorRun,
        inputs: Mapping[str, Tensor],
        step: int,
        on_done: Callable[[Submitted], None] | None,
    ) -> Submitted:
        deadline = int(run.deadline * 1e9) if run.deadline is not None else 0
        told = np.array([run.number, step, deadline], np.int64)
        return self._replicas.submit(
            {**inputs, PYTHON_STEP: Tensor.from_numpy(told)},
            deadline=None if step == _NO_MORE else run.deadline,
            priority=run.priority,
            on_done=on_done,
            replica_id=run.replica,
        )

    def _stepped(self, run: StepRun, inner: Submitted) -> None:
        assert isinstance(run, GeneratorRun)
        if inner.error is None:
            run.is_exhausted = not is_true(inner.outputs[PYTHON_MORE])
        super()._stepped(run, inner)

    def _respond(self, run: StepRun, outputs: Mapping[str, Tensor]) -> None:
        if is_true(outputs[PYTHON_MORE]):
            super()._respond(run, outputs)
        else:  # the generator has ended without a response
            run.resolve()

    def _ended(self, run: GeneratorRun) -> None:
        """Tell a generator that no more responses are wanted."""
        self._live[run.replica] -= 1
        device = self._replicas.devices[run.replica]
        if run.is_exhausted or device.restarts != run.restarts:
            return
        # If its queue is full, the generator does not learn of it now. Its deadline
        # then ends it.
        with contextlib.suppress(EngineError):
            self._ask(run, self._empty, _NO_MORE, None)


def _empty(shape: Sequence[int] | None, data_type: DataType) -> Tensor:
    """Return a tensor whose content is ignored."""
    dims = [0] * len(shape or ())
    if data_type is DataType.STRING:
        return Tensor.from_numpy(np.full(dims, b"", dtype=object), data_type)
    return Tensor.from_numpy(np.zeros(dims, data_type.numpy_dtype), data_type)
