"""Routes to other models that bypass the server. A route is a set of channels from this
process to the replicas of a model. This process joins their devices as any other
process does.

The owner of this process offers a route after a model was called through it, and
withdraws the route when the model changes. The owner decides which models may be
called, loads on demand, and answers requests that do not fit. So a call that cannot use
a route goes through the owner, which is always correct. Calls over a route are recorded
in a log (popgate_python_messages/call_log.py).
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from functools import partial

from engine.devices.device_state import DeviceState
from engine.devices.joined_device import JoinedDevice
from engine.devices.request import Request
from engine.errors import DeadlineExceeded, DeviceLost, EngineError, Invalid
from engine.runner.joined_runner import JoinedRunner
from engine.runner.runner_description import RunnerDescription
from engine.tensor import Array, Tensor
from engine.transport.output_arrays import OutputArrays
from popgate_python_messages.call_log import CallLog, CallRecord
from popgate_python_messages.call_messages import RouteLeft, RouteOffered

_log = logging.getLogger("engine.calls.routes")

_THREAD = "routes"


class CallRoute:
    """The route to one version of a model, as the owner describes it."""

    def __init__(self, offer: RouteOffered) -> None:
        self.number = offer.number
        self.target = offer.model, offer.version
        self.timeout_ns = int(offer.timeout * 1e9)
        self.description = RunnerDescription.from_message(offer.runner)
        self.outputs = frozenset(desc.name for desc in self.description.outputs)
        self.runner: JoinedRunner | None = None
        self.devices: tuple[JoinedDevice, ...] = ()
        #: The number of calls under way, and whether the route refuses new calls.
        self.calls = 0
        self.is_leaving = False

    @property
    def is_usable(self) -> bool:
        """Return whether any replica can take a call. Checks that their
        processes live.
        """
        if self.runner is None or self.is_leaving:
            return False
        for device in self.devices:
            device.check()
        return self.runner.serving

    def __repr__(self) -> str:
        return f"<CallRoute {self.number} to {'/'.join(filter(None, self.target))}>"


class RoutedCall:
    """A call under way. The caller must call `end`, however the call ends."""

    __slots__ = ("_began", "_into", "_routes", "_wanted", "request", "route")

    def __init__(
        self,
        routes: Routes,
        route: CallRoute,
        request: Request,
        into: OutputArrays,
        wanted: Collection[str],
    ) -> None:
        self._routes, self.route, self.request = routes, route, request
        self._into, self._wanted = into, wanted
        self._began = time.monotonic_ns()

    def wait(self) -> None:
        """Wait until the call is done. Meanwhile this thread may receive the results of
        other calls.
        """
        self.request.wait()

    def give_up(self) -> None:
        """Cancel the call. Callable from any thread."""
        if not self.request.done:
            self.request.cancel()
            # Wake the thread that waits for the call, because it sleeps until results
            # come.
            for device in self.route.devices:
                with contextlib.suppress(OSError):
                    os.eventfd_write(device.fileno(), 1)

    def expire(self) -> None:
        """Fail the call because its deadline has passed."""
        self.request.abandon(DeadlineExceeded())

    def end(self) -> None:
        """End the call if it is done, or cancel it now, and count it."""
        self.request.cancel()
        request = self.request
        error = request.error or self._into.failure
        self._routes.record_call(
            self.route,
            CallRecord(
                self.route.number,
                time.monotonic_ns() - self._began,
                request.queue_ns,
                request.compute_ns,
                max(1, request.rows),
                request.batch_rows,
                _name_of(error),
            ),
        )

    def outputs(self) -> dict[str, Array]:
        """Return the outputs of a finished call. Raises its error."""
        error = self.request.error or self._into.failure
        if error is not None:
            raise error.named(f"model {self.route.target[0]!r}")
        arrays = self._into.arrays
        return {name: arrays[name] for name in self._wanted or arrays}

    def __repr__(self) -> str:
        return f"<RoutedCall {self.request!r}>"


def _name_of(error: EngineError | None) -> bytes:
    return b"" if error is None else type(error).__name__.encode()


class Routes:
    """The routes of one process. Thread-safe.

    `tell` sends a message to the owner. A thread joins devices and opens and closes
    channels, because these steps wait for the devices. The first route starts it.
    """

    def __init__(self, tell: Callable[[RouteLeft], object]) -> None:
        self._tell = tell
        self._lock = threading.Lock()
        self._by_target: dict[tuple[str, str], CallRoute] = {}
        self._by_number: dict[int, CallRoute] = {}
        self._devices: dict[str, JoinedDevice] = {}
        self._log: CallLog | None = None
        self._work: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    # -- messages of the owner

    def accept(self, offer: RouteOffered, fds: list[int]) -> None:
        """Accept an offered route. This object owns the descriptors from now on."""
        doors = [socket.socket(fileno=fd) for fd in fds[: len(offer.devices)]]
        if offer.has_log:
            self._log = CallLog.attach(fds[-1])
        route = CallRoute(offer)
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=_THREAD, daemon=True)
                thread.start()
                self._thread = thread
            self._by_number[route.number] = route
        self._work.put(
            partial(self._open, route, list(zip(offer.devices, doors, strict=True)))
        )

    def leave(self, number: int) -> None:
        """Close the routes to a model that has changed or is unloaded."""
        with self._lock:
            route = self._by_number.get(number)
            if route is not None and not route.is_leaving:
                self._leave(route)

    def _leave(self, route: CallRoute) -> None:
        route.is_leaving = True
        if self._by_target.get(route.target) is route:
            del self._by_target[route.target]
        if not route.calls and route.runner is not None:
            self._work.put(partial(self._close_route, route))

    # -- calls

    def begin(
        self,
        target: tuple[str, str],
        inputs: Mapping[str, Tensor],
        deadline_ns: int,
        priority: int,
        on_done: Callable[[], object],
        wanted: Collection[str] = (),
    ) -> RoutedCall | None:
        """Submit a call for the outputs `wanted`, or all.

        Return None if the owner must handle it: there is no route, or the call does not
        fit. Raises Refused as `JoinedRunner.submit`.
        """
        route, log = self._by_target.get(target), self._log
        if route is None or log is None or not route.outputs.issuperset(wanted):
            return None
        if not route.is_usable or not log.reserve():
            return None
        with self._lock:
            runner = route.runner
            if route.is_leaving or runner is None:
                log.give_back()
                return None
            route.calls += 1
        into = OutputArrays(None)

        def done(request: Request) -> None:
            on_done()

        deadline = deadline_ns or time.monotonic_ns() + route.timeout_ns
        try:
            request = runner.submit(
                inputs,
                deadline=deadline / 1e9,
                on_done=done,
                priority=priority,
                validate=True,
                into=into,
            )
        except (Invalid, DeviceLost):
            self._release(route)
            log.give_back()
            return None
        except EngineError as error:
            self.record_call(route, CallRecord(route.number, 0, error=_name_of(error)))
            raise error.named(f"model {target[0]!r}") from None
        return RoutedCall(self, route, request, into, wanted)

    def record_call(self, route: CallRoute, record: CallRecord) -> None:
        """Record that a call is over."""
        assert self._log is not None
        is_time = self._log.write(record)
        self._release(route)
        if is_time:
            self._tell(RouteLeft(0))

    def _release(self, route: CallRoute) -> None:
        with self._lock:
            route.calls -= 1
            if route.is_leaving and not route.calls:
                self._work.put(partial(self._close_route, route))

    # -- the thread

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            try:
                work()
            except Exception:
                _log.exception("a route to another model")

    def _open(
        self, route: CallRoute, doors: list[tuple[tuple[str, str], socket.socket]]
    ) -> None:
        for (key, name), door in doors:
            with contextlib.suppress(EngineError, OSError):
                self._devices[key] = JoinedDevice(name, door)
        keys = [key for key, _ in route.description.replicas]
        found = {key: self._devices[key] for key in keys if key in self._devices}
        try:
            runner = JoinedRunner(route.description, found)
        except (EngineError, OSError) as error:
            _log.debug("%r: %s", route, error)
            self._gone(route)
            return
        with self._lock:
            route.devices = tuple(found.values())
            route.runner = runner
            before = self._by_target.get(route.target)
            if route.is_leaving:
                self._work.put(partial(self._close_route, route))
                return
            if before is not None:
                self._leave(before)
            self._by_target[route.target] = route

    def _close_route(self, route: CallRoute) -> None:
        if route.runner is not None:
            route.runner.close()
        self._gone(route)

    def _gone(self, route: CallRoute) -> None:
        with self._lock:
            self._by_number.pop(route.number, None)
            used = {d for one in self._by_number.values() for d in one.devices}
        # Only this thread opens routes, so none is being opened meanwhile.
        for key, device in list(self._devices.items()):
            if device.state is not DeviceState.READY and device not in used:
                del self._devices[key]
                device.close()
        self._tell(RouteLeft(route.number))

    def close(self) -> None:
        """Leave all devices. Calls in flight fail."""
        if self._thread is None:
            return
        self._work.put(None)
        self._thread.join()
        for route in self._by_number.values():
            route.is_leaving = True
            if route.runner is not None:
                route.runner.close()
        self._by_target.clear()
        self._by_number.clear()
        for device in self._devices.values():
            device.close()
        self._devices.clear()

    def __repr__(self) -> str:
        return f"<Routes {list(self._by_number.values())}>"
