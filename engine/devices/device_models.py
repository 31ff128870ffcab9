"""`DeviceModels`: the models on an attached device, and the failures of each."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import AbstractContextManager
from typing import Protocol

from engine.devices.device_state import DeviceState
from engine.devices.linked_device import LinkedDevice
from engine.errors import (
    DeviceClosed,
    DeviceLost,
    EngineBug,
    EngineError,
    ExecutionFailed,
    InvalidModel,
    counted,
)
from engine.run_failures import Death, FailureCounts

logger = logging.getLogger(__name__)

#: Seconds until a model is loaded again that could not be loaded on a new process.
RELOAD_PAUSE = 10.0


class DeviceUser(Protocol):
    """Owner of models on a device (a model runner)."""

    @property
    def name(self) -> str: ...

    def reload(self, device: LinkedDevice) -> None:
        """Load the models again, because the device has a new process. Raises
        EngineError.
        """

    def run_limit(self, device: LinkedDevice, replica: int) -> float | None:
        """Return the time limit in seconds of a run of this replica (0: none); None if
        the replica belongs to another user.
        """

    @property
    def is_warming_up(self) -> bool:
        """Return whether the model is not served yet. Its first failed run then fails
        the model.
        """

    def fail_started(self, device: LinkedDevice, error: EngineError) -> None:
        """Fail the requests that a run on this device has taken."""

    def fail(self, error: EngineError) -> None:
        """Fail the model at fault. All its requests fail, present and future."""


class DeviceModels:
    """The users of a device. It knows which models have failed, loads them again after
    a pause, and gives up those that fail again and again.

    `recovery` is the lock of the thread that starts a process or loads models again.
    The lock of the device guards `failures`.
    """

    def __init__(self, device: LinkedDevice) -> None:
        self._device = device
        self._users: list[DeviceUser] = []
        self.failures = FailureCounts()
        #: Models that have failed, and the earliest time to load them again. A pause
        #: that follows from `failures` may be longer.
        self._resting: dict[str, float] = {}
        self.recovery = threading.RLock()

    @property
    def users(self) -> tuple[DeviceUser, ...]:
        return tuple(self._users)

    def register(self, user: DeviceUser) -> None:
        self._users.append(user)

    def unregister(self, user: DeviceUser) -> None:
        if user in self._users:
            self._users.remove(user)

    def user_of(self, replica: int) -> DeviceUser | None:
        """Return the user to which a replica on the device belongs."""
        users = (
            u for u in self.users if u.run_limit(self._device, replica) is not None
        )
        return next(users, None)

    # -- failures

    def loading(self, name: str) -> AbstractContextManager[None]:
        """Mark a model of this name as loading. If the process crashes meanwhile, that
        model may be the cause.
        """
        return self.failures.loading(name)

    def blame(self, how: str) -> Death:
        """Return the death of the process, which ended by a signal of this name or in
        another way. If it died during a run, the model of that run is to blame. If it
        died during two runs, the model is to blame whose runs have not succeeded, and
        none if that does not tell them apart. The caller holds the device's lock.
        """
        report = self._device.report
        running = report.running
        unproven = [r for r in running if not report.has_succeeded(r)]
        # A process that dies while it loads a model has no run that could succeed.
        succeeded = bool(running) and not unproven
        names = [self._name_of(replica) for replica in unproven or running]
        death = self.failures.judge(how, *names, succeeded=succeeded)
        if death.culprit:
            self.rest(death.culprit)
        return death

    def _name_of(self, replica: int) -> str:
        user = self.user_of(replica)
        return f"of replica {replica}" if user is None else user.name

    def give_up(self, death: Death) -> None:
        """Stop loading a model that fails again and again."""
        if not death.is_once_too_often:
            return
        self.failures.forget(death.culprit)
        for user in self.users:
            if user.name == death.culprit:
                times, where = counted(death.times, "time"), self._device.id
                why = f"it has failed {times} in a row on device {where}: {death.text}"
                logger.error("model %r is not loaded again: %s", user.name, why)
                user.fail(ExecutionFailed(why))

    # -- loading again

    def rest(self, name: str, seconds: float = 0.0) -> None:
        """Pause before a failed model is loaded again."""
        self._resting[name] = time.monotonic() + seconds

    def rest_of(self, name: str) -> float:
        """Return the seconds until a failed model is loaded again; 0: it is loaded, or
        may be now.
        """
        if (earliest := self._resting.get(name)) is None:
            return 0.0
        return max(self.failures.pause(name), earliest - time.monotonic())

    def reload(self) -> None:
        """Load the models on a new process. The caller holds `recovery`."""
        for user in self.users:
            if not self.rest_of(user.name):
                self._reload(user)

    @property
    def is_to_resume(self) -> bool:
        """Return whether the pause of a failed model is over."""
        is_ready = self._device.state is DeviceState.READY
        return is_ready and any(not self.rest_of(name) for name in tuple(self._resting))

    def resume(self) -> None:
        """Load again the models whose pause is over. Blocks meanwhile.

        Raises the error that prevents it.
        """
        with self.recovery:
            if self._device.state is not DeviceState.READY:
                return
            for name in tuple(self._resting):
                if self.rest_of(name):
                    continue
                self._resting.pop(name, None)
                for user in self.users:
                    if user.name == name:
                        self._reload(user)

    def _reload(self, user: DeviceUser) -> None:
        self._resting.pop(user.name, None)
        try:
            user.reload(self._device)
        except (DeviceLost, DeviceClosed):
            raise
        except OSError:
            self.rest(user.name, RELOAD_PAUSE)
            raise
        except EngineError as error:
            # The traceback helps only if the fault is ours.
            ours = isinstance(error, EngineBug)
            text = "failed to load model %r again on device %s: %s"
            logger.error(text, user.name, self._device.id, error, exc_info=ours)
            if isinstance(error, InvalidModel):  # loading it again cannot succeed
                user.fail(ExecutionFailed(str(error)))
            else:  # the memory may suffice later
                self.rest(user.name, RELOAD_PAUSE)

    def __repr__(self) -> str:
        return f"<DeviceModels {[user.name for user in self._users]}>"
