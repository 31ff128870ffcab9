"""`Device`: one attached device and its device process.

The owner of a device holds its claim (engine/devices/device_lock.py), starts the
process, feeds it over a link (engine/devices/linked_device.py) and lets other processes
join.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Protocol

from engine.devices.back_off import BackOff
from engine.devices.connection import Connection
from engine.devices.device_launch import STOP_TIMEOUT, LaunchedProcess, Launcher
from engine.devices.device_lock import address_of
from engine.devices.device_state import DeviceState
from engine.devices.linked_device import LinkedDevice
from engine.devices.python_process import PythonOptions
from engine.devices.session_lease import SessionLease
from engine.errors import (
    DeviceClosed,
    DeviceFailed,
    DeviceLost,
    EngineBug,
    EngineError,
    ExecutionFailed,
    InvalidModel,
    counted,
)
from engine.faults import DeviceFault
from engine.run_failures import Death, FailureCounts, RunFailure, too_long
from engine.transport import control
from engine.transport.control import Message
from engine.transport.held_socket import HeldSocket
from engine.transport.link import RUNNING, SUCCEEDED

logger = logging.getLogger(__name__)

#: Seconds a device process may take to start and answer for the first time.
START_TIMEOUT = 60.0
#: Seconds that a run may take to end after it was told to.
RUN_GRACE = 5.0
#: Seconds a device process may take to answer a ping, by default.
PING_TIMEOUT = 10.0


class DeviceUser(Protocol):
    """Owner of models on a device (a model runner)."""

    @property
    def name(self) -> str: ...

    def reload(self, device: Device) -> None:
        """Load the models again, because the device has a new process. Raises
        EngineError.
        """

    def run_limit(self, device: Device, replica: int) -> float | None:
        """Return the time limit in seconds of a run of this replica (0: none); None if
        the replica belongs to another user.
        """

    @property
    def is_warming_up(self) -> bool:
        """Return whether the model is not served yet. Its first failed run then fails
        the model.
        """

    def fail_started(self, device: Device, error: EngineError) -> None:
        """Fail the requests that a run on this device has taken."""

    def fail(self, error: EngineError) -> None:
        """Fail the model at fault. All its requests fail, present and future."""


class Device(LinkedDevice):
    """An attached device (Model Runtime: `Device`). `DeviceManager` makes it.

    `threads` returns the threads that a graph may use if it is loaded now. `spin_us` is
    how long the device process polls for the next request before it sleeps.
    Thread-safe. Close the device, or leave its `with` block, to detach it: the process
    ends and the device is free. A forked child cannot use the device (WrongProcess) and
    does not keep it attached. Closing it in the child does not affect the parent.
    """

    def __init__(
        self,
        units: Sequence[str],
        claims: Sequence[socket.socket],
        threads: Callable[[], int],
        providers: Sequence[str] = ("CPUExecutionProvider",),
        spin_us: int = 0,
        ipu_version: int = -1,
        python: PythonOptions | None = None,
        ping_timeout: float = PING_TIMEOUT,
    ) -> None:
        super().__init__("+".join(units), spin_us)
        #: How to start the process of a Python model. None: the device runs ONNX
        #: graphs.
        self.python = python
        self.units = tuple(units)
        self._share = threads
        self.providers = tuple(providers)
        self.ipu_version = ipu_version
        self.lease = SessionLease()
        self._claims = tuple(claims)
        self.address = address_of(self.units[0])
        self._launcher = Launcher(
            self.units[0], self.address, self._claims, spin_us, python, threads
        )
        self._runners: list[DeviceUser] = []
        self._on_lost: list[Callable[[Device], None]] = []
        self._on_wanted: Callable[[], None] | None = None
        self._on_close: list[Callable[[Device], None]] = []
        self._lost_by: Death | DeviceFault | None = None
        self._failures = FailureCounts()
        #: Models that have failed. They are loaded again after a pause.
        self._resting: set[str] = set()
        #: The start of the run that was last told to end, as the process reported it.
        self._told_to_end = 0
        self._killed_for = ""
        #: Whether other processes may run something on the present process.
        self._is_shared = False
        #: Replicas whose requests were all cancelled.
        self._cancelled_runs: set[int] = set()
        # A process that takes longer to answer is killed.
        self.ping_timeout = ping_timeout
        self._back_off = BackOff()
        self._recovering = threading.RLock()
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        logger.info("device %s is attached: process %s", self.id, self.pid)

    # -- properties

    @property
    def num_units(self) -> int:
        """Return the number of pool units of the device (Model Runtime: number of
        IPUs).
        """
        return len(self.units)

    @property
    def threads(self) -> int:
        """Return the threads for a graph that is loaded now.

        Graphs that were loaded earlier keep their threads.
        """
        return self._share()

    @property
    def pid(self) -> int | None:
        """Return the process id of the device process; None if there is none."""
        return self._launcher.pid

    @property
    def runners(self) -> tuple[DeviceUser, ...]:
        return tuple(self._runners)

    # -- talking to its process

    def check_responsive(self) -> bool:
        """Return whether the process answers within `ping_timeout` seconds. Kill it if
        it does not. Blocks meanwhile.

        Callers that wait long for the process call this from time to time. The process
        answers pings while it runs programs.
        """
        self.origin.check("Device")
        if self.state is not DeviceState.READY:
            return False
        process, ping_timeout = self._launcher.process, self.ping_timeout
        if ping_timeout <= 0:
            return True
        try:
            self._ask_state(ping_timeout)
        except TimeoutError:
            # The process may have died meanwhile, and another one may have started.
            if self._is_present(process):
                self.end_process(f"it has not answered a ping for {ping_timeout:g} s")
            return False
        except (DeviceClosed, DeviceLost):
            return False
        return True

    @property
    def watch(self) -> control.Watch | None:
        """Return the watch for callers that wait for the process; None if
        `ping_timeout` is 0.
        """
        if self.ping_timeout <= 0:
            return None
        return control.Watch(self.ping_timeout / 2, self._assure)

    # -- for channels and runners

    def call(
        self, message: Message, fds: Sequence[int] = (), timeout: float | None = None
    ) -> Message:
        """Send a control message to the process and return its answer. Raises the
        errors of `ask`.
        """
        answer, answer_fds = self.ask(message, fds, timeout)
        control.close_all(answer_fds)
        return answer

    def ask(
        self, message: Message, fds: Sequence[int] = (), timeout: float | None = None
    ) -> tuple[Message, list[int]]:
        """Send a control message to the process. Return its answer and the descriptors
        beside it, which the caller owns.

        Raises the error in the answer, TimeoutError after `timeout` seconds,
        DeviceClosed, and DeviceLost if the process dies or hangs meanwhile.
        """
        self.origin.check("Device")
        self._refuse_if_closed()
        process = self._launcher.process
        try:
            return control.call(self.address, message, fds, timeout, self.watch)
        except DeviceLost as error:
            # A dying process closes its sockets one after the other. A caller that
            # tries again must not find the process alive through another socket.
            death = self._death_of(process)
            self._refuse_if_closed()
            if self._is_present(process):  # this caller notices the death first
                raise self._loss(death) from error
            raise self.loss() from error

    def invite(self) -> socket.socket:
        """Return a door to the process, for another process:

        `JoinedDevice` feeds the device through it. A door leads only to the present
        process of the device. It does not allow loading, unloading or stopping. Raises
        the errors of `ask`.
        """
        mine, theirs = HeldSocket.pair()
        try:
            self.call({"op": "invite"}, [theirs.fileno()], STOP_TIMEOUT)
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
        self._is_shared = True
        return mine

    def register(self, runner: DeviceUser) -> None:
        self._runners.append(runner)

    def unregister(self, runner: DeviceUser) -> None:
        if runner in self._runners:
            self._runners.remove(runner)

    # -- life and death

    def ping(self, timeout: float = 5.0) -> Message:
        """Ask the process for its state. Raises DeviceLost if it does not answer in
        time.
        """
        self.origin.check("Device")
        try:
            return self._ask_state(timeout)
        except TimeoutError as error:
            raise DeviceLost(
                f"device {self.id} has not answered a ping for {timeout:g} s"
            ) from error

    def _ask_state(self, timeout: float) -> Message:
        """Ping as `ping` does, but raise TimeoutError if the process does not answer in
        time.
        """
        self._refuse_if_closed()
        answer, fds = control.call(self.address, {"op": "ping"}, (), timeout)
        control.close_all(fds)
        return answer

    def kill(self, why: str, culprit: str = "") -> None:
        """End a process that hangs. Its requests fail with DeviceLost. `culprit` is the
        model whose run hangs. It is loaded again after a pause.
        """
        self.origin.check("Device")
        self._killed_for = why
        if culprit:
            self._resting.add(culprit)
        self._launcher.kill()
        self._lose()

    def end_process(self, why: str) -> None:
        """Kill the process. Callable from any thread. If an event loop drives the
        device, the loop handles the death in its own thread.
        """
        self._killed_for = why
        self._launcher.end(kill=True)
        if not self._blocking.adopted:
            self._lose()

    @property
    def is_running(self) -> bool:
        """Return whether the device may be running something. That may be requests in
        flight, or work of unloaded models and other clients.
        """
        return self.in_flight > 0 or self._is_shared or bool(self._cancelled_runs)

    def cancel_run(self, replica: int) -> None:
        """Cancel all requests of this replica, so that its run ends."""
        self._cancelled_runs.add(replica)

    def judge_run(self, status: Message) -> Callable[[], None] | None:
        """Check in the answer of a `ping` whether the present run exceeds its time
        limit.

        For the thread that drives the device.

        If the run exceeds its limit, returns a function for another thread to call. The
        function tells the process to end the run, whose requests fail. If that does not
        help, or the run belongs to a Python model, the process is ended and restarted
        with its models. A model that is warming up, or has failed too often in a row
        (engine/run_failures.py), fails for good.
        """
        if self.python is not None and int(status["unwanted_ns"]) > RUN_GRACE * 1e9:
            self.kill("a run has not ended although all its clients have left")
            return None
        replica, seconds = int(status["running"]), int(status["running_ns"]) / 1e9
        if self.state is not DeviceState.READY:
            return None
        if not replica:
            self._cancelled_runs.clear()
            return None
        runner = self._runner_of(replica)
        limit = 0.0  # an unloaded model's requests are abandoned
        if runner is not None:
            limit = runner.run_limit(self, replica) or 0.0
            if not limit or seconds <= limit:
                return None
            since = int(status["running_since"])
            if replica not in self._cancelled_runs:
                return self._end_run(runner, replica, since, seconds, limit)
        if replica in self._cancelled_runs and seconds > limit + RUN_GRACE:
            self.kill(f"a cancelled run is still running after {seconds:.1f} s")
        return None

    def _end_run(
        self, runner: DeviceUser, replica: int, since: int, seconds: float, limit: float
    ) -> Callable[[], None] | None:
        """End a run that takes longer than it may: see `judge_run`."""
        why = too_long(limit)
        is_stuck = self.python is not None or seconds > limit + RUN_GRACE
        if since != self._told_to_end:
            self._told_to_end = since
            failure = RunFailure.STUCK if is_stuck else RunFailure.TOO_LONG
            with self.lock:
                succeeded = self._has_succeeded(replica)
                times = self._failures.count(failure, runner.name, succeeded=succeeded)
            logger.warning("%r: %s; its requests fail", runner, why)
            death = Death(why, runner.name, times)
            if self.python is None and (
                runner.is_warming_up or death.is_once_too_often
            ):
                if death.is_once_too_often:
                    why += f", {counted(times, 'time')} in a row"
                    self._failures.forget(runner.name)
                self.cancel_run(replica)
                runner.fail(ExecutionFailed(why))
                return None
        if is_stuck:
            runner.fail_started(self, ExecutionFailed(why))
            self._give_up(Death(why, runner.name, self._failures.times(runner.name)))
            self.kill(why, culprit=runner.name)
            return None
        message: Message = {"op": "end_run", "replica": replica, "since": since}
        return partial(self._tell, {**message, "why": why})

    def _tell(self, message: Message) -> None:
        self.call(message, timeout=STOP_TIMEOUT)

    def _runner_of(self, replica: int) -> DeviceUser | None:
        runners = (r for r in self.runners if r.run_limit(self, replica) is not None)
        return next(runners, None)

    def _has_succeeded(self, replica: int) -> bool:
        """Return whether a run of a replica has succeeded since its last failure.

        The caller holds the lock.
        """
        connection = self._connection
        if connection is None:
            return False
        return bool(connection.link.words[SUCCEEDED] >> (replica & 63) & 1)

    def _assure(self) -> None:
        """Raise DeviceLost if `check_responsive` finds the device lost."""
        if not self.check_responsive():
            self._refuse_if_closed()
            if self.state is DeviceState.READY:  # this caller notices the death first
                raise self._loss(self._death_of(self._launcher.process))
            raise self.loss()

    def _is_present(self, process: LaunchedProcess) -> bool:
        """Return whether `process` is still the device's process, as far as this object
        knows.
        """
        return self.state is DeviceState.READY and process is self._launcher.process

    def loading(self, name: str) -> AbstractContextManager[None]:
        """Mark a model of this name as loading. If the process crashes meanwhile, that
        model may be the cause.
        """
        return self._failures.loading(name)

    def _death_of(self, process: LaunchedProcess) -> Death:
        """Find out how an ending process died and which model is to blame. The first
        caller finds out, and does so before the facts about the run are dropped.
        """
        with self.lock:
            death = process.judged
            if death is None:
                process.end(kill=True)
                death = Death(self._killed_for)
                if not self._killed_for:
                    death = self._judge(process)
                process.judged = death
            return death

    def _judge(self, process: LaunchedProcess) -> Death:
        """Find out how a process died by itself and which model is to blame. If the
        process died during a run, that run's model is to blame. The caller holds the
        lock.
        """
        connection, name, succeeded = self._connection, "", False
        replica = connection.link.words[RUNNING] if connection is not None else 0
        if replica:
            runner = self._runner_of(replica)
            name = f"of replica {replica}" if runner is None else runner.name
            succeeded = self._has_succeeded(replica)
        death = self._failures.judge(process.death, name, succeeded=succeeded)
        if death.culprit:
            self._resting.add(death.culprit)
        return death

    def on_lost(self, callback: Callable[[Device], None]) -> None:
        """Call back when the process dies, in the thread that notices the death."""
        self._on_lost.append(callback)

    def on_wanted(self, callback: Callable[[], None]) -> None:
        """Call `callback` if a request needs the device while it is lost. The request's
        thread makes the call.
        """
        self._on_wanted = callback

    def on_close(self, callback: Callable[[Device], None]) -> None:
        """Call `callback` before the device is closed, in the thread that closes it."""
        self._on_close.append(callback)

    @property
    def lost_by(self) -> str | None:
        """Return why the device was last lost; None if it never was."""
        return None if self._lost_by is None else str(self._lost_by)

    @property
    def back_off(self) -> float:
        """Return seconds to wait before the next `recover`."""
        return self._back_off.seconds

    def recover(self, *, by_hand: bool = False) -> None:
        """Start a new process and load the models again. Blocks meanwhile.

        `by_hand` also recovers a device that has FAILED. Several threads may call this,
        even if the device is not lost. Raises the error that prevents the start. Then
        try again after `back_off` seconds.
        """
        self.origin.check("Device")
        with self._recovering:
            if by_hand and self.state is DeviceState.FAILED:
                self.state = DeviceState.LOST
            if self.state is not DeviceState.LOST:
                return
            self._back_off.begin()
            self._start()
            self.restarts += 1
            logger.info("device %s restarted: process %s", self.id, self.pid)
            for runner in self.runners:
                if not self.rest_of(runner.name):
                    self._reload(runner)
            self._back_off.succeed()

    def _reload(self, runner: DeviceUser) -> None:
        self._resting.discard(runner.name)
        try:
            runner.reload(self)
        except (DeviceLost, DeviceClosed):
            raise
        except EngineError as error:
            # The traceback helps only if the fault is ours.
            ours = isinstance(error, EngineBug)
            text = "failed to load %r again on device %s: %s"
            logger.error(text, runner, self.id, error, exc_info=ours)
            if isinstance(error, InvalidModel):  # loading it again cannot succeed
                runner.fail(ExecutionFailed(str(error)))

    def rest_of(self, name: str) -> float:
        """Return the seconds until a failed model is loaded again; 0: it is loaded, or
        may be now.
        """
        return self._failures.pause(name) if name in self._resting else 0.0

    @property
    def is_to_resume(self) -> bool:
        """Return whether the pause of a failed model is over."""
        if self.state is not DeviceState.READY or not self._resting:
            return False
        return any(not self.rest_of(name) for name in tuple(self._resting))

    def resume(self) -> None:
        """Load again the models whose pause is over. Blocks meanwhile.

        Raises the error that prevents it.
        """
        with self._recovering:
            if self.state is not DeviceState.READY:
                return
            for name in tuple(self._resting):
                if self.rest_of(name):
                    continue
                self._resting.discard(name)
                for runner in self.runners:
                    if runner.name == name:
                        self._reload(runner)

    def close(self, *, kill: bool = False) -> None:
        """Detach: fail the requests in flight, end the process, free the device.

        `kill` ends the process immediately, because it does not answer.
        """
        if self.origin.left:
            self._abandon()
            return
        with contextlib.suppress(IndexError):
            while True:
                self._on_close.pop()(self)
        with self.lock:
            if self.state is DeviceState.CLOSED:
                return
            # A process in the middle of a batch would first finish it, for no client.
            idle = self.state is DeviceState.READY and not self.in_flight and not kill
            # From here on `recover` and `_start` refuse, even a call that has already
            # begun.
            self.state = DeviceState.CLOSED
        for channel in list(self._channels.values()):
            channel.fail_all(DeviceClosed(f"device {self.id} was closed"))
        if idle:
            try:
                control.close_all(
                    control.call(self.address, {"op": "stop"}, (), STOP_TIMEOUT)[1]
                )
            except (EngineError, OSError):
                idle = False  # the process has died or hangs
        self._launcher.end(kill=not idle)
        # Wait for a `recover` that has begun. It sees CLOSED and ends its process.
        with self._recovering:
            self._drop_link()
        os.close(self._result_fd)
        for claim in self._claims:
            claim.close()
        logger.info("device %s is detached", self.id)

    def _abandon(self) -> None:
        """Close the descriptors of a forked child's copy, and nothing else."""
        if self.state is DeviceState.CLOSED:
            return
        self.state = DeviceState.CLOSED
        self._launcher.abandon()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        os.close(self._result_fd)
        for claim in self._claims:
            claim.close()

    def _start(self) -> None:
        """Start the process and link up. Raises DeviceClosed if the device was closed
        meanwhile.
        """
        self._cancelled_runs.clear()  # a new process has had no runs
        self._is_shared = False
        process = self._launcher.start()
        self._killed_for = ""

        def look() -> None:
            if not process.has_worked():
                raise DeviceLost(
                    f"device {self.id} failed to start: process {process.pid} is "
                    "idle and does not respond"
                )

        limit = START_TIMEOUT if self.python is None else self.python.start_timeout

        watch = None
        if self.ping_timeout > 0:
            watch = control.Watch(max(self.ping_timeout, PING_TIMEOUT), look)
        try:
            self._refuse_if_closed()
            sock = control.connect(self.address, limit)
            connection = Connection(sock, self._result_fd, watch)
            with self.lock:
                self._connection = connection  # `close` drops it
                self._refuse_if_closed()
                self.state = DeviceState.READY
        except BaseException as error:
            process.end(kill=True)
            said = process.last_words()
            if said and isinstance(error, DeviceLost):
                raise DeviceLost(f"device {self.id} failed to start: {said}") from error
            raise

    def _refuse_if_closed(self) -> None:
        if self.state is DeviceState.CLOSED:
            raise DeviceClosed(f"device {self.id} is closed")

    def _lose(self) -> None:
        # The stack runs all its callbacks, from last to first, even if some of them
        # raise.
        with contextlib.ExitStack() as ends, self.lock:
            connection = self._connection
            if self.state is not DeviceState.READY or connection is None:
                return
            fault = connection.fault_report()
            curable = fault is None or fault.resettable
            self.state = DeviceState.LOST if curable else DeviceState.FAILED
            for callback in reversed(self._on_lost):
                ends.callback(callback, self)
            ends.callback(self._blocking.tell)
            process = self._launcher.process  # another one may start soon
            death = Death("its process died")
            try:
                death = self._death_of(process)
            finally:
                self._lost_by = fault or death
                error = self.loss()
                ends.callback(self._bequeath)
                ends.callback(self._give_up, death)
                ends.callback(logger.warning, "%s", error)
                self._fail_all(error)

    def _give_up(self, death: Death) -> None:
        """Stop loading a model that fails again and again."""
        if not death.is_once_too_often:
            return
        self._failures.forget(death.culprit)
        for runner in self.runners:
            if runner.name == death.culprit:
                times = counted(death.times, "time")
                why = (
                    f"it has failed {times} in a row on device {self.id}: {death.text}"
                )
                logger.error("%r is not loaded again: %s", runner, why)
                runner.fail(ExecutionFailed(why))

    def want(self) -> DeviceLost:
        """Return the error for a request that needs the lost device."""
        if self._on_wanted is not None and self.state is DeviceState.LOST:
            self._on_wanted()
        return self.loss()

    def loss(self) -> DeviceLost:
        """Return the error of all requests until the device has a process again."""
        why = self._lost_by or Death("it has not started yet")
        if isinstance(why, DeviceFault):
            return DeviceFailed(f"device {self.id} failed: {why}", why)
        return self._loss(why)

    def _loss(self, death: Death) -> DeviceLost:
        error = DeviceLost(f"device {self.id} was lost: {death}")
        error.culprit = death.culprit
        return error

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Device {self.id} {self.state.value}, process {self.pid}, "
            f"{self.threads} threads, {len(self._runners)} models, "
            f"{self.in_flight} in flight, {self.restarts} restarts>"
        )
