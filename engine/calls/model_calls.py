"""What a Python model uses to call others: the device process's end of its calls.

A call goes by a route of this process (routes.py) where there is one. Else it goes to
the owner of the device, over the socket that came with the load message; a thread takes
the answers. Calls may be made in any thread of the model.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from engine.config import weighted
from engine.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceLost,
    EngineError,
    InvalidInput,
)
from engine.programs.python_model import Context
from engine.tensor import Array, Tensor
from engine.transport import control
from engine.transport.call_messages import Askers, tensors_of, with_tensors
from engine.transport.channel import REQUEST
from engine.transport.control import Message
from popef_io import PopefError

if TYPE_CHECKING:
    import asyncio

    from engine.calls.routes import RoutedCall, Routes
    from engine.devices.joined_device import JoinedDevice


class RunningBatch(Protocol):
    """What runs: requests, as the device process knows them."""

    @property
    def entries(self) -> Sequence[Any]: ...


_Outputs = dict[str, Array]
Running = Callable[[], RunningBatch | None]


class _Present(NamedTuple):
    """On whose behalf a call is made: the numbers of the requests that the present run
    answers, when the last of them has its deadline (0: one has none), and the line that
    they stand in, as `ModelRunner.submit` takes it."""

    requests: list[int]
    deadline_ns: int
    priority: int


class _Call:
    """One call under way."""

    def __init__(self, on_done: Callable[[], object]) -> None:
        self._on_done = on_done
        self.outputs: dict[str, Array] = {}
        self.askers: Askers = ()
        self.ready = False
        self.error: EngineError | None = None
        self.is_open = True

    def resolve(self, message: Message, fds: list[int]) -> None:
        try:
            if "error" in message:
                self.error = control.to_error(message)
            elif "askers" in message:
                self.askers = tuple(
                    (str(i), str(t), str(s)) for i, t, s in message["askers"]
                )
            elif "ready" in message:
                self.ready = bool(message["ready"])
            else:
                found = tensors_of(message, fds)
                # Their own, to be kept and written to: nothing else maps that memory.
                self.outputs = {n: t.numpy().copy() for n, t in found.items()}
        except EngineError as error:
            self.error = error
        finally:
            self.is_open = False
            self._on_done()

    def fail(self, error: EngineError) -> None:
        self.error = error
        self.is_open = False
        self._on_done()


class _Stream(_Call):
    """One that takes several responses: None behind the last."""

    def __init__(self) -> None:
        super().__init__(bool)
        self.responses: queue.SimpleQueue[_Outputs | None] = queue.SimpleQueue()

    def resolve(self, message: Message, fds: list[int]) -> None:
        super().resolve(message, fds)
        if self.outputs:
            self.responses.put(self.outputs)
            self.outputs = {}
        if "more" not in message:
            self.end()

    def fail(self, error: EngineError) -> None:
        super().fail(error)
        self.end()

    def end(self) -> None:
        """There are no more."""
        self.responses.put(None)


class ModelCalls:
    """The models that a Python model may call, by name or ``name/version``:
    `Context.models`.

    `allowed` are their names, None for all; `running` says what runs now.
    """

    def __init__(
        self,
        sock: socket.socket,
        allowed: Collection[str] | None,
        context: Context,
        running: Running,
    ) -> None:
        self._sock = sock
        self._allowed = None if allowed is None else frozenset(allowed)
        self._context, self._running = context, running
        self._calls: dict[int, _Call] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._closed = False
        self._known: tuple[RunningBatch, Askers] | None = None
        self._reader: threading.Thread | None = None
        #: None before the first: what joins devices is imported where it is needed.
        self._routes: Routes | None = None
        self._watches: dict[asyncio.AbstractEventLoop, _LoopWatch] = {}

    def __getitem__(self, name: str) -> CalledModel:
        """KeyError for one that may not be called; whether it is there shows in the
        call."""
        return CalledModel(self, *self._target(name))

    def is_ready(self, name: str) -> bool:
        """Whether a model takes requests now; KeyError for one that may not be called.
        Raises DeviceLost."""
        model, version = self._target(name)
        message: Message = {"model": model, "version": version}
        return self._ask({"ready": next(self._numbers), **message}, "ready").ready

    def _target(self, name: str) -> tuple[str, str]:
        model, _, version = name.partition("/")
        if self._allowed is not None and model not in self._allowed:
            known = ", ".join(sorted(self._allowed)) or "none"
            raise KeyError(f"{model!r} is not among its models ({known})")
        return model, version

    # -- for the models

    def begin(
        self,
        target: tuple[str, str],
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
        on_done: Callable[[], object],
    ) -> RoutedCall | tuple[int, _Call]:
        """Send a call; `on_done` is called in another thread, or in any that waits for
        another call."""
        tensors = {name: _tensor(name, value) for name, value in inputs.items()}
        given = self._present_with(options)
        _, deadline, priority = given
        wanted = options.get("outputs") or ()
        routes, routed = self._routes, None
        if routes is not None:
            routed = routes.begin(target, tensors, deadline, priority, on_done, wanted)
        if routed is not None:
            return routed
        call = _Call(on_done)
        return self._begin_with_owner(call, target, tensors, options, given), call

    def stream(
        self,
        target: tuple[str, str],
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> tuple[int, _Stream]:
        """Send a call that takes several responses."""
        tensors = {name: _tensor(name, value) for name, value in inputs.items()}
        call, present = _Stream(), self._present_with(options)
        return self._begin_with_owner(call, target, tensors, options, present), call

    def go_on(self, number: int) -> None:
        """A response was taken: the next may come."""
        self.tell({"next": number})

    def _begin_with_owner(
        self,
        call: _Call,
        target: tuple[str, str],
        tensors: Mapping[str, Tensor],
        options: Mapping[str, Any],
        present: _Present,
    ) -> int:
        number = next(self._numbers)
        message, fds = with_tensors(
            {
                "call": number,
                "model": target[0],
                "version": target[1],
                "deadline_ns": present.deadline_ns,
                "priority": present.priority,
                "outputs": options.get("outputs"),
                "parameters": dict(options.get("parameters") or {}),
                "requests": present.requests,
                "streams": isinstance(call, _Stream),
            },
            tensors,
        )
        self._send(number, call, message, fds)
        return number

    def _present_with(self, options: Mapping[str, Any]) -> _Present:
        """Raises DeadlineExceeded."""
        present = self._present()
        deadline = present.deadline_ns
        if options.get("timeout") is not None:
            end = time.monotonic_ns() + int(float(options["timeout"]) * 1e9)
            deadline = min(deadline, end) if deadline else end
        if 0 < deadline < time.monotonic_ns():
            raise DeadlineExceeded()
        return present._replace(deadline_ns=deadline)

    def watch(self, loop: asyncio.AbstractEventLoop) -> _LoopWatch:
        """What drives routed calls for the coroutines of a loop."""
        found = self._watches.get(loop)
        if found is None:
            for other in [one for one in self._watches if one.is_closed()]:
                del self._watches[other]
            found = self._watches[loop] = _LoopWatch(loop)
        return found

    def askers(self) -> Askers:
        """The ids of the requests that the present run answers: asked for once a run,
        where a model wants to know. Raises DeviceLost."""
        running = self._running()
        if running is None:
            return ()
        if self._known is None or self._known[0] is not running:
            number = next(self._numbers)
            call = self._ask({"ask": number, "requests": self._present()[0]}, "ask")
            self._known = running, call.askers
        return self._known[1]

    def _ask(self, message: Message, number: str) -> _Call:
        """Send a question, and wait for its answer; `number` names where it has one."""
        done = threading.Event()
        call = _Call(done.set)
        self._send(message[number], call, message)
        done.wait()
        if call.error is not None:
            raise call.error
        return call

    def _send(
        self, number: int, call: _Call, message: Message, fds: Sequence[int] = ()
    ) -> None:
        """Send a message that will be answered; the descriptors are closed."""
        with self._lock:
            if self._closed:
                control.close_all(fds)
                raise DeviceLost("there is nobody who runs other models")
            self._calls[number] = call
            if self._reader is None:
                self._reader = threading.Thread(
                    target=self._read, name="answers", daemon=True
                )
                self._reader.start()
        try:
            control.send(self._sock, message, fds)
        except OSError as error:
            self._calls.pop(number, None)
            raise DeviceLost("there is nobody who runs other models") from error
        except ValueError as error:
            self._calls.pop(number, None)
            raise InvalidInput(f"the call is too large: {error}") from None
        finally:
            control.close_all(fds)

    def give_up(self, number: int) -> None:
        """Nobody waits for that call any more; nothing happens if it is done."""
        if self._calls.pop(number, None) is not None:
            with contextlib.suppress(OSError):
                control.send(self._sock, {"cancel": number})

    @property
    def options(self) -> Any:
        """Of the present run."""
        return self._context.options

    def _present(self) -> _Present:
        running = self._running()
        found, lines = [], []
        with contextlib.suppress(ValueError):  # it has ended, and its client has gone
            for entry in running.entries if running is not None else ():
                client = entry.client
                lines.append((client.priority, client.weight))
                found.append(REQUEST.unpack_from(client.channel.view, entry.at))
        deadlines = [descriptor[3] for descriptor in found]
        last = max(deadlines) if deadlines and all(deadlines) else 0
        level = min((level for level, _ in lines), default=0)
        weight = max((weight for _, weight in lines), default=0)
        line = weighted(level, weight) if weight else level
        return _Present([descriptor[0] for descriptor in found], last, line)

    def _pop(self, number: int) -> _Call | None:
        return self._calls.pop(number, None)

    def _take_route(self, message: Message, fds: list[int]) -> None:
        if self._routes is None:
            from engine.calls.routes import Routes

            self._routes = Routes(self.tell)
        self._routes.take(message, fds)

    def tell(self, message: Message) -> None:
        """Send a message that has no answer."""
        with contextlib.suppress(OSError):
            control.send(self._sock, message)

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                message, fds = control.receive(self._sock)
                try:
                    if "route" in message:
                        mine, fds = fds, []
                        self._take_route(message, mine)
                    elif "leave" in message:
                        assert self._routes is not None
                        self._routes.leave(int(message["leave"]))
                    else:
                        number = int(message["call"])
                        take = self._calls.get if "more" in message else self._pop
                        call = take(number)
                        if call is not None:
                            call.resolve(message, fds)
                finally:
                    control.close_all(fds)
        with self._lock:
            self._closed = True
        while self._calls:
            with contextlib.suppress(KeyError):
                _, call = self._calls.popitem()
                call.fail(DeviceLost("the server that runs other models has gone"))

    def close(self) -> None:
        """Fail what is under way; the thread ends."""
        with self._lock:
            self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._reader is not None:
            self._reader.join()
        if self._routes is not None:
            self._routes.close()
        self._sock.close()

    def __repr__(self) -> str:
        return f"<ModelCalls {len(self._calls)} under way>"


class CalledModel:
    """Another model, to be called: inputs by name in, NumPy arrays by name out.

    What is no array yet is made one; numbers are converted to what the model takes
    where that keeps their kind. The outputs are the caller's own. A call ends with the
    deadline of the requests that are being answered, and is given up with them.
    Raises `popgate.EngineError`: `Refused` where the model cannot take it now (it is
    not loaded, its queue is full), DeviceLost where it dies, DeadlineExceeded,
    InvalidInput, ExecutionFailed. What is not caught becomes of the request.
    """

    __slots__ = ("_calls", "_target")

    def __init__(self, calls: ModelCalls, name: str, version: str) -> None:
        self._calls = calls
        self._target = (name, version)

    def __call__(self, **inputs: Any) -> dict[str, Array]:
        """Call it and wait."""
        return self.call(inputs)

    def call(self, inputs: Mapping[str, Any], **options: Any) -> dict[str, Array]:
        """The same for inputs with any names. `options`: `timeout` in seconds,
        `outputs` (their names; all), `parameters` of the request."""
        done = threading.Event()
        run = self._calls.options
        begun = self._calls.begin(self._target, inputs, options, done.set)
        if not isinstance(begun, tuple):
            return _finish(begun, run)
        number, call = begun
        if run is not None:
            run.tell(done.set)
        try:
            done.wait()
        finally:
            self._calls.give_up(number)
            if run is not None:
                run.forget(done.set)
        if call.is_open and run is not None and run.terminate:
            raise Cancelled("the run was terminated")
        return self._result(call)

    def stream(
        self, inputs: Mapping[str, Any], **options: Any
    ) -> Iterator[dict[str, Array]]:
        """The responses of a model that gives several, or the only one of another; the
        call begins now, and each next response is made when the one before was taken.
        `options` as of `call`."""
        run = self._calls.options
        number, call = self._calls.stream(self._target, inputs, options)
        return self._responses(number, call, run)

    def _responses(
        self, number: int, call: _Stream, run: Any
    ) -> Iterator[dict[str, Array]]:
        if run is not None:
            run.tell(call.end)
        try:
            while (found := call.responses.get()) is not None:
                yield found
                self._calls.go_on(number)
        finally:
            self._calls.give_up(number)
            if run is not None:
                run.forget(call.end)
        if call.error is None and run is not None and run.terminate:
            raise Cancelled("the run was terminated")
        if call.error is not None:
            raise call.error

    async def call_async(self, **inputs: Any) -> dict[str, Array]:
        """The same for coroutines: several may be under way."""
        return await self.begin_async(inputs)

    async def begin_async(
        self, inputs: Mapping[str, Any], **options: Any
    ) -> dict[str, Array]:
        """`call` for coroutines."""
        import asyncio  # not needed by most, and slow to import

        loop = asyncio.get_running_loop()
        done = asyncio.Event()

        def tell() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(done.set)

        begun = self._calls.begin(self._target, inputs, options, tell)
        if not isinstance(begun, tuple):
            try:
                with self._calls.watch(loop).driving(begun):
                    await done.wait()
            finally:
                begun.end()
            return begun.outputs()
        number, call = begun
        try:
            await done.wait()
        finally:
            self._calls.give_up(number)
        return self._result(call)

    def _result(self, call: _Call) -> dict[str, Array]:
        if call.error is not None:
            raise call.error
        return call.outputs

    def __repr__(self) -> str:
        return f"<CalledModel {'/'.join(filter(None, self._target))}>"


def _finish(call: RoutedCall, run: Any) -> dict[str, Array]:
    """Wait for a call in a thread; it is given up when `run` is to end."""
    if run is not None:
        run.tell(call.give_up)
    try:
        call.request.wait()
    finally:
        if run is not None:
            run.forget(call.give_up)
        call.end()
    if run is not None and run.terminate:
        raise Cancelled("the run was terminated")
    return call.outputs()


class _LoopWatch:
    """Lets an event loop take the results of routed calls. For the loop's thread.

    The loop is the author's, and stops between the calls of his model: devices are
    watched while something waits for one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        #: By device: how many calls wait, and a descriptor that is readable when it is
        #: lost, which is not closed then as the device's is.
        self._devices: dict[JoinedDevice, tuple[int, int]] = {}

    @contextlib.contextmanager
    def driving(self, call: RoutedCall) -> Iterator[None]:
        """While a coroutine waits for a call."""
        devices = call.route.devices
        for device in devices:
            self._watch(device)
        timer = None
        if call.request.deadline_ns:
            left = (call.request.deadline_ns - time.monotonic_ns()) / 1e9
            timer = self._loop.call_later(max(0.0, left), call.expire)
        try:
            yield
        finally:
            if timer is not None:
                timer.cancel()
            for device in devices:
                self._forget(device)

    def _watch(self, device: JoinedDevice) -> None:
        count, lost = self._devices.get(device, (0, -1))
        if not count:
            self._loop.add_reader(device.fileno(), device.poll)
            with contextlib.suppress(OSError):  # it is lost
                lost = os.dup(device.lost_fileno())
                self._loop.add_reader(lost, device.check)
            device.poll()  # what nobody has taken yet
        self._devices[device] = count + 1, lost

    def _forget(self, device: JoinedDevice) -> None:
        count, lost = self._devices.pop(device)
        if count > 1:
            self._devices[device] = count - 1, lost
            return
        self._loop.remove_reader(device.fileno())
        if lost >= 0:
            self._loop.remove_reader(lost)
            os.close(lost)

    def __repr__(self) -> str:
        return f"<_LoopWatch {self._devices}>"


def _tensor(name: str, value: Any) -> Tensor:
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        if array.dtype.kind in "SU":
            array = np.array(value, dtype=object)
        return Tensor.from_numpy(array)
    except (PopefError, ValueError, TypeError) as error:
        raise InvalidInput(f"input {name!r} of a call: {error}") from None
