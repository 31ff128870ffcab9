"""Several responses to one request, from a model that runs step by step.

The model is the program of one step. Its outputs say whether the step has a response
and whether another step follows. The declared state goes from step to step. A step is a
request to the device like any other. So steps of different requests share batches, each
response leaves as soon as its step is done, and the steps end when the client
disconnects.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from app.codec.messages import InferRequest
from app.config.stateful_config import StepsConfig
from app.errors import InvalidRequest
from app.serving.pending import NotOneResponse, Pending
from app.serving.runner import OnResponse, Runner, Submitted
from app.serving.stateful import StatefulScheduler
from app.sizes import counted
from app.spec import ModelSpec
from engine import EngineError, ExecutionFailed, Tensor
from popgate_stateful.state_memory import StateMemory
from popgate_stateful.state_tensors import Control, States, tensor_of

_Outputs = Mapping[str, Tensor]
#: Seconds after which a client may ask again if the states had no room.
_PAUSE = 1.0


class StepRun(Pending):
    """The steps of one request. It is done when the caller has taken the last response.

    `on_response` receives the outputs of each response, and the next step waits until
    `proceed` is called.
    """

    step: int = 0
    responses: int = 0
    inner: Submitted | None = None
    timer: asyncio.TimerHandle | None = None
    go_on: Callable[[], None] | None = None
    #: Called when the run has ended, whatever the outcome.
    on_over: Callable[[StepRun], None] | None = None

    def __init__(
        self,
        inputs: Mapping[str, Tensor],
        deadline: float,
        on_response: OnResponse,
        on_done: Callable[[Any], None],
        priority: int,
    ) -> None:
        super().__init__(inputs, deadline, on_done, priority)
        self.on_response = on_response

    def proceed(self) -> None:
        """Make the next response after the one before was taken."""
        go_on, self.go_on = self.go_on, None
        if go_on is not None and not self.done:
            go_on()

    def give_up(self, error: EngineError) -> None:
        """Run no further step."""
        if self.inner is not None and not self.inner.done:
            self.inner.abandon(error)

    def resolve(self, error: Exception | None = None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        on_over, self.on_over = self.on_over, None
        if on_over is not None:
            on_over(self)
        super().resolve(error)


class StepScheduler(StatefulScheduler):
    """Runs one version of a model step by step. Belongs to the event loop's thread.

    `spec` has all tensors of the model; `visible` has those that requests see. Raises
    ValueError if the model lacks a tensor that `config` names.
    """

    def __init__(
        self,
        spec: ModelSpec,
        runner: Runner,
        config: StepsConfig,
        folder: Path,
        model_folder: Path | None = None,
    ) -> None:
        self.config = config
        self.gives_several = bool(config.more)
        #: The number of requests before their last response.
        self.in_flight = 0
        self._drained: asyncio.Event | None = None
        self._runner = runner
        self._states = States(spec, config.state, folder, model_folder)
        most = config.max_state_bytes
        self._memory = StateMemory[StepRun](self._states, most, "responses", _PAUSE)
        self._step = (
            Control(spec, config.step, "responses.step") if config.step else None
        )
        self._parameters = {
            name: Control(spec, name, "responses.parameters")
            for name in config.parameters
        }
        self._defaults = {
            name: _parameter(control, config.parameters[name])
            for name, control in self._parameters.items()
        }
        for role, kind in (("more", "BOOL"), ("emit", "BOOL"), ("error", "BYTES")):
            _check_output(spec, getattr(config, role), role, kind)
        if isinstance(config.delay, str):
            _check_output(spec, config.delay, "delay", "FP32")
        super().__init__(spec.without(config.inputs, config.outputs))

    def submit(
        self, request: InferRequest, deadline: float, on_done: Callable[[Any], None]
    ) -> StepRun:
        """Run a request that expects one response; any other number fails it."""

        def keep(outputs: _Outputs) -> None:
            run.outputs = outputs
            if run.responses > 1:
                run.abandon(NotOneResponse(self._not_one("several")))
            else:
                run.proceed()

        run = self._make(request, deadline, keep, partial(self._end_with_one, on_done))
        self._begin_run(run)
        return run

    def _end_with_one(self, on_done: Callable[[Any], None], run: StepRun) -> None:
        if run.error is None and run.responses != 1:
            run.error = NotOneResponse(self._not_one("no"))
        on_done(run)

    def stream(
        self,
        request: InferRequest,
        deadline: float,
        on_response: OnResponse,
        on_done: Callable[[Any], None],
    ) -> StepRun:
        """Run a request that expects any number of responses; never blocks.

        `on_done` receives the run, with any outcome. Raises `InvalidRequest`, and the
        runner's errors for the first step.
        """
        run = self._make(request, deadline, on_response, on_done)
        self._begin_run(run)
        return run

    def _begin_run(self, run: StepRun) -> None:
        self.in_flight += 1
        run.on_over = self._over
        try:
            self._run(run)
        except BaseException:
            if run.on_over is not None:
                run.on_over = None
                self._over(run)
            raise

    def _over(self, run: StepRun) -> None:
        self._memory.forget(run)
        self.in_flight -= 1
        if not self.in_flight and self._drained is not None:
            self._drained.set()

    async def drain(self, seconds: float) -> None:
        """Wait until every request has had its last response, at most `timeout`
        seconds.
        """
        if not self.in_flight:
            return
        drained = self._drained = asyncio.Event()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(drained.wait(), seconds)

    def _make(
        self,
        request: InferRequest,
        deadline: float,
        on_response: OnResponse,
        on_done: Callable[[Any], None],
    ) -> StepRun:
        inputs = {**request.inputs, **self._defaults, **self._states.initial}
        for name, value in (request.parameters or {}).items():
            control = self._parameters.get(name)
            if control is not None and value is not None:
                try:
                    inputs[name] = _parameter(control, value)
                except ValueError as e:
                    raise InvalidRequest(str(e)) from None
        return StepRun(inputs, deadline, on_response, on_done, request.priority)

    def _not_one(self, how_many: str) -> str:
        return (
            f"model '{self.visible.name}' gave {how_many} responses where exactly 1 "
            f"response is expected; ask for a stream of them with Accept: "
            f"text/event-stream"
        )

    # -- one step after the other

    def _run(self, run: StepRun) -> None:
        if self._step is not None:
            run.inputs[self._step.name] = self._step.tensor(run.step)
        run.inner = self._submit(run, partial(self._stepped, run))

    def _submit(self, run: StepRun, on_done: Callable[[Submitted], None]) -> Submitted:
        """Submit a step. Raises the errors of the runner."""
        return self._runner.submit(
            run.inputs, deadline=run.deadline, priority=run.priority, on_done=on_done
        )

    def _stepped(self, run: StepRun, inner: Submitted) -> None:
        run.queue_ns += inner.queue_ns
        run.compute_ns += inner.compute_ns
        run.batch_rows = max(run.batch_rows, inner.batch_rows)
        run.device_id = inner.device_id
        if inner.error is not None or run.done:
            run.resolve(inner.error)
            return
        outputs = inner.outputs
        try:
            run.inputs |= self._memory.go_on(run, outputs)
            delay = self._delay(outputs)
            if delay > 0:
                loop = asyncio.get_running_loop()
                run.timer = loop.call_later(delay, self._deliver, run, outputs)
                return
        except Exception as error:
            run.resolve(error)
            return
        self._deliver(run, outputs)

    def _deliver(self, run: StepRun, outputs: _Outputs) -> None:
        """Deliver a response. An exception here ends the run."""
        try:
            self._respond(run, outputs)
        except Exception as error:
            run.resolve(error)

    def _respond(self, run: StepRun, outputs: _Outputs) -> None:
        config = self.config
        text = _text(outputs[config.error]) if config.error else ""
        if text:
            run.resolve(ExecutionFailed(text))
            return
        more = bool(config.more) and is_true(outputs[config.more])
        run.go_on = (lambda: self._next(run)) if more else run.resolve
        if config.emit and not is_true(outputs[config.emit]):
            run.proceed()
            return
        run.responses += 1
        run.on_response(outputs)

    def _next(self, run: StepRun) -> None:
        run.step += 1
        if run.step >= self.config.max_steps:
            msg = (
                f"model '{self.visible.name}' did not finish within "
                f"{counted(self.config.max_steps, 'step')} (max_steps)"
            )
            run.resolve(ExecutionFailed(msg))
            return
        try:
            self._run(run)
        except Exception as error:
            run.resolve(error)

    def _delay(self, outputs: _Outputs) -> float:
        delay = self.config.delay
        if isinstance(delay, float):
            return delay
        values = outputs[delay].numpy().reshape(-1)
        seconds = float(values[0]) if values.size else 0.0
        # A delay beyond any deadline is endless. NaN means no delay.
        return min(seconds, 1e6) if seconds > 0 and not math.isnan(seconds) else 0.0

    def __repr__(self) -> str:
        return f"<StepScheduler {self.visible.name}>"


def _parameter(control: Control, value: Any) -> Tensor:
    try:
        return control.tensor(value)
    except ValueError as e:
        msg = f"parameter '{control.name}' must be {e}, got {value!r:.80}"
        raise ValueError(msg) from None


def _check_output(spec: ModelSpec, name: str, role: str, datatype: str) -> None:
    if not name:
        return
    found = tensor_of(spec.outputs_by_name, name, "output", f"responses.{role}")
    one = found.shape is not None and all(dim in (1, -1) for dim in found.shape)
    if found.datatype != datatype or not one:
        msg = (
            f"output '{name}' (responses.{role}) must be one {datatype}, got "
            f"{found.datatype}{list(found.shape or ())}"
        )
        raise ValueError(msg)


def is_true(tensor: Tensor) -> bool:
    return bool(tensor.numpy().reshape(-1).any())


def _text(tensor: Tensor) -> str:
    """Return the first string that is not empty."""
    texts = (bytes(item) for item in tensor.numpy().reshape(-1).tolist())
    return next((item.decode("utf-8", "replace") for item in texts if item), "")
