"""`ModelRunner`: a model, its replicas and their devices, on which a caller executes.

Event loops and threads run requests through the same code. For event loops, `submit`
never blocks and `Device.poll` resolves requests. For threads, `execute` and
`execute_async` do the same and wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from time import monotonic_ns

from engine.config import ModelRunnerConfig
from engine.devices.device import Device
from engine.devices.device_manager import DeviceManager
from engine.devices.linked_device import LinkedDevice
from engine.devices.request import OnDone, Request
from engine.errors import EngineError, InvalidInput, QueueFull
from engine.model.anchors import OPTION_FUSED, describe, labels_of, main_anchors
from engine.model.batch_plan import plan_batches
from engine.model.channel_layout import plan_layout
from engine.model.iterations import split_iterations
from engine.model.model_file import ModelFiles, open_model
from engine.model.ragged import OPTION_RAGGED, OPTION_RAGGED_REASON
from engine.model.save_outputs import SaveOutputs
from engine.model.validation import check_inputs, check_outputs
from engine.programs.python_routes import ANSWER, OPTION_ROUTES, ROUTE
from engine.runner.flushing import Flusher
from engine.runner.python_code import PythonCode, PythonModel
from engine.runner.replica_loader import ReplicaPlan
from engine.runner.replica_set import ReplicaSet
from engine.runner.result import ExecuteResult
from engine.runner.runner_description import RunnerDescription
from engine.runner.stats import RunnerStats
from engine.runner.tracepoints import Tracepoints
from engine.tensor import Array, DataDesc, Tensor
from engine.transport.output_arrays import OutputArrays
from engine.transport.result_memory import RESULT_MEMORY
from popef_io import Model, PopefError, TensorType

logger = logging.getLogger(__name__)

#: Blocking callers never wait while fewer requests than this are in flight. It is
#: enough for the threads that a device can serve.
LEAST_IN_FLIGHT = 16
#: The fewest descriptors of a ring, so that a burst of single requests finds room.
MIN_SLOTS = 128


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
        self._python: PythonCode | None = None
        if isinstance(model, PythonModel):
            self._python, model = model.code, model.interface
        self._model = open_model(model)
        self.name = name or self._model.metadata.executable
        self._anchors = main_anchors(self._model, self.config.frozen_inputs.keys())
        self.execute_inputs = tuple(describe(a) for a in self._anchors.inputs)
        self.execute_outputs = tuple(describe(a) for a in self._anchors.outputs)
        self._desc_by_name = {desc.name: desc for desc in self.execute_inputs}
        plan = self._batches = plan_batches(self._model, self._anchors, self.config)
        #: The most rows that run together. 0: rows of requests are not mixed.
        self.max_batch_size = plan.max_units if plan.mixes_rows else 0
        self.request_inputs = plan.request_descs(self.execute_inputs, plan.inputs)
        self.request_outputs = plan.request_descs(self.execute_outputs, plan.outputs)
        # A request has either the inputs of the model or the input of its routes.
        own = (desc for desc in self.request_inputs if desc.name != ROUTE)
        self._request_descs = {desc.name: desc for desc in own}
        self._output_names = [desc.name for desc in self.execute_outputs]
        self._last_descs: tuple[int, tuple[DataDesc, ...]] = (-1, ())
        most = self.config.ring_buffer_size_multiplier * plan.depth
        self._most_in_flight = max(LEAST_IN_FLIGHT, most)
        self._save = SaveOutputs(
            self._model, self.config.replica_to_save_programs_outputs
        )
        self._on_failure: Callable[[EngineError], None] | None = None
        self.is_warming_up = False
        self._replicas = ReplicaSet(self._plan(), self.config)
        self._loaded = False
        self._clock = monotonic_ns if self.config.record_tracepoints else None
        try:
            self._replicas.attach(manager)
            for device in dict.fromkeys(self._replicas.devices):
                device.models.register(self)
            self._replicas.load()
            self._loaded = True
        except BaseException:
            self.close()
            raise

    # -- properties

    @property
    def model(self) -> Model:
        return self._model

    @property
    def batching(self) -> bool:
        """Return whether rows of different requests may run together."""
        return self.max_batch_size > 0

    @property
    def ragged(self) -> bool:
        """Return whether rows of different length may run together, padded to the
        longest.
        """
        return self._batches.ragged is not None

    @property
    def ragged_reason(self) -> str:
        """Return why rows of different lengths may or may not run together. Empty if
        the file does not state it.
        """
        metadata = self._model.metadata
        if metadata.option(OPTION_RAGGED) and not self.ragged:
            return "its options do not allow it"
        return metadata.option(OPTION_RAGGED_REASON) or ""

    @property
    def batching_dim(self) -> int:
        """Return the dimension in which the rows of requests lie."""
        return self._batches.dim

    def iterations_of(
        self, outputs: Mapping[str, Tensor]
    ) -> list[Mapping[str, Tensor]]:
        """Return the outputs of a request, cut into those of each device iteration.

        A model with one iteration has one part. A run delivers all its results at once,
        so cutting them makes none available earlier.
        """
        return split_iterations(self._batches, outputs)

    @property
    def is_fused(self) -> bool:
        """Return whether the file states that an input chooses among several models."""
        return self._model.metadata.option(OPTION_FUSED) is not None

    @property
    def routes(self) -> str:
        """Return a Python model's routes (`OPTION_ROUTES`); empty if it has none."""
        return self._model.metadata.option(OPTION_ROUTES) or ""

    @property
    def labels(self) -> dict[str, tuple[str, ...]]:
        """Return the names of classes, by output, if the file has them."""
        return labels_of(self._model)

    @property
    def model_inputs(self) -> tuple[DataDesc, ...]:
        """Return `execute_inputs` and the inputs that are needed to load the model."""
        frozen = self.config.frozen_inputs
        return tuple(
            desc
            for desc in self._all_descs(TensorType.INPUT)
            if desc.name not in frozen
        )

    @property
    def model_outputs(self) -> tuple[DataDesc, ...]:
        """Return `execute_outputs` and the outputs of other phases."""
        return self._all_descs(TensorType.OUTPUT)

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

    def tracepoints(self, replica_id: int = 0) -> Tracepoints:
        """Return the times of the last requests of `execute` and `execute_async`.

        Empty unless `config.record_tracepoints` is set.
        """
        self._replicas.origin.check("ModelRunner")
        self._replicas.check_id(replica_id)
        tracepoints = self._replicas.tracepoints(replica_id)
        return Tracepoints(1, nullcontext()) if tracepoints is None else tracepoints

    # -- requests

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: OnDone | None = None,
        replica_id: int | None = None,
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
            self.validate(inputs)
        rows = self._batches.units(inputs)
        channel = self._replicas.pick(replica_id, priority)
        deadline_ns = 0 if deadline is None else int(deadline * 1e9)
        request = channel.submit(
            inputs, rows, deadline_ns, on_done, began_ns, into, delayed, optional
        )
        if replica_id is not None:
            channel.flight.keep_here(request)
        return request

    def execute(
        self,
        inputs: Mapping[str, Array],
        outputs: Mapping[str, Array] | None = None,
        *,
        replica_id: int = 0,
        timeout: float | None = None,
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
        replica_id: int = 0,
        timeout: float | None = None,
    ) -> ExecuteResult:
        """Queue one request. Return a mapping that waits for the result on first
        access.

        The input arrays must stay unchanged until the result is there.
        """
        began_ns = 0 if self._clock is None else self._clock()
        self._replicas.check_id(replica_id)
        self._replicas.recover_if_lost(replica_id)
        tensors = {name: self._tensor(name, array) for name, array in inputs.items()}
        deadline = None if timeout is None else time.monotonic() + timeout
        if outputs is not None:
            self._check_names(outputs)
        validate = self.config.validate_io_params
        if validate:
            self.validate(tensors)
        units = self._batches.units(tensors)
        if validate and outputs is not None:
            check_outputs(self._result_descs(units), outputs)
        into = OutputArrays(outputs)
        result = ExecuteResult(into)
        deadline_ns = 0 if deadline is None else int(deadline * 1e9)
        while True:
            channel = self._replicas.pick(replica_id)
            most = min(self._most_in_flight, channel.limit)
            channel.flight.wait_for_room(most, deadline)
            try:
                result.request = channel.submit(
                    tensors, units, deadline_ns, None, began_ns, into
                )
            except QueueFull:
                # If another thread took the room, try again. If the device itself is
                # full, raise.
                if channel.in_flight < channel.limit:
                    raise
            else:
                return result

    def validate(self, inputs: Mapping[str, Tensor]) -> None:
        """Check names, data types, shapes and sizes of a request."""
        check_inputs(self.name, self._request_descs, inputs)

    def _check_names(self, outputs: Mapping[str, Array]) -> None:
        names = self._output_names
        for name in outputs:
            if name not in names:
                raise InvalidInput(f"the model has no output {name!r}; it has {names}")

    def _result_descs(self, units: int) -> tuple[DataDesc, ...]:
        """Return the outputs of a request with `units` units. Keep the last result,
        because most requests have as many units as the one before.
        """
        of, descs = self._last_descs
        if of != units:
            own = [desc for desc in self.request_outputs if desc.name != ANSWER]
            descs = self._batches.result_descs(own, units)
            self._last_descs = units, descs
        return descs

    # -- loading and closing

    def reload(self, device: LinkedDevice) -> None:
        """Load the replicas of a device again, after its process was replaced."""
        self._replicas.reload(device)

    @property
    def failure(self) -> EngineError | None:
        """Return the error of a model that was found at fault and takes no requests;
        else None.
        """
        return self._replicas.failure

    def on_failure(self, callback: Callable[[EngineError], None]) -> None:
        """Call `callback` when the model is found at fault, in the thread that finds
        it. `failure` tells whether it was at fault before.
        """
        self._on_failure = callback

    @contextmanager
    def warming_up(self) -> Iterator[None]:
        """Mark the model as not served yet, while the block runs. Then one failed run
        keeps it from being served.
        """
        self.is_warming_up = True
        try:
            yield
        finally:
            self.is_warming_up = False

    def run_limit(self, device: LinkedDevice, replica: int) -> float | None:
        """Return the time limit in seconds of a run of this replica (0: none); None if
        the replica is not this model's.
        """
        return self._replicas.run_limit(device, replica)

    def fail_started(self, device: LinkedDevice, error: EngineError) -> None:
        """Fail the requests that a run on this device has taken."""
        self._replicas.fail_started(device, error)

    def fail(self, error: EngineError) -> None:
        """Take no more requests, because the model was found at fault. This is
        permanent. Fail the requests in flight, and call the callback of `on_failure`.
        """
        self._replicas.fail(error)
        tell = self._on_failure  # another thread may call `close`, which removes it
        if tell is not None:
            tell(error)

    def request_of(self, number: int) -> Request | None:
        """Return the request with this `Request.number`, while it is in flight."""
        for channel in self._replicas.channels:
            request = channel.request_of(number)
            if request is not None:
                return request
        return None

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight, at most `timeout` seconds."""
        self._replicas.origin.check("ModelRunner")
        end = time.monotonic() + timeout
        for channel in self._replicas.channels:
            for request in channel.waiting:
                if not request.wait(max(0.0, end - time.monotonic())):
                    return False
        return True

    def run_save_programs(self, replica_id: int = 0) -> dict[str, Array]:
        """Run the save programs of a replica now. Return their outputs by name.

        The programs run between two batches, so the state includes every answered
        request. The call also fills the arrays of
        `config.replica_to_save_programs_outputs`. Raises the errors of `execute`, and
        InvalidInput if such an array does not fit.
        """
        self._replicas.check_id(replica_id)
        saved = self._replicas.save(replica_id)
        arrays = {name: tensor.numpy().copy() for name, tensor in saved.items()}
        self._save.fill(replica_id, arrays)
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
        mine = not self._replicas.origin.left
        if mine and self.config.run_save_programs and self._loaded:
            failures = self._save_all()
        for device in self._replicas.devices if mine else ():
            device.models.unregister(self)
        self._replicas.close()
        # The callback usually refers to the owner of this runner. That cycle would keep
        # the model's mapped files until the next garbage collection.
        self._on_failure = None
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
        closed, origin = self._replicas.closed, self._replicas.origin
        state = "closed" if closed else ("ready" if self.ready else "not ready")
        if origin.left:
            state = f"of process {origin.pid}"
        return (
            f"<ModelRunner {self.name!r} {state}, {len(self.devices)} replicas, "
            f"{self.in_flight} in flight>"
        )

    # -- loading

    def _plan(self) -> ReplicaPlan:
        config, batches = self.config, self._batches
        layout = plan_layout(
            self.request_inputs,
            self.request_outputs,
            max(MIN_SLOTS, config.ring_buffer_size_multiplier * batches.depth),
            max(self.max_batch_size, batches.unit_extent),
            config.channel_memory,
        )
        flusher = None
        if config.flush_callback is not None:
            flusher = Flusher(
                config.flush_callback,
                self._valid,
                batches.units,
                self.execute_outputs,
            )
        return ReplicaPlan(
            self.name,
            self._model,
            self.execute_inputs,
            self.execute_outputs,
            batches,
            layout,
            flusher,
            self._python,
        )

    # -- helpers

    def _valid(self, inputs: Mapping[str, Array]) -> dict[str, Tensor]:
        tensors = {name: self._tensor(name, array) for name, array in inputs.items()}
        if self.config.validate_io_params:
            self.validate(tensors)
        return tensors

    def _tensor(self, name: str, array: Array) -> Tensor:
        """Return the array in this input's data type if it has that type's numpy form
        (BF16 as uint16). Raises InvalidInput otherwise.

        Types are compared with and without `validate_io_params`, because bytes of
        another type mean nothing.
        """
        desc = self._desc_by_name.get(name)
        if desc is not None and desc.data_type.numpy_dtype == array.dtype:
            return Tensor.from_numpy(array, desc.data_type)
        try:
            tensor = Tensor.from_numpy(array)
        except PopefError as error:
            raise InvalidInput(f"input {name!r}: {error}") from None
        if desc is not None and tensor.data_type is not desc.data_type:
            raise InvalidInput(
                f"input {name!r} must be {desc.data_type.name}, got "
                f"{tensor.data_type.name}"
            )
        return tensor

    def _all_descs(self, kind: TensorType) -> tuple[DataDesc, ...]:
        data = self._model.tensors
        return tuple(
            describe(anchor, has_data=anchor.name in data)
            for anchor in self._model.metadata.anchors
            if anchor.type is kind
        )
