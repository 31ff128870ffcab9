"""`ModelRunner`: a model, its replicas and their devices, on which a caller executes.

Event loops and threads run requests through the same code. For event loops, `submit`
never blocks and `Device.poll` resolves requests. For threads, `execute` and
`execute_async` do the same and wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from contextlib import nullcontext
from time import monotonic_ns
from typing import SupportsFloat, SupportsIndex

from engine.config import ModelRunnerConfig
from engine.devices.device import Device
from engine.devices.device_manager import DeviceManager
from engine.devices.request import OnDone, Request
from engine.errors import EngineError, QueueFull
from engine.model.interface import ModelInterface
from engine.model.iterations import split_iterations
from engine.model.model_file import ModelFiles, open_model
from engine.model.save_outputs import SaveOutputs
from engine.runner.model_health import ModelHealth
from engine.runner.python_model import ModelCode, PythonModel
from engine.runner.replica_lines import drain
from engine.runner.replica_loader import ReplicaPlan
from engine.runner.replica_set import ReplicaSet
from engine.runner.result import ExecuteResult
from engine.runner.runner_description import RunnerDescription
from engine.runner.stats import RunnerStats
from engine.runner.tracepoints import Tracepoints
from engine.tensor import Array, Tensor
from engine.transport.output_arrays import OutputArrays
from engine.transport.result_memory import RESULT_MEMORY

logger = logging.getLogger(__name__)

#: Blocking callers never wait while fewer requests than this are in flight. It is
#: enough for the threads that a device can serve.
LEAST_IN_FLIGHT = 16


class ModelRunner:
    """Loads a model on devices and runs requests (Model Runtime: `ModelRunner`).

    `model` is a PopEF file, several files of one model, a `popef_io.Model`, or a
    `PythonModel`, whose devices the runner then owns and closes. Blocks until the model
    is loaded on every replica. For replicas without a device in
    `config.replica_to_device`, the runner attaches one from `manager` (default: the
    default pool) and owns it. Thread-safe. A forked child cannot use it (WrongProcess)
    and makes its own.
    """

    def __init__(
        self,
        model: ModelFiles | PythonModel,
        config: ModelRunnerConfig | None = None,
        *,
        name: str = "",
        manager: DeviceManager | None = None,
    ) -> None:
        self.config = config or ModelRunnerConfig()
        python: ModelCode | None = None
        if isinstance(model, PythonModel):
            python, model = model.code, model.interface
        self.model = opened = open_model(model)
        self.name = name or opened.metadata.executable
        #: The inputs and outputs of the model, and its metadata.
        self.interface = interface = ModelInterface(self.name, opened, self.config)
        self.execute_inputs = interface.inputs
        self.execute_outputs = interface.outputs
        self.request_inputs = interface.request_inputs
        self.request_outputs = interface.request_outputs
        self.max_batch_size = interface.max_batch_size
        plan = self._batches = interface.batches
        #: Whether rows of different requests, or of different length, run together.
        self.batching = self.max_batch_size > 0
        self.ragged = plan.ragged is not None
        self.batching_dim = interface.batching_dim
        most = self.config.ring_buffer_size_multiplier * plan.depth
        self._most_in_flight = max(LEAST_IN_FLIGHT, most)
        self._save = SaveOutputs(opened, self.config.replica_to_save_programs_outputs)
        whole = ReplicaPlan.of(self.name, interface, self.config, python)
        self._replicas = ReplicaSet(whole, self.config)
        #: What the devices of the model find wrong with it.
        self.health = ModelHealth(self.name, self._replicas)
        self._loaded = False
        self._clock = monotonic_ns if self.config.record_tracepoints else None
        try:
            self._replicas.attach(manager)
            self.health.register()
            self._replicas.load()
            self._loaded = True
        except BaseException:
            self.close()
            raise

    # -- properties

    def iterations_of(
        self, outputs: Mapping[str, Tensor]
    ) -> list[Mapping[str, Tensor]]:
        """Return the outputs of a request, cut into those of each device iteration.

        A model with one iteration has one part. A run delivers all its results at once,
        so cutting them makes none available earlier.
        """
        return split_iterations(self._batches, outputs)

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the device of each replica."""
        return self._replicas.devices

    @property
    def ready(self) -> bool:
        """Return whether every replica can take requests."""
        return self._replicas.ready

    @property
    def serving(self) -> bool:
        """Return whether any replica can take requests."""
        return self._replicas.serving

    @property
    def description(self) -> RunnerDescription:
        """Return the data that another process needs to send requests to the loaded
        replicas (`JoinedRunner`).
        """
        return self._replicas.description

    @property
    def in_flight(self) -> int:
        return sum(c.in_flight for c in self._replicas.channels)

    @property
    def stats(self) -> RunnerStats:
        """Return a snapshot of the runner's state."""
        return self._replicas.stats()

    def tracepoints(self, replica_id: SupportsIndex = 0) -> Tracepoints:
        """Return the times of the last requests of `execute` and `execute_async`.

        Empty unless `config.record_tracepoints` is set.
        """
        self._replicas.fork_guard.check("ModelRunner")
        number = self._replicas.check_id(replica_id)
        tracepoints = self._replicas.tracepoints(number)
        return Tracepoints(1, nullcontext()) if tracepoints is None else tracepoints

    # -- requests

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: OnDone | None = None,
        replica_id: SupportsIndex | None = None,
        priority: int = 0,
        validate: bool | None = None,
        began_ns: int = 0,
        into: OutputArrays | None = None,
        delayed: bool = True,
        optional: bool = False,
    ) -> Request:
        """Queue one request without blocking. `Device.poll` resolves it.

        `deadline` is a `time.monotonic()` time. Without `replica_id` the least busy
        replica takes the request. `priority` is a priority level, 1 being the highest.
        0 and unknown levels mean the default level. `engine.weighted` adds a weight
        within the level. `began_ns` (`time.monotonic_ns()`) is when recording of the
        request's times begins, if the configuration records times. The outputs are
        copied `into` arrays if given; otherwise they are in `Request.outputs`. With
        `delayed` False the request does not wait for others to run with it, whatever
        the configuration. With `optional` the request receives the configuration's
        `optional_outputs`, which are empty otherwise. Raises QueueFull,
        DeadlineUnreachable, RunnerClosed, DeviceLost, InvalidInput or UnknownAnchor,
        and queues nothing then.
        """
        if self.config.validate_io_params if validate is None else validate:
            self.interface.validate(inputs)
        rows = self._batches.units(inputs)
        channel = self._replicas.pick(replica_id, priority)
        request = channel.submit(
            inputs, rows, deadline, on_done, began_ns, into, delayed, optional
        )
        if replica_id is not None:
            channel.flight.keep_here(request)
        return request

    def execute(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array] | None = None,
        *,
        replica_id: SupportsIndex = 0,
        timeout: SupportsFloat | None = None,
    ) -> ExecuteResult:
        """Run one request on numpy arrays, wait for it, and return numpy arrays.

        With `outputs` the results are copied into these arrays. Raises the errors of
        `submit`, and the error of a failed request: ExecutionFailed, DeviceLost, or
        DeadlineExceeded after `timeout` seconds.
        """
        result = self.execute_async(
            inputs, outputs, replica_id=replica_id, timeout=timeout
        )
        result.wait()
        return result

    def execute_async(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array] | None = None,
        *,
        replica_id: SupportsIndex = 0,
        timeout: SupportsFloat | None = None,
    ) -> ExecuteResult:
        """Queue one request. Return a mapping that waits for the result on first
        access.

        The input arrays must stay unchanged until the result is there.
        """
        began_ns = 0 if self._clock is None else self._clock()
        number = self._replicas.check_id(replica_id)
        self._replicas.recover_if_lost(number)
        interface = self.interface
        tensors = interface.tensors(inputs)
        deadline = None
        if timeout is not None:
            deadline = time.monotonic() + max(0.0, float(timeout))
        if outputs is not None:
            interface.check_output_names(outputs)
        validate = self.config.validate_io_params
        if validate:
            interface.validate(tensors)
        units = self._batches.units(tensors)
        if validate and outputs is not None:
            interface.check_outputs(units, outputs)
        into = OutputArrays(outputs)
        while True:
            channel = self._replicas.pick(number)
            most = min(self._most_in_flight, channel.limit)
            channel.flight.wait_for_room(most, deadline)
            try:
                request = channel.submit(tensors, units, deadline, None, began_ns, into)
            except QueueFull:
                # If another thread took the room, try again. If the device itself is
                # full, raise.
                if channel.in_flight < channel.limit:
                    raise
            else:
                return ExecuteResult(into, request)

    # -- loading and closing

    @property
    def failure(self) -> EngineError | None:
        """Return the error of a model that was found at fault and takes no requests;
        else None.
        """
        return self._replicas.failure

    def request_of(self, number: int) -> Request | None:
        """Return the request with this `Request.number`, while it is in flight."""
        found = (channel.request_of(number) for channel in self._replicas.channels)
        return next((request for request in found if request is not None), None)

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight, at most `timeout` seconds."""
        self._replicas.fork_guard.check("ModelRunner")
        return drain(self._replicas.channels, timeout)

    def run_save_programs(self, replica_id: SupportsIndex = 0) -> dict[str, Array]:
        """Run the save programs of a replica now. Return their outputs by name.

        The programs run between two batches, so the state includes every answered
        request. The call also fills the arrays of
        `config.replica_to_save_programs_outputs`. Raises the errors of `execute`, and
        InvalidInput if such an array does not fit.
        """
        number = self._replicas.check_id(replica_id)
        saved = self._replicas.save(number)
        arrays = {name: tensor.numpy().copy() for name, tensor in saved.items()}
        self._save.fill(number, arrays)
        return arrays

    def close(self) -> None:
        """Unload the model from all devices. Requests in flight fail with RunnerClosed.

        With `config.run_save_programs` the save programs of each replica run first. If
        one fails, the others still run, and the first error is raised at the end. A
        forked child does none of this, because the model belongs to the parent.
        """
        if self._replicas.closed:
            return
        failures: list[EngineError] = []
        mine = not self._replicas.fork_guard.left
        if mine and self.config.run_save_programs and self._loaded:
            failures = self._save_all()
        if mine:
            self.health.unregister()
        self._replicas.close()
        self.health.close()
        RESULT_MEMORY.give_back()
        if failures:
            raise failures[0]

    def _save_all(self) -> list[EngineError]:
        self._replicas.stop()
        failures = []
        for replica in range(len(self._replicas.devices)):
            try:
                self.run_save_programs(replica)
            except EngineError as error:
                logger.error(
                    "saving replica %d of %r failed: %s", replica, self.name, error
                )
                failures.append(error)
        return failures

    def __enter__(self) -> ModelRunner:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        closed, guard = self._replicas.closed, self._replicas.fork_guard
        state = "closed" if closed else ("ready" if self.ready else "not ready")
        if guard.left:
            state = f"of process {guard.pid}"
        return (
            f"<ModelRunner {self.name!r} {state}, {len(self.devices)} replicas, "
            f"{self.in_flight} in flight>"
        )
