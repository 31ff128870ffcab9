"""`JoinedRunner`: requests to a model that another process has loaded."""

from __future__ import annotations

from collections.abc import Mapping

from engine.devices.joined_device import JoinedDevice
from engine.devices.linked_device import LinkedDevice
from engine.devices.request import OnDone, Request
from engine.errors import DeviceLost, EngineError, RunnerClosed
from engine.model.iterations import split_iterations
from engine.model.validation import check_inputs
from engine.runner.replica_channel import ReplicaChannel
from engine.runner.replica_lines import ReplicaLines, drain, least_busy
from engine.runner.runner_description import RunnerDescription
from engine.tensor import Tensor
from engine.transport.output_arrays import OutputArrays


class JoinedRunner:
    """The part of a `ModelRunner` that accepts requests, for a process that has joined.

    `devices` are the joined devices, by the owner's ids. Make the runner in a thread,
    because opening its channels blocks. A replica whose device is lost accepts no more
    requests. The owner then loads the replica again and sends a new description, from
    which a new runner is made. Thread-safe.
    """

    def __init__(
        self, description: RunnerDescription, devices: Mapping[str, JoinedDevice]
    ) -> None:
        """Raise DeviceLost if no replica is left, and InvalidInput if the model was
        unloaded meanwhile.
        """
        self.description = description
        self.name = description.name
        plan = self._batches = description.batches
        self.max_batch_size = plan.max_units if plan.mixes_rows else 0
        self.batching_dim = plan.dim
        self.request_inputs = plan.request_descs(description.inputs, plan.inputs)
        self.request_outputs = plan.request_descs(description.outputs, plan.outputs)
        self._request_descs = {desc.name: desc for desc in self.request_inputs}
        #: The reason why the runner takes no more requests, if there is one.
        self.failure: EngineError | None = None
        self._closed = False
        self._replicas: list[ReplicaLines] = []
        lost = DeviceLost(f"model {self.name!r} has no replica")
        reroute = self._reroute if description.moves else None
        for device_id, number in description.replicas:
            device = devices.get(device_id)
            try:
                if device is not None:
                    lines = ReplicaLines(description, device, number, reroute)
                    self._replicas.append(lines)
            except DeviceLost as error:
                lost = error
            except BaseException:
                self.close()
                raise
        if not self._replicas:
            raise lost

    # -- properties

    @property
    def channels(self) -> tuple[ReplicaChannel, ...]:
        """Return the channels to all replicas, of all priority levels and weights."""
        return tuple(line for lines in self._replicas for line in lines.all)

    @property
    def devices(self) -> tuple[LinkedDevice, ...]:
        """Return the joined device of each replica."""
        return tuple(lines.default.device for lines in self._replicas)

    @property
    def serving(self) -> bool:
        """Return whether any replica can take requests."""
        return self.failure is None and any(r.default.usable for r in self._replicas)

    @property
    def in_flight(self) -> int:
        return sum(channel.in_flight for channel in self.channels)

    def iterations_of(
        self, outputs: Mapping[str, Tensor]
    ) -> list[Mapping[str, Tensor]]:
        """Split outputs by iteration, as `ModelRunner.iterations_of` does."""
        return split_iterations(self._batches, outputs)

    # -- requests

    def submit(
        self,
        inputs: Mapping[str, Tensor],
        *,
        deadline: float | None = None,
        on_done: OnDone | None = None,
        priority: int = 0,
        validate: bool = False,
        into: OutputArrays | None = None,
        delayed: bool = True,
        replica_id: int | None = None,
        optional: bool = False,
    ) -> Request:
        """Queue one request without blocking, as `ModelRunner.submit` does.
        `JoinedDevice.poll` resolves it. `replica_id` is the place in `devices`.
        """
        if validate:
            check_inputs(self.name, self._request_descs, inputs)
        rows = self._batches.units(inputs)
        channel = self._pick(priority, replica_id)
        request = channel.submit(
            inputs, rows, deadline, on_done, 0, into, delayed, optional
        )
        if replica_id is not None:
            channel.flight.keep_here(request)
        return request

    def _pick(self, priority: int, replica_id: int | None = None) -> ReplicaChannel:
        """Return the channel to this replica, or to the least busy replica.

        If no replica can take the request, raises the reason.
        """
        if self.failure is not None:
            raise self.failure.again()
        replicas = self._replicas
        if replica_id is not None:
            replicas = replicas[replica_id : replica_id + 1]
        lines = replicas[0] if len(replicas) == 1 else least_busy(replicas)
        if lines is None or not lines.default.usable:
            raise replicas[0].default.device.want()
        return lines.of(priority) if priority else lines.default

    def _reroute(
        self, request: Request, tensors: Mapping[str, Tensor], priority: int
    ) -> bool:
        try:
            return self._pick(priority).requeue(request, tensors)
        except EngineError:
            return False

    # -- ending

    def fail(self, error: EngineError) -> None:
        """Accept no more requests. New ones and those in flight fail with `error`."""
        if self.failure is not None:
            return
        self.failure = error
        for channel in self.channels:
            for request in channel.waiting:
                channel.abandon(request, error.again())

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in flight, at most `timeout` seconds."""
        return drain(self.channels, timeout)

    def close(self) -> None:
        """Release the channels. Requests in flight fail with RunnerClosed.

        The model stays loaded as long as its owner wants.
        """
        if self._closed:
            return
        self._closed = True
        self.fail(RunnerClosed(f"model {self.name!r} was unloaded"))
        for channel in self.channels:
            if channel.usable:
                channel.device.close_channel(channel)

    def __repr__(self) -> str:
        state = "serving" if self.serving else "not serving"
        return (
            f"<JoinedRunner {self.name!r} {state}, {len(self._replicas)} replicas, "
            f"{self.in_flight} in flight>"
        )
