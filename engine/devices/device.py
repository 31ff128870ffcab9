"""`Device`: one attached device and its device process.

The owner of a device holds its claim (engine/devices/device_lock.py), starts the
process (engine/devices/owned_process.py), feeds it over a link
(engine/devices/linked_device.py), ends runs that take too long
(engine/devices/run_limits.py), loads its models again
(engine/devices/device_models.py) and lets other processes join.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from engine.devices.device_launch import LaunchedProcess
from engine.devices.device_lock import address_of
from engine.devices.device_models import DeviceModels
from engine.devices.device_state import STOP_TIMEOUT, DeviceState
from engine.devices.linked_device import LinkedDevice
from engine.devices.owned_process import PING_TIMEOUT, OwnedProcess
from engine.devices.python_options import PythonOptions
from engine.devices.run_limits import RunLimits
from engine.errors import DeviceClosed, DeviceLost
from engine.run_failures import Death
from engine.transport.control import A
from engine.transport.device_messages import Done, Invite, Status
from engine.transport.held_socket import HeldSocket
from engine.transport.messages import Message, close_all

logger = logging.getLogger(__name__)

#: Seconds to wait after the first failed start. Each further one doubles the wait, up
#: to the longest.
FIRST_PAUSE = 0.05
LONGEST_PAUSE = 10.0


def pause_after(failures: int) -> float:
    """Return the seconds to wait after so many failed starts in a row."""
    if not failures:
        return 0.0
    return min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures - 1, 1000))


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
        self.providers = tuple(providers)
        self.ipu_version = ipu_version
        # A process that takes longer to answer is killed.
        self.ping_timeout = ping_timeout
        #: What plugins keep with the device, by class.
        self.kept: dict[type, Any] = {}
        self._share = threads
        self._claims = tuple(claims)
        self._on_lost: list[Callable[[Device], None]] = []
        self._on_wanted: Callable[[], None] | None = None
        self._on_close = contextlib.ExitStack()
        self._failed_starts = 0  # in a row
        name = self.units[0]
        address = address_of(name)
        launch = partial(
            LaunchedProcess, name, address, self._claims, spin_us, python, threads
        )
        #: The parts of the device. `models` are its models, `process` is the control of
        #: its process, and `limits` ends runs that take too long.
        self.models = DeviceModels(self)
        self.process = OwnedProcess(
            self,
            self.models,
            address,
            launch,
            None if python is None else python.start_timeout,
        )
        self.limits = RunLimits(
            self, self.models, self.process, is_python=python is not None
        )
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        logger.info("device %s is attached: process %s", self.id, self.pid)

    # -- properties

    @property
    def threads(self) -> int:
        """Return the threads for a graph that is loaded now.

        Graphs that were loaded earlier keep their threads.
        """
        return self._share()

    @property
    def pid(self) -> int | None:
        """Return the process id of the device process; None if there is none."""
        return self.process.pid

    @property
    def lost_by(self) -> str | None:
        """Return why the device was last lost; None if it never was."""
        why = self.process.lost_by
        return None if why is None else str(why)

    @property
    def back_off(self) -> float:
        """Return seconds to wait before the next `recover`."""
        return pause_after(self._failed_starts)

    # -- asking its process

    def check_responsive(self) -> bool:
        """Return whether the process answers within `ping_timeout` seconds. Kill it if
        it does not. Blocks meanwhile.

        Callers that wait long for the process call this from time to time. The process
        answers pings while it runs programs.
        """
        return self.process.check_responsive()

    def call(
        self,
        message: Message,
        kind: type[A],
        fds: Sequence[int] = (),
        timeout: float | None = None,
    ) -> A:
        """Send a control message to the process and return its answer. Raises the
        errors of `ask`.
        """
        answer, answer_fds = self.process.ask(message, kind, fds, timeout)
        close_all(answer_fds)
        return answer

    def ask(
        self,
        message: Message,
        kind: type[A],
        fds: Sequence[int] = (),
        timeout: float | None = None,
    ) -> tuple[A, list[int]]:
        """Send a control message to the process. Return its answer and the descriptors
        beside it, which the caller owns.

        Raises the error in the answer, TimeoutError after `timeout` seconds,
        DeviceClosed, and DeviceLost if the process dies or hangs meanwhile.
        """
        return self.process.ask(message, kind, fds, timeout)

    def ping(self, timeout: int | float = 5.0) -> Status:
        """Ask the process for its state. Raises DeviceLost if it does not answer in
        time.
        """
        self.fork_guard.check("Device")
        try:
            return self.process.ping(timeout)
        except TimeoutError as error:
            raise DeviceLost(
                f"device {self.id} has not answered a ping for {timeout:g} s"
            ) from error

    def invite(self) -> socket.socket:
        """Return a door to the process, for another process:

        `JoinedDevice` feeds the device through it. A door leads only to the present
        process of the device. It does not allow loading, unloading or stopping. Raises
        the errors of `ask`.
        """
        mine, theirs = HeldSocket.pair()
        try:
            self.call(Invite(), Done, [theirs.fileno()], STOP_TIMEOUT)
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
        self.limits.share()
        return mine

    # -- life and death

    def kill(self, why: str) -> None:
        """End a process that hangs. Its requests fail with DeviceLost."""
        self.process.kill(why)

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
        self._on_close.callback(callback, self)

    def recover(self, *, by_hand: bool = False) -> None:
        """Start a new process and load the models again. Blocks meanwhile.

        `by_hand` also recovers a device that has FAILED. Several threads may call this,
        even if the device is not lost. Raises the error that prevents the start. Then
        try again after `back_off` seconds.
        """
        self.fork_guard.check("Device")
        with self.models.recovery:
            if by_hand and self.state is DeviceState.FAILED:
                self.state = DeviceState.LOST
            if self.state is not DeviceState.LOST:
                return
            self._failed_starts += 1  # until it has succeeded
            self._start()
            self.restarts += 1
            logger.info("device %s restarted: process %s", self.id, self.pid)
            self.models.reload()
            self._failed_starts = 0

    def _start(self) -> None:
        """Start the process and link up. Raises DeviceClosed if the device was closed
        meanwhile.
        """
        self.limits.begin()
        self.process.start()

    def close(self, *, kill: bool = False) -> None:
        """Detach: fail the requests in flight, end the process, free the device.

        `kill` ends the process immediately, because it does not answer.
        """
        if self.fork_guard.left:
            self._abandon()
            return
        self._on_close.pop_all().close()
        with self.lock:
            if self.state is DeviceState.CLOSED:
                return
            # A process in the middle of a batch would first finish it, for no client.
            idle = self.state is DeviceState.READY and not self.in_flight and not kill
            # From here on `recover` and `_start` refuse, even a call that has already
            # begun.
            self.state = DeviceState.CLOSED
        for channel in self.channels.all:
            channel.fail_all(DeviceClosed(f"device {self.id} was closed"))
        self.process.stop(kill=not idle)
        # Wait for a `recover` that has begun. It sees CLOSED and ends its process.
        with self.models.recovery:
            self._drop_link(closes=True)
        for claim in self._claims:
            claim.close()
        logger.info("device %s is detached", self.id)

    def _abandon(self) -> None:
        """Close the descriptors of a forked child's copy, and nothing else."""
        if self.state is DeviceState.CLOSED:
            return
        self.state = DeviceState.CLOSED
        self.process.abandon()
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        os.close(self._result_fd)
        for claim in self._claims:
            claim.close()

    def lose(self) -> None:
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
            ends.callback(self.blocking.notify)
            death = Death("its process died")
            try:
                death = self.process.death()
            finally:
                error = self.process.lost(fault or death)
                ends.callback(self.channels.hand_over)
                ends.callback(self.models.give_up, death)
                ends.callback(logger.warning, "%s", error)
                self._fail_all(error)

    def want(self) -> DeviceLost:
        """Return the error for a request that needs the lost device."""
        if self._on_wanted is not None and self.state is DeviceState.LOST:
            self._on_wanted()
        return self.process.loss()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Device {self.id} {self.state.value}, process {self.pid}, "
            f"{self.threads} threads, {len(self.models.users)} models, "
            f"{self.in_flight} in flight, {self.restarts} restarts>"
        )
