"""A device process as the client of its owner, for calls from a Python model to other
models.

A call uses a route of this process (routes.py) if there is one. Otherwise it goes to
the owner of the device, over the socket that came with the load message. A thread
receives the answers. Any thread of the model may make calls.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.errors import DeviceLost, EngineBug, EngineError, InvalidInput, Refused
from engine.programs.session import RunOptions
from engine.tensor import Tensor
from engine.transport.messages import DescriptorsLost, close_all, send
from engine.worker.batch import RunningBatch
from engine.worker.python_kind import Running
from popef_io import PopefError
from popgate_python_interface import PresentRun
from popgate_python_messages.call_messages import (
    TO_MODEL,
    Answer,
    CallFailed,
    CallGivenUp,
    CallOutputs,
    ClientRequests,
    ClientRequestsAsked,
    ClientRequestsTold,
    ModelCall,
    Question,
    ReadyAsked,
    ReadyTold,
    ResponseTaken,
    RouteLeft,
    RouteOffered,
    RouteWithdrawn,
    Tensors,
    ToOwner,
)
from popgate_python_worker.calls.call_context import CallContext, CallOptions
from popgate_python_worker.calls.pending_call import PendingCall, PendingStream, Result

if TYPE_CHECKING:
    import asyncio

    from popgate_python_worker.calls.loop_driver import LoopDriver
    from popgate_python_worker.calls.routes import RoutedCall, Routes

#: Seconds until the thread that lacks memory receives again.
_PAUSE = 0.01


class CallClient:
    """Sends a model's calls and questions, and receives the answers. `run` is the
    model's present run, and `running` returns its batch.
    """

    def __init__(self, sock: socket.socket, run: PresentRun, running: Running) -> None:
        self._sock = sock
        self._run, self._running = run, running
        self._calls: dict[int, PendingCall] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._closed = False
        self._known: tuple[RunningBatch, ClientRequests] | None = None
        self._reader: threading.Thread | None = None
        #: None before the first route: the modules that join devices are imported only
        #: then.
        self._routes: Routes | None = None
        self._drivers: dict[asyncio.AbstractEventLoop, LoopDriver] = {}

    @property
    def options(self) -> RunOptions:
        """Return the options of the present run."""
        return self._run.options

    # -- calls

    def begin(
        self,
        target: tuple[str, str],
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
        on_done: Callable[[], object] = bool,
    ) -> RoutedCall | PendingCall:
        """Send a call to a model and version. `on_done` is called in another thread,
        perhaps in one that waits for another call.
        """
        tensors = {name: _tensor(name, value) for name, value in inputs.items()}
        wanted = CallOptions.of(options)
        context = self._context_of_call(wanted)
        if self._routes is not None:
            routed = self._routes.begin(
                target,
                tensors,
                context.deadline_ns,
                context.priority,
                on_done,
                wanted.outputs or (),
            )
            if routed is not None:
                return routed
        call = PendingCall(next(self._numbers), self._give_up, on_done)
        self._send_call(call, target, tensors, wanted, context)
        return call

    def stream(
        self,
        target: tuple[str, str],
        inputs: Mapping[str, Any],
        options: Mapping[str, Any],
    ) -> PendingStream:
        """Send a call that takes several responses."""
        tensors = {name: _tensor(name, value) for name, value in inputs.items()}
        wanted = CallOptions.of(options)
        context = self._context_of_call(wanted)
        call = PendingStream(next(self._numbers), self._give_up)
        self._send_call(call, target, tensors, wanted, context, streams=True)
        return call

    def _context_of_call(self, options: CallOptions) -> CallContext:
        return CallContext.of(self._running()).within(options.timeout)

    def _send_call(
        self,
        call: PendingCall,
        target: tuple[str, str],
        tensors: Mapping[str, Tensor],
        options: CallOptions,
        context: CallContext,
        streams: bool = False,
    ) -> None:
        outputs = None if options.outputs is None else tuple(map(str, options.outputs))
        carried, fds = Tensors.of(tensors)
        message = ModelCall(
            call.number,
            *target,
            context.deadline_ns,
            carried,
            outputs,
            options.parameters or {},
            tuple(context.requests),
            context.priority,
            streams,
        )
        self._send(call, message, fds)

    def go_on(self, call: PendingStream) -> None:
        """Record that the caller took a response, so the next one may follow."""
        self.send(ResponseTaken(call.number))

    def driver(self, loop: asyncio.AbstractEventLoop) -> LoopDriver:
        """Return the object that drives routed calls for the coroutines of a loop."""
        found = self._drivers.get(loop)
        if found is None:
            from popgate_python_worker.calls.loop_driver import LoopDriver

            for other in [one for one in self._drivers if one.is_closed()]:
                del self._drivers[other]
            found = self._drivers[loop] = LoopDriver(loop)
        return found

    # -- questions

    def is_ready(self, target: tuple[str, str]) -> bool:
        """Return whether a model accepts requests now. Raises DeviceLost."""
        return bool(self._ask(lambda number: ReadyAsked(number, *target)))

    def client_requests(self) -> ClientRequests:
        """Return the ids of the requests that the present run answers. Ask for them
        once for each run.

        Raises DeviceLost.
        """
        running = self._running()
        if running is None:
            return ()
        if self._known is None or self._known[0] is not running:
            requests = tuple(CallContext.of(running).requests)
            found = self._ask(lambda number: ClientRequestsAsked(number, requests))
            assert isinstance(found, tuple)
            self._known = running, found
        return self._known[1]

    def _ask(self, question: Callable[[int], Question]) -> Result | None:
        """Send a question, and wait for its answer."""
        call = PendingCall(next(self._numbers), self._give_up)
        self._send(call, question(call.number))
        call.wait()
        return call.result

    # -- the socket

    def _send(
        self, call: PendingCall, message: Question, fds: Sequence[int] = ()
    ) -> None:
        """Send a message that will be answered, and close its descriptors."""
        with self._lock:
            if self._closed:
                close_all(fds)
                raise DeviceLost("cannot call other models: no server runs this one")
            if self._reader is None:
                self._reader = self._start_reader(fds)
            self._calls[call.number] = call
        try:
            send(self._sock, message, fds)
        except OSError as error:
            self._calls.pop(call.number, None)
            raise DeviceLost(
                "cannot call other models: no server runs this one"
            ) from error
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            self._calls.pop(call.number, None)
            raise InvalidInput(f"the call cannot be sent: {error}") from None
        finally:
            close_all(fds)

    def _start_reader(self, fds: Sequence[int]) -> threading.Thread:
        """Start the thread that receives answers. Raises Refused, and closes `fds`."""
        reader = threading.Thread(target=self._read, name="answers", daemon=True)
        try:
            reader.start()
        except RuntimeError as error:
            close_all(fds)
            raise Refused(f"cannot call other models now: {error}") from None
        return reader

    def send(self, message: ToOwner) -> None:
        """Send a message that has no answer."""
        with contextlib.suppress(OSError):
            send(self._sock, message)

    def _give_up(self, number: int) -> None:
        """Cancel a call. Do nothing if it is done."""
        if self._calls.pop(number, None) is not None:
            self.send(CallGivenUp(number))

    def _read(self) -> None:
        try:
            with contextlib.suppress(OSError, EOFError, ValueError):
                while True:
                    try:
                        self._receive()
                    except MemoryError:  # some is free again when the run has ended
                        time.sleep(_PAUSE)
        finally:
            self._lose_calls()

    def _receive(self) -> None:
        """Wait for a message, and handle it."""
        try:
            message, fds = TO_MODEL.receive(self._sock)
        except DescriptorsLost as lost:
            self._refuse(lost)
            return
        if isinstance(message, RouteOffered):
            self._take_route(message, fds)  # closes the descriptors
            return
        try:
            self._take(message, fds)
        finally:
            close_all(fds)

    def _refuse(self, lost: DescriptorsLost) -> None:
        """End a call whose answer did not arrive, or decline a route."""
        number: int = getattr(lost.message, "number", 0)
        if isinstance(lost.message, RouteOffered):
            self.send(RouteLeft(number))
            return
        call = self._calls.get(number)
        if call is not None:
            self._give_up(number)  # it may have further responses
            error = Refused(f"the model cannot take the answer to a call: {lost}")
            call.receive(error, more=False)

    def _lose_calls(self) -> None:
        """Fail the calls under way, because no answer will come any more."""
        with self._lock:
            self._closed = True
        while self._calls:
            with contextlib.suppress(KeyError):
                _, call = self._calls.popitem()
                lost = DeviceLost("the connection to the server is lost")
                call.receive(lost, more=False)

    def _take(self, message: Answer | RouteWithdrawn, fds: Sequence[int]) -> None:
        if isinstance(message, RouteWithdrawn):
            if self._routes is not None:  # the offer did not arrive otherwise
                self._routes.leave(message.number)
            return
        number, more = message.number, isinstance(message, CallOutputs) and message.more
        call = self._calls.get(number) if more else self._calls.pop(number, None)
        if call is None:
            return
        result = _result_of(message, fds)
        if more and isinstance(result, EngineError):  # nothing takes further responses
            self._give_up(number)
            more = False
        call.receive(result, more)

    def _take_route(self, message: RouteOffered, fds: list[int]) -> None:
        if self._routes is None:
            from popgate_python_worker.calls.routes import Routes

            self._routes = Routes(self.send)
        try:
            self._routes.accept(message, fds)
        except (OSError, RuntimeError):  # memory or threads are short
            self.send(RouteLeft(message.number))

    def close(self) -> None:
        """Fail the calls under way, and end the thread."""
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
        return f"<CallClient {len(self._calls)} under way>"


def _result_of(answer: Answer, fds: Sequence[int]) -> Result:
    match answer:
        case CallFailed():
            return answer.report.to_error()
        case ReadyTold():
            return answer.ready
    try:
        if isinstance(answer, ClientRequestsTold):
            return answer.read(fds)
        # Copy the arrays, because the caller may keep them and write to them.
        tensors = answer.tensors.read(fds)
        return {name: tensor.numpy().copy() for name, tensor in tensors.items()}
    except EngineError as error:
        return error
    except (OSError, MemoryError) as error:
        return Refused(f"the model has no room for the answer to a call: {error}")
    except Exception as error:  # the caller waits for a result
        return EngineBug(f"an answer cannot be read: {error!r}")


def _tensor(name: str, value: Any) -> Tensor:
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        msg = f"input {name!r} of a call has masked values; give array.filled(…)"
        raise InvalidInput(msg)
    try:
        array = np.asarray(value)
        if array.dtype.kind in "SU":
            array = np.array(value, dtype=object)
        return Tensor.from_numpy(array)
    except (PopefError, ValueError, TypeError) as error:
        raise InvalidInput(f"input {name!r} of a call: {error}") from None
