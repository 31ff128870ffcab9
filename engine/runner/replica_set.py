"""The replicas of a model: their devices, and the channels to each.

`ReplicaSet` loads and unloads a model, and chooses the replica for a request.
`ModelRunner` handles the content of requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from operator import index
from typing import SupportsIndex

from engine.config import ModelRunnerConfig
from engine.devices.device import Device
from engine.devices.device_manager import DeviceManager
from engine.devices.device_state import DeviceState
from engine.devices.linked_device import LinkedDevice
from engine.devices.request import Request
from engine.errors import DeviceLost, EngineError, InvalidInput, RunnerClosed, counted
from engine.fork_guard import fork_guard
from engine.model.kept_state import keeps_state
from engine.runner.replica_channel import ReplicaChannel
from engine.runner.replica_lines import ReplicaLines, least_busy
from engine.runner.replica_loader import ReplicaLoader, ReplicaPlan
from engine.runner.runner_description import RunnerDescription
from engine.runner.stats import RunnerStats
from engine.runner.tracepoints import Tracepoints
from engine.tensor import Tensor

logger = logging.getLogger(__name__)


class ReplicaSet:
    """Replicas 0 to n-1 on their devices. Thread-safe.

    For replicas without a device in `config.replica_to_device`, this object attaches
    one from `manager`, under the configuration's wait policy. Closing the set closes
    those devices.
    """

    def __init__(self, plan: ReplicaPlan, config: ModelRunnerConfig) -> None:
        self.fork_guard = fork_guard()
        self._plan = plan
        self._config = config
        self._loader = ReplicaLoader(plan, config)
        self._devices: list[Device] = []
        #: The replicas by number. None if a replica is not loaded at the moment.
        self._replicas: list[ReplicaLines | None] = []
        self._tracepoints: list[Tracepoints] = []
        self._loaded = False
        #: Whether a request that one replica has not begun may move to another.
        self._moves = False
        self._stopped = False
        self.closed = False
        #: The reason why the model takes no requests, if it was found at fault.
        self.failure: EngineError | None = None

    # -- properties

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the device of each replica."""
        return tuple(self._devices)

    @property
    def channels(self) -> tuple[ReplicaChannel, ...]:
        """Return the channels to the loaded replicas, of all priority levels and
        weights.
        """
        loaded = [lines for lines in self._replicas if lines is not None]
        return tuple(line for lines in loaded for line in lines.all)

    @property
    def ready(self) -> bool:
        """Return whether every replica can take requests."""
        if self._stopped or self.fork_guard.left:
            return False
        return all(map(_can_run, self._replicas))

    @property
    def serving(self) -> bool:
        """Return whether any replica can take requests."""
        if self._stopped or self.fork_guard.left:
            return False
        return any(map(_can_run, self._replicas))

    def stats(self) -> RunnerStats:
        """Return a snapshot of the state of all replicas."""
        return RunnerStats.of(self._plan.name, self._replicas, self._devices)

    def tracepoints(self, replica: int) -> Tracepoints | None:
        """Return the times of a replica's requests; None if they are not recorded."""
        return self._tracepoints[replica] if self._tracepoints else None

    # -- requests

    def pick(
        self, replica_id: SupportsIndex | None, priority: int = 0
    ) -> ReplicaChannel:
        """Return the channel to this replica, or to the least busy replica.

        If the model has priority levels, the channel is the line of `priority`, or of
        the default level if that level does not exist. `priority` may include a weight
        (`weighted`). Raises RunnerClosed, DeviceLost if the replica has no device at
        the moment, or WrongProcess in a forked child.
        """
        if self.fork_guard.left:
            raise self.fork_guard.error("ModelRunner")
        if self._stopped:
            raise _unloaded(self._plan.name)
        if self.failure is not None:
            raise self.failure.again()
        replicas = self._replicas
        number = 0 if replica_id is None else self.check_id(replica_id)
        is_certain = replica_id is not None or len(replicas) == 1
        lines = replicas[number] if is_certain else least_busy(replicas)
        if lines is None or not lines.default.usable:
            raise self._lost(number)
        return lines.of(priority) if priority else lines.default

    def _lost(self, replica: int) -> DeviceLost:
        """Return the error with which the requests in flight failed when the device was
        lost.
        """
        device = self._devices[replica]
        if device.state is DeviceState.READY:
            text = f"model {self._plan.name!r} is not loaded now"
            if pause := device.models.rest_of(self._plan.name):
                text += f"; it is loaded again in {pause:.1f} s: {device.lost_by}"
            return DeviceLost(text)
        return device.want()

    def _reroute(
        self, request: Request, tensors: Mapping[str, Tensor], priority: int
    ) -> bool:
        """Move a request that has not begun to another replica. Return whether one
        accepted it.
        """
        try:
            return self.pick(None, priority).requeue(request, tensors)
        except EngineError:
            return False

    def check_id(self, replica_id: SupportsIndex) -> int:
        """Return the number of a replica. Raise InvalidInput if there is none."""
        number, last = index(replica_id), len(self._replicas) - 1
        if not 0 <= number <= last:
            raise InvalidInput(f"replica_id must be from 0 to {last}, got {number}")
        return number

    def recover_if_lost(self, replica: int) -> None:
        """Recover a lost device. Blocking callers do so themselves (`auto_reset`), or
        wait for another caller that does.
        """
        if not self._config.auto_reset:
            return
        self.fork_guard.check("ModelRunner")
        device, lines = self._devices[replica], self._replicas[replica]
        if not device.check() or not _can_run(lines):
            device.recover()
            time.sleep(device.models.rest_of(self._plan.name))
            device.models.resume()

    # -- loading and closing

    def attach(self, manager: DeviceManager | None) -> None:
        """Give each replica its device."""
        for device in self._loader.attach(manager):
            self._devices.append(device)
            if self._config.record_tracepoints:
                size = self._config.request_tracepoints_buffer_size
                self._tracepoints.append(Tracepoints(size, device.lock))

    def load(self) -> None:
        """Load the model on every replica. Raises DeviceLost if a device is lost
        meanwhile."""
        self._replicas = [None] * len(self._devices)
        several = len(set(self._devices)) > 1
        self._moves = several and not keeps_state(self._plan.model)
        for device in dict.fromkeys(self._devices):
            self._load_on(device)
        # From here on `reload` loads lost replicas again. Replicas that were lost
        # earlier raise here.
        self._loaded = True
        for replica, lines in enumerate(self._replicas):
            if not _can_run(lines):
                raise self._lost(replica)

    def reload(self, device: LinkedDevice) -> None:
        """Load the replicas of a device again, after its process was replaced.

        Does nothing during `load`, which undoes only the loading that it has begun
        itself. Does nothing after a `load` that already was on the new process.
        """
        self.fork_guard.check("ModelRunner")
        wanted = self._loaded and not self._stopped and self.failure is None
        mine = [i for i, one in enumerate(self._devices) if one is device]
        if wanted and not all(_can_run(self._replicas[i]) for i in mine):
            self._load_on(self._devices[mine[0]])

    def save(self, replica: int) -> dict[str, Tensor]:
        """Run the save programs of a replica. Return their outputs by tensor name."""
        self.fork_guard.check("ModelRunner")
        if self.closed:
            raise _unloaded(self._plan.name)
        lines = self._replicas[replica]
        if lines is None or not lines.default.usable:
            raise self._lost(replica)
        return self._loader.save(self._devices[replica], lines.number)

    def stop(self) -> None:
        """Take no more requests. Requests in flight fail with RunnerClosed."""
        self._stopped = True
        for channel in self.channels:
            channel.fail_all(_unloaded(self._plan.name))

    def close(self) -> None:
        """Stop, and unload the model from all devices. In a forked child, only close
        our own devices.
        """
        if self.closed:
            return
        stuck: set[Device] = set()
        if not self.fork_guard.left:
            stuck = self._unload()
        self.closed = self._stopped = True
        self._loader.close()
        for device in self._devices:
            if device.python is not None and not self.fork_guard.left:
                device.close(kill=device in stuck)  # only this model uses it

    def _unload(self) -> set[Device]:
        """Unload the model from all devices. Return the devices that do not unload it
        in time.
        """
        stuck: set[Device] = set()
        self.stop()
        self.closed = True
        for device, lines in zip(self._devices, self._replicas, strict=False):
            # If the process has ended, another replica may have the number by now.
            if lines is None or not lines.default.usable:
                continue
            if not self._loader.unload(device, lines.number, lines):
                stuck.add(device)
        return stuck

    def _load_on(self, device: Device) -> None:
        """Load the replicas of one device, which share graphs and weights there."""
        plan, began = self._plan, time.monotonic()
        mine = [i for i, one in enumerate(self._devices) if one is device]
        for replica in mine:
            self._replicas[replica] = None  # drop the lines to an ended process
        numbers = self._loader.load(device, len(mine), self.fail)
        try:
            for replica, number in zip(mine, numbers, strict=True):
                self._replicas[replica] = ReplicaLines(
                    self._plan.description,
                    device,
                    int(number),
                    self._reroute if self._moves else None,
                    plan.flusher,
                    self.tracepoints(replica),
                )
                text = "replica %d of %r is loaded on %s (%.3f s)"
                took = time.monotonic() - began
                logger.info(text, replica, plan.name, device.id, took)
        except Exception:  # another attempt loads all of them again
            for replica, number in zip(mine, numbers, strict=True):
                lines, self._replicas[replica] = self._replicas[replica], None
                self._loader.unload(device, int(number), lines)
            raise

    def run_limit(self, device: LinkedDevice, replica: int) -> float | None:
        """Return `run_timeout` if this is a replica of the model; None if it is not."""
        mine = any(
            channel.replica == replica and channel.device is device
            for channel in self.channels
        )
        return self._config.run_timeout if mine else None

    def fail_started(self, device: LinkedDevice, error: EngineError) -> None:
        """Fail the requests that a run on this device has taken."""
        for channel in self.channels:
            if channel.device is device:
                for request in channel.started:
                    channel.abandon(request, error.again())

    def fail(self, error: EngineError) -> None:
        """Permanently accept no more requests. All requests fail with `error`, also
        those in flight, whose run ends.

        The model is not loaded again if a device comes back.
        """
        if self.failure is not None:
            return
        self.failure = error
        for channel in self.channels:
            for request in channel.waiting:
                channel.abandon(request, error.again())

    @property
    def description(self) -> RunnerDescription:
        """Return the description of the loaded replicas."""
        loaded = (
            (lines.default.device_id, lines.number)
            for lines in self._replicas
            if lines is not None and lines.default.usable
        )
        return replace(
            self._plan.description, moves=self._moves, replicas=tuple(loaded)
        )

    def __repr__(self) -> str:
        return (
            f"<ReplicaSet {self._plan.name!r}, {len(self.channels)} channels to "
            f"{counted(len(self._replicas), 'replica')}>"
        )


def _can_run(lines: ReplicaLines | None) -> bool:
    """Return whether a replica is loaded, and its device lives."""
    return lines is not None and lines.default.usable


def _unloaded(name: str) -> RunnerClosed:
    return RunnerClosed(f"model {name!r} was unloaded")
