"""`OwnedProcess`: the process of an attached device, from its owner's view."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from engine.devices.connection import DeviceConnection
from engine.devices.device_launch import LaunchedProcess
from engine.devices.device_models import DeviceModels
from engine.devices.device_state import STOP_TIMEOUT, DeviceState
from engine.devices.linked_device import LinkedDevice
from engine.errors import DeviceClosed, DeviceFailed, DeviceLost, EngineError
from engine.faults import DeviceFault
from engine.run_failures import Death
from engine.transport import control
from engine.transport.control import A
from engine.transport.device_messages import Done, Ping, Status, Stop
from engine.transport.messages import Message, close_all

#: Seconds a device process may take to start and answer for the first time.
START_TIMEOUT = 60.0
#: Seconds a device process may take to answer a ping, by default.
PING_TIMEOUT = 10.0


class OwnedProcess:
    """Starts the process of a device, asks it, ends it, and finds out how it died.

    A device has one process after the other, all started by `launch` and answering at
    `address`. The first answer of a process may take `start_timeout` seconds.
    Thread-safe, except for `start`.
    """

    def __init__(
        self,
        device: LinkedDevice,
        models: DeviceModels,
        address: str,
        launch: Callable[[], LaunchedProcess],
        start_timeout: float | None = None,
    ) -> None:
        self.address = address
        #: Why the device was last lost; None if it never was.
        self.lost_by: Death | DeviceFault | None = None
        self._device = device
        self._models = models
        self._launch = launch
        self._latest: LaunchedProcess | None = None
        self._start_timeout = start_timeout
        self._killed_for = ""

    @property
    def pid(self) -> int | None:
        """Return the process id; None if there is no process."""
        latest = self._latest
        return None if latest is None or latest.has_ended else latest.pid

    @property
    def _process(self) -> LaunchedProcess:
        """Return the latest process, which may have ended."""
        assert self._latest is not None, "none has been started"
        return self._latest

    # -- asking

    def ask(
        self, message: Message, kind: type[A], fds: Sequence[int], timeout: float | None
    ) -> tuple[A, list[int]]:
        """Send a control message to the process: see `Device.ask`."""
        device = self._device
        device.fork_guard.check("Device")
        device.refuse_if_closed()
        process = self._process
        try:
            return control.call(
                self.address, message, kind, fds, timeout, self.liveness
            )
        except DeviceLost as error:
            # A dying process closes its sockets one after the other. A caller that
            # tries again must not find the process alive through another socket.
            death = self._death_of(process)
            device.refuse_if_closed()
            if self._is_present(process):  # this caller notices the death first
                raise self._loss_by(death) from error
            raise self.loss() from error

    def ping(self, timeout: float) -> Status:
        """Ask the process for its state. Raises TimeoutError if it does not answer in
        time.
        """
        self._device.refuse_if_closed()
        answer, fds = control.call(self.address, Ping(), Status, (), timeout)
        close_all(fds)
        return answer

    def check_responsive(self) -> bool:
        """Return whether the process answers in time. Kill it if it does not: see
        `Device.check_responsive`.
        """
        device = self._device
        device.fork_guard.check("Device")
        if device.state is not DeviceState.READY:
            return False
        process, ping_timeout = self._process, device.ping_timeout
        if ping_timeout <= 0:
            return True
        try:
            self.ping(ping_timeout)
        except TimeoutError:
            # The process may have died meanwhile, and another one may have started.
            if self._is_present(process):
                self.kill_and_wait(f"it has not answered a ping for {ping_timeout:g} s")
            return False
        except (DeviceClosed, DeviceLost):
            return False
        except OSError:
            pass  # we lack a descriptor, which says nothing of the device
        return True

    @property
    def liveness(self) -> control.LivenessCheck | None:
        """Return the liveness check for callers that wait for the process; None if
        `ping_timeout` is 0.
        """
        if self._device.ping_timeout <= 0:
            return None
        return control.LivenessCheck(self._device.ping_timeout / 2, self._assure)

    def _assure(self) -> None:
        """Raise DeviceLost if `check_responsive` finds the device lost."""
        if not self.check_responsive():
            self._device.refuse_if_closed()
            if self._device.state is DeviceState.READY:
                # This caller notices the death first.
                raise self._loss_by(self.death())
            raise self.loss()

    # -- starting and ending

    def start(self) -> None:
        """Start the process and connect the device to it. Raises DeviceClosed if the
        device was closed meanwhile.
        """
        # The thread that noticed the loss may still be ending the old process.
        self._stop(kill=True)
        device = self._device
        process = self._latest = self._launch()
        self._killed_for = ""
        limit = START_TIMEOUT if self._start_timeout is None else self._start_timeout
        liveness = None
        if device.ping_timeout > 0:
            liveness = control.LivenessCheck(
                max(device.ping_timeout, PING_TIMEOUT), self._has_to_work(process)
            )
        try:
            device.refuse_if_closed()
            sock = control.connect(self.address, limit)
            device.connect(DeviceConnection(sock, device.fileno(), liveness))
        except BaseException as error:
            process.stop(kill=True)
            said = process.last_words()
            if said and isinstance(error, DeviceLost):
                raise DeviceLost(
                    f"device {device.id} failed to start: {said}"
                ) from error
            raise

    def _has_to_work(self, process: LaunchedProcess) -> Callable[[], None]:
        """Return a function that raises DeviceLost if a starting process is idle."""

        def look() -> None:
            if not process.has_worked():
                raise DeviceLost(
                    f"device {self._device.id} failed to start: process {process.pid} "
                    "is idle and does not respond"
                )

        return look

    def kill(self, why: str, culprit: str = "") -> None:
        """End a process that hangs: see `Device.kill`. `culprit` is the model whose run
        hangs. It is loaded again after a pause.
        """
        self._device.fork_guard.check("Device")
        self._killed_for = why
        if culprit:
            self._models.rest(culprit)
        if self._latest is not None:
            self._latest.kill()
        self._device.lose()

    def kill_and_wait(self, why: str) -> None:
        """Kill the process. Callable from any thread. If an event loop drives the
        device, the loop handles the death in its own thread.
        """
        self._killed_for = why
        self._stop(kill=True)
        if not self._device.blocking.adopted:
            self._device.lose()

    def stop(self, *, kill: bool) -> None:
        """Let the process end by itself, and wait for that. `kill` ends it
        immediately.
        """
        if not kill:
            try:
                _, fds = control.call(self.address, Stop(), Done, (), STOP_TIMEOUT)
                close_all(fds)
            except (EngineError, OSError):
                kill = True  # the process has died or hangs
        self._stop(kill=kill)

    def _stop(self, *, kill: bool) -> None:
        """Wait until the process has ended, if there is one."""
        if self._latest is not None:
            self._latest.stop(kill=kill)

    def abandon(self) -> None:
        """Forget the process in a forked child, because it belongs to the parent."""
        if self._latest is not None:
            self._latest.abandon()

    # -- its death

    def _is_present(self, process: LaunchedProcess) -> bool:
        """Return whether `process` is still the device's process, as far as this object
        knows.
        """
        ready = self._device.state is DeviceState.READY
        return ready and process is self._process

    def death(self) -> Death:
        """Return how the latest process died: see `_death_of`."""
        return self._death_of(self._process)

    def _death_of(self, process: LaunchedProcess) -> Death:
        """Find out how an ending process died and which model is to blame. The first
        caller finds out, and does so before the facts about the run are dropped.
        """
        with self._device.lock:
            return process.judged(self._judge)

    def _judge(self, how: str) -> Death:
        killed_for = self._killed_for
        return Death(killed_for) if killed_for else self._models.blame(how)

    def lost(self, why: Death | DeviceFault) -> DeviceLost:
        """Record why the device was lost. Return the error of its requests."""
        self.lost_by = why
        return self.loss()

    def loss(self) -> DeviceLost:
        """Return the error of all requests until the device has a process again."""
        why = self.lost_by or Death("it has not started yet")
        if isinstance(why, DeviceFault):
            return DeviceFailed(f"device {self._device.id} failed: {why}", why)
        return self._loss_by(why)

    def _loss_by(self, death: Death) -> DeviceLost:
        text = f"device {self._device.id} was lost: {death}"
        return DeviceLost(text, death.culprit)

    def __repr__(self) -> str:
        return f"<OwnedProcess {self.pid} of device {self._device.id}>"
