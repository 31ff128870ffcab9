"""What a Python model uses to call others: the device process's end of its calls.

Calls go to the owner of the device, over the socket that came with the load message;
a thread takes the answers. They may be made in any thread of the model.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

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
from engine.worker.cancellation import RunningBatch
from popef_io import PopefError

Running = Callable[[], RunningBatch | None]


class _Call:
    """One call under way."""

    def __init__(self, on_done: Callable[[], object]) -> None:
        self._on_done = on_done
        self.outputs: dict[str, Array] = {}
        self.askers: Askers = ()
        self.error: EngineError | None = None
        self.is_open = True

    def resolve(self, message: Message, fds: list[int]) -> None:
        try:
            if "error" in message:
                self.error = control.to_error(message)
            elif "askers" in message:
                self.askers = tuple((str(i), str(t)) for i, t in message["askers"])
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

    def __getitem__(self, name: str) -> CalledModel:
        """KeyError for one that may not be called; whether it is there shows in the
        call."""
        model, _, version = name.partition("/")
        if self._allowed is not None and model not in self._allowed:
            known = ", ".join(sorted(self._allowed)) or "none"
            raise KeyError(f"{model!r} is not among its models ({known})")
        return CalledModel(self, model, version)

    # -- for the models

    def begin(
        self,
        target: tuple[str, str],
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
        on_done: Callable[[], object],
    ) -> tuple[int, _Call]:
        """Send a call; `on_done` is called in another thread."""
        tensors = {name: _tensor(name, value) for name, value in inputs.items()}
        requests, deadline = self._requests()
        if options.get("timeout") is not None:
            end = time.monotonic_ns() + int(float(options["timeout"]) * 1e9)
            deadline = min(deadline, end) if deadline else end
        if 0 < deadline < time.monotonic_ns():
            raise DeadlineExceeded()
        call, number = _Call(on_done), next(self._numbers)
        message, fds = with_tensors(
            {
                "call": number,
                "model": target[0],
                "version": target[1],
                "deadline_ns": deadline,
                "outputs": options.get("outputs"),
                "parameters": dict(options.get("parameters") or {}),
                "requests": requests,
            },
            tensors,
        )
        self._send(number, call, message, fds)
        return number, call

    def askers(self) -> Askers:
        """The ids of the requests that the present run answers: asked for once a run,
        where a model wants to know. Raises DeviceLost."""
        running = self._running()
        if running is None:
            return ()
        if self._known is None or self._known[0] is not running:
            done = threading.Event()
            call, number = _Call(done.set), next(self._numbers)
            self._send(number, call, {"ask": number, "requests": self._requests()[0]})
            done.wait()
            if call.error is not None:
                raise call.error
            self._known = running, call.askers
        return self._known[1]

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

    def _requests(self) -> tuple[list[int], int]:
        """Those that the present run answers, by number, and when the last of them has
        its deadline; 0 where one has none."""
        running = self._running()
        found = []
        with contextlib.suppress(ValueError):  # it has ended, and its client has gone
            for entry in running.entries if running is not None else ():
                view = entry.client.channel.view
                found.append(REQUEST.unpack_from(view, entry.at))
        deadlines = [descriptor[3] for descriptor in found]
        last = max(deadlines) if deadlines and all(deadlines) else 0
        return [descriptor[0] for descriptor in found], last

    def _read(self) -> None:
        with contextlib.suppress(OSError, EOFError, ValueError):
            while True:
                message, fds = control.receive(self._sock)
                try:
                    call = self._calls.pop(int(message["call"]), None)
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
        number, call = self._calls.begin(self._target, inputs, options, done.set)
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

        number, call = self._calls.begin(self._target, inputs, options, tell)
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


def _tensor(name: str, value: Any) -> Tensor:
    try:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)
        if array.dtype.kind in "SU":
            array = np.array(value, dtype=object)
        return Tensor.from_numpy(array)
    except (PopefError, ValueError, TypeError) as error:
        raise InvalidInput(f"input {name!r} of a call: {error}") from None
