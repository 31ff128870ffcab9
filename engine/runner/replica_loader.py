"""`ReplicaLoader`: loads a model on its devices, and unloads it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from engine.config import NEVER_NS, UNLIMITED, ModelRunnerConfig
from engine.devices.device import Device
from engine.devices.device_manager import DeviceManager
from engine.errors import (
    DeviceLost,
    EngineError,
    ExecutionFailed,
    InvalidConfig,
    InvalidModel,
)
from engine.model.frozen import frozen_tensors
from engine.model.interface import ModelInterface
from engine.model.model_file import handed_over
from engine.runner.flushing import Flusher
from engine.runner.python_model import ModelCode
from engine.runner.replica_lines import ReplicaLines
from engine.runner.runner_description import RunnerDescription
from engine.tensor import Tensor
from engine.transport.device_messages import (
    Done,
    Load,
    Loaded,
    Save,
    Saved,
    Unload,
    WaitingTimes,
)
from engine.transport.messages import close_all
from engine.transport.tensor_pack import pack_tensors, unpack_tensors
from popef_io import Model

logger = logging.getLogger(__name__)

#: Seconds that save programs may take, together with the runs before them.
SAVE_TIMEOUT = 300.0

#: Seconds that a device may take to unload a model, and that a Python model's `close`
#: may take.
UNLOAD_TIMEOUT = 30.0
CLOSE_TIMEOUT = 5.0

#: Seconds that a device may take to end a load that takes too long. Then the device
#: process is ended.
LOAD_GRACE = 5.0


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """The plan of each replica: the model, and its description before it is loaded."""

    name: str
    model: Model
    description: RunnerDescription
    waiting: WaitingTimes
    flusher: Flusher | None
    python: ModelCode | None

    @classmethod
    def of(
        cls,
        name: str,
        interface: ModelInterface,
        config: ModelRunnerConfig,
        python: ModelCode | None,
    ) -> ReplicaPlan:
        """Return the plan of a model under a configuration. Raises InvalidConfig for a
        name that is no valid string.
        """
        try:
            name.encode()
        except (AttributeError, UnicodeEncodeError):
            msg = f"the name of a model must be a valid string, got {name!r}"
            raise InvalidConfig(msg) from None
        waiting = _waiting_times(config)
        longest = max(waiting.fill_batch_ns, waiting.fill_run_ns)
        flusher = None
        if config.flush_callback is not None:
            flusher = Flusher(
                config.flush_callback,
                interface.valid_tensors,
                interface.batches.units,
                interface.outputs,
            )
        description = RunnerDescription.of(name, interface, config, longest)
        return cls(name, interface.model, description, waiting, flusher, python)


class ReplicaLoader:
    """Attaches the devices of a model, loads its replicas there and unloads them.

    Closing the loader closes the devices that it has attached.
    """

    def __init__(self, plan: ReplicaPlan, config: ModelRunnerConfig) -> None:
        self._plan = plan
        self._config = config
        self._own: list[Device] = []

    def attach(self, manager: DeviceManager | None) -> list[Device]:
        """Return the device of each replica. For replicas without a device in
        `config.replica_to_device`, attach one from `manager`.
        """
        given, count = self._given(), self._config.replication_factor
        missing = count - len(given)
        if missing and self._plan.python is not None:
            raise InvalidConfig(
                "replica_to_device must name a device for each replica of a Python "
                f"model; {missing} of {count} have none"
            )
        if missing:
            own = (manager or DeviceManager()).get_devices(
                missing,
                self._plan.model,
                self._config.device_wait_config,
                list(given.values()),
            )
            self._own = list(own)
        own_devices = iter(self._own)
        return [given.get(replica) or next(own_devices) for replica in range(count)]

    def _given(self) -> dict[int, Device]:
        """Return the devices that the configuration gives to replicas."""
        given = {}
        for replica, device in self._config.replica_to_device.items():
            if not isinstance(device, Device):
                kind = type(device).__name__
                msg = f"replica_to_device[{replica}] must be a Device, got {kind}"
                raise InvalidConfig(msg)
            given[replica] = device
        return given

    def load(
        self, device: Device, count: int, fail: Callable[[EngineError], None]
    ) -> list[int]:
        """Load `count` replicas on a device, which share graphs and weights there.
        Return their numbers. Raises InvalidModel if that exceeds the time limit, after
        calling `fail`.
        """
        plan, config = self._plan, self._config
        batches = plan.description.batches
        python = None if plan.python is None else plan.python.to_message(device)
        frozen = frozen_tensors(plan.model, config.frozen_inputs)
        place = None
        with handed_over(plan.model) as (sources, fds), ExitStack() as held:
            if frozen:
                place, memory = pack_tensors("frozen", frozen)
                fds = [*fds, held.enter_context(memory).fd]
            message = Load(
                count=count,
                name=plan.name,
                sources=tuple(sources),
                executable=plan.model.metadata.executable,
                threads=device.threads,
                providers=tuple(device.providers),
                plan=batches.to_message(),
                delay_ns=int(config.max_queue_delay * 1e9),
                preferred=_preferred_sizes(config, batches.max_units),
                waiting=plan.waiting,
                check_package_hash=config.check_package_hash,
                frozen=place,
                python=python,
                load_timeout=config.load_timeout,
            )
            if plan.python is not None:
                fds = [*fds, *held.enter_context(plan.python.calling())]
            held.enter_context(device.models.loading(plan.name))
            return self._call(device, message, fds, fail)

    def _call(
        self,
        device: Device,
        message: Load,
        fds: list[int],
        fail: Callable[[EngineError], None],
    ) -> list[int]:
        timeout = self._config.load_timeout
        # The device ends programs in time, and then needs a moment to report it.
        grace = timeout + LOAD_GRACE if timeout else None
        try:
            return list(device.call(message, Loaded, fds, grace).replicas)
        except TimeoutError:
            why = f"loading exceeded {timeout:g} s and cannot be cancelled"
            error = InvalidModel(f"model {self._plan.name!r}: {why}")
            # Fail the model before the device comes back, so that it is not loaded
            # again.
            fail(ExecutionFailed(str(error)))
            device.process.kill_and_wait(f"{self._plan.name!r}: {why}")
            raise error from None

    def save(self, device: Device, replica: int) -> dict[str, Tensor]:
        """Run the save programs of a replica. Return their outputs by tensor name."""
        try:
            answer, fds = device.ask(Save(replica), Saved, timeout=SAVE_TIMEOUT)
        except TimeoutError as error:
            raise DeviceLost(
                f"device {device.id} has not answered for {SAVE_TIMEOUT:g} s"
            ) from error
        try:
            return unpack_tensors(answer.place, fds[0])
        finally:
            close_all(fds)

    def unload(self, device: Device, number: int, lines: ReplicaLines | None) -> bool:
        """Unload a replica, and close its lines. Return whether its device has answered
        in time, or has ended.
        """
        device.limits.cancel(number)
        for line in lines.all if lines is not None else ():
            device.close_channel(line)
        timeout = UNLOAD_TIMEOUT if device.python is None else CLOSE_TIMEOUT
        try:
            device.call(Unload(number), Done, timeout=timeout)
        except TimeoutError:
            logger.warning(
                "%r on device %s was not unloaded within %g s%s",
                self._plan.name,
                device.id,
                timeout,
                "" if device.python is None else "; its process will be ended",
            )
            return False
        except (EngineError, OSError):
            return True  # the process has ended
        return True

    def close(self) -> None:
        """Close the devices that were attached here."""
        for device in self._own:
            device.close()

    def __repr__(self) -> str:
        return f"<ReplicaLoader of {self._plan.name!r}>"


def _preferred_sizes(config: ModelRunnerConfig, max_rows: int) -> tuple[int, ...]:
    """Return the possible preferred batch sizes in ascending order."""
    return tuple(sorted({n for n in config.preferred_batch_sizes if n <= max_rows}))


def _waiting_times(config: ModelRunnerConfig) -> WaitingTimes:
    """Return the waiting times for incomplete runs, for a `Load` message."""
    batch = run = config.timeout_ns or NEVER_NS
    if config.is_batch_size_timeout_enabled:
        batch, run = config.batch_size_timeout_ns, config.data_parallel_timeout_ns
    look_ahead = config.max_look_ahead
    return WaitingTimes(
        batch,
        run,
        config.flush_callback is not None,
        config.flush_on_waiting_outputs,
        -1 if look_ahead == UNLIMITED else int(look_ahead),
    )
