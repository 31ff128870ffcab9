"""`RunLimits`: the time that runs on a device may take, and the end of longer ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial

from engine.devices.device_models import DeviceModels, DeviceUser
from engine.devices.device_state import STOP_TIMEOUT, DeviceState
from engine.devices.linked_device import LinkedDevice
from engine.devices.owned_process import OwnedProcess
from engine.errors import ExecutionFailed, counted
from engine.run_failures import Death, RunFailure, too_long
from engine.transport.device_messages import Done, EndRun, RunTold, Status

logger = logging.getLogger(__name__)

#: Seconds that a run may take to end after it was told to.
RUN_GRACE = 5.0


class RunLimits:
    """Keeps the runs of an attached device within their time limits.

    `is_python`: the process runs a Python model, which cannot be ended but with it.
    """

    def __init__(
        self,
        device: LinkedDevice,
        models: DeviceModels,
        process: OwnedProcess,
        *,
        is_python: bool,
    ) -> None:
        self._device = device
        self._models = models
        self._process = process
        self._is_python = is_python
        #: The starts of the runs that were told to end, as the process reported them.
        self._told_to_end: set[int] = set()
        #: Replicas whose requests were all cancelled.
        self._cancelled: set[int] = set()
        #: Whether other processes may run something on the present process.
        self._is_shared = False

    def begin(self) -> None:
        """Forget the runs of the last process, because a new one starts."""
        self._cancelled.clear()
        self._told_to_end.clear()
        self._is_shared = False

    def share(self) -> None:
        """Expect runs of other processes from now on."""
        self._is_shared = True

    def cancel(self, replica: int) -> None:
        """Cancel all requests of this replica, so that its run ends."""
        self._cancelled.add(replica)

    @property
    def is_running(self) -> bool:
        """Return whether the device may be running something. That may be requests in
        flight, or work of unloaded models and other clients.
        """
        return self._device.in_flight > 0 or self._is_shared or bool(self._cancelled)

    def judge(self, status: Status) -> Callable[[], None] | None:
        """Check in the answer of a `ping` whether a present run exceeds its time limit.

        For the thread that drives the device.

        If a run exceeds its limit, returns a function for another thread to call. The
        function tells the process to end the run, whose requests fail. If that does not
        help, or the run belongs to a Python model, the process is ended and restarted
        with its models. A model that is warming up, or has failed too often in a row
        (engine/run_failures.py), fails for good.
        """
        unwanted_ns = max((run.unwanted_ns for run in status.runs), default=0)
        if self._is_python and unwanted_ns > RUN_GRACE * 1e9:
            self._process.kill("a run has not ended although all its clients have left")
            return None
        self._told_to_end.intersection_update(run.since for run in status.runs)
        ends: list[Callable[[], None]] = []
        for run in status.runs:
            if self._device.state is not DeviceState.READY:  # killed for the run before
                return None
            end = self._judge_run(run)
            if end is not None:
                ends.append(end)
        if not status.runs and self._device.state is DeviceState.READY:
            self._cancelled.clear()
        return partial(_call_all, ends) if ends else None

    def _judge_run(self, run: RunTold) -> Callable[[], None] | None:
        """Check whether one run exceeds its time limit: see `judge`."""
        replica, seconds = run.replica, run.running_ns / 1e9
        user = self._models.user_of(replica)
        limit = 0.0  # an unloaded model's requests are abandoned
        if user is not None:
            limit = user.run_limit(self._device, replica) or 0.0
            if not limit or seconds <= limit:
                return None
            if replica not in self._cancelled:
                return self._end(user, replica, run.since, seconds, limit)
        if replica in self._cancelled and seconds > limit + RUN_GRACE:
            self._process.kill(
                f"a cancelled run is still running after {seconds:.1f} s"
            )
        return None

    def _end(
        self, user: DeviceUser, replica: int, since: int, seconds: float, limit: float
    ) -> Callable[[], None] | None:
        """End a run that takes longer than it may: see `judge`."""
        why, name = too_long(limit), user.name
        failures = self._models.failures
        is_stuck = self._is_python or seconds > limit + RUN_GRACE
        if since not in self._told_to_end:
            self._told_to_end.add(since)
            failure = RunFailure.STUCK if is_stuck else RunFailure.TOO_LONG
            with self._device.lock:
                succeeded = self._device.report.has_succeeded(replica)
                times = failures.count(failure, name, succeeded=succeeded)
            logger.warning("model %r: %s; its requests fail", name, why)
            death = Death(why, name, times)
            too_often = death.is_once_too_often
            if not self._is_python and (user.is_warming_up or too_often):
                if too_often:
                    why += f", {counted(times, 'time')} in a row"
                    failures.forget(name)
                self.cancel(replica)
                user.fail(ExecutionFailed(why))
                return None
        if is_stuck:
            user.fail_started(self._device, ExecutionFailed(why))
            self._models.give_up(Death(why, name, failures.times(name)))
            self._process.kill(why, culprit=name)
            return None
        return partial(self._tell, EndRun(replica, since, why))

    def _tell(self, message: EndRun) -> None:
        self._device.call(message, Done, timeout=STOP_TIMEOUT)

    def __repr__(self) -> str:
        shared = ", shared" if self._is_shared else ""
        return f"<RunLimits, cancelled: {sorted(self._cancelled)}{shared}>"


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()
