"""The gateway's end of calls from Python models to other models.

A call is a request like a client's. The called model is loaded on demand, and the
request is queued, batched and counted, and ends at its deadline. The calling model's
process sends it over a socket (popgate_python_messages/call_messages.py) or through a
route (call_routes.py). Everything here belongs to the event loop's thread, except
`PythonModelCalls.attach`.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from app.observe.metrics import ModelMetrics
from app.serving.calls.parent_request import (
    ClientRequest,
    FindRequest,
    ParentRequest,
    RemoteParents,
)
from app.serving.feeders import Feeder
from app.serving.table import ModelTable, infer_path
from engine import Cancelled, EngineError, ExecutionFailed, Refused, Tensor
from popgate_python_messages.call_messages import (
    CallAnswer,
    CallGivenUp,
    CallSocket,
    ClientRequestsAsked,
    InputsLost,
    MetricsTold,
    ModelCall,
    ReadyAsked,
    ResponseTaken,
    RouteLeft,
)
from popgate_python_models.call_graph import CallGraph
from popgate_python_models.call_routes import CallRoutes
from popgate_python_models.called_request import CalledRequest
from popgate_python_models.parent_requests import ParentRequests
from popgate_python_models.shown_metrics import ShownMetrics

logger = logging.getLogger("app.serving.calls.model_calls")


class PythonModelCalls(Feeder):
    """The calls of all models of a gateway (`app.serving.calls.calls_plugin`).

    `needs` returns the models that a model announces. `timeout` applies to a call
    without a deadline. `leave_timeout` limits how long a process keeps its routes to an
    unloaded model. Both are in seconds.
    """

    def __init__(
        self,
        table: ModelTable,
        needs: Callable[[str], Iterable[str]],
        others: RemoteParents,
        timeout: float,
        leave_timeout: float,
    ) -> None:
        self.table, self.graph = table, CallGraph(needs)
        self.parents = ParentRequests(others, has_keys=table.has_keys)
        self.timeout = timeout
        #: The models' own metrics.
        self.metrics = ShownMetrics()
        self._leave_timeout = leave_timeout
        self._processes: set[CallingProcess] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def open(self) -> None:
        """Accept calls from now on, in the running event loop."""
        self._loop = asyncio.get_running_loop()

    def attach(self, name: str, find: FindRequest, sock: socket.socket) -> None:
        """Serve the calls of a process of model `name` on `sock`, until the peer closes
        it. `find` finds requests to the model's processes.

        For any thread.
        """
        if self._loop is None:
            sock.close()
            return
        try:
            self._loop.call_soon_threadsafe(self._attach, name, find, sock)
        except RuntimeError:  # the loop is closed
            sock.close()

    def _attach(self, name: str, find: FindRequest, sock: socket.socket) -> None:
        process = CallingProcess(self, name, find, CallSocket(sock), self._gone)
        self._processes.add(process)

    # -- routes

    def model_changed(self, name: str) -> None:
        """Withdraw the routes to a changed model."""
        for process in list(self._processes):  # one that has ended leaves the set
            process.routes.refresh(name)

    def counted(self, name: str, version: str) -> Iterable[ModelMetrics]:
        """Count the calls made through routes since the last count.

        They are in the counters of this process, so there are no others.
        """
        for process in self._processes:
            process.routes.count()
        return ()

    async def release(self, runners: Sequence[object]) -> None:
        """Wait until no process has a route to these runners, which are about to be
        unloaded.

        If a process does not release its routes in time, its calls fail.
        """
        seconds = self._leave_timeout
        found = (one.routes.released(runners, seconds) for one in self._processes)
        await asyncio.gather(*found)

    def render(self, *, openmetrics: bool = False) -> Iterator[str]:
        """Yield the text of the models' own metrics, one family at a time."""
        return self.metrics.render(openmetrics=openmetrics)

    def _gone(self, process: CallingProcess) -> None:
        self._processes.discard(process)
        self.graph.forget(process.name, process)
        self.metrics.gone(process)

    def close(self) -> None:
        """Accept no more calls."""
        self._loop = None
        for process in list(self._processes):
            process.close()

    def __repr__(self) -> str:
        return f"<PythonModelCalls of {len(self._processes)} processes>"


class CallingProcess:
    """One process of a model that calls others: a `called_request.Caller`."""

    def __init__(
        self,
        calls: PythonModelCalls,
        name: str,
        find: FindRequest,
        sock: CallSocket,
        on_close: Callable[[CallingProcess], None],
    ) -> None:
        self.name, self._find = name, find
        self._calls, self._sock, self._on_close = calls, sock, on_close
        self._under_way: dict[int, CalledRequest] = {}
        #: What sends each message, and the number of its call or question, or 0.
        self._unsent: deque[tuple[int, Callable[[], None]]] = deque()
        self._telling: set[asyncio.Task[None]] = set()
        self.routes = CallRoutes(calls.table, calls.timeout, sock, self._queue)
        self._take: dict[type, Callable[[Any], None]] = {
            CallGivenUp: self._give_up,
            ResponseTaken: self._proceed,
            RouteLeft: self._route_left,
            ClientRequestsAsked: self._tell_client_requests,
            ReadyAsked: self._tell_ready,
            MetricsTold: self._take_metrics,
        }
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._read)

    # -- messages from the process

    def _read(self) -> None:
        """Handle one message, then let other processes have their turn."""
        try:
            found, inputs = self._sock.receive()
        except BlockingIOError:
            return
        except InputsLost as lost:
            self._send_answer(lost.number, Refused(str(lost)))
            return
        except (OSError, EOFError, ValueError):
            self.close()
            return
        except EngineError as error:
            logger.error("a call to model %s failed: %s", self.name, error)
            self.close()
            return
        if isinstance(found, ModelCall):
            self._begin(found, inputs)
        else:
            self._take[type(found)](found)

    def _begin(self, message: ModelCall, inputs: Mapping[str, Tensor]) -> None:
        calls = self._calls
        called = CalledRequest(message, inputs, self, calls.table, calls.timeout)
        self._under_way[message.number] = called
        called.begin()

    def _give_up(self, told: CallGivenUp) -> None:
        called = self._under_way.get(told.number)
        if called is not None:
            called.give_up(Cancelled("the calling model cancelled the call"))

    def _proceed(self, told: ResponseTaken) -> None:
        called = self._under_way.get(told.number)
        if called is not None:
            called.proceed()

    def _route_left(self, told: RouteLeft) -> None:
        self.routes.left(told.number)

    def _tell_client_requests(self, asked: ClientRequestsAsked) -> None:
        async def tell() -> None:
            found: CallAnswer
            parents = self._calls.parents
            try:
                found = await parents.client_requests(self._find, asked.requests)
            except EngineError as error:
                found = error
            except Exception as error:  # the model waits for an answer
                logger.exception("the requests behind a run of model %s", self.name)
                found = ExecutionFailed(f"its requests cannot be described: {error}")
            if self._sock.fileno() >= 0:
                self._send_answer(asked.number, found)

        task = self._loop.create_task(tell())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    def _tell_ready(self, asked: ReadyAsked) -> None:
        entry = self._calls.table.paths.get(infer_path(asked.model, asked.version))
        self._send_answer(asked.number, entry is not None)

    def _take_metrics(self, told: MetricsTold) -> None:
        self._calls.metrics.record(self, self.name, told.series)

    # -- its calls

    def check(self, model: str) -> None:
        self._calls.graph.add(self.name, self, model)

    def parents(self, numbers: Sequence[int]) -> list[ParentRequest | None]:
        return self._calls.parents.of(self._find, numbers)

    def client_request(self, numbers: Sequence[int]) -> ClientRequest | int:
        return self._calls.parents.first_client_request(self._find, numbers)

    async def client_requests(self, numbers: Sequence[int]) -> Sequence[ClientRequest]:
        return await self._calls.parents.client_requests(self._find, numbers)

    def respond(self, message: ModelCall, outputs: Mapping[str, Tensor]) -> None:
        send = partial(self._sock.answer, message.number, outputs, True)
        self._queue(send, message.number)

    def answer(self, message: ModelCall, result: CallAnswer) -> None:
        if self._under_way.pop(message.number, None) is None:
            return
        self._send_answer(message.number, result)
        if not isinstance(result, EngineError):
            self.routes.offer(message.model, message.version)

    # -- messages to the process

    def _send_answer(self, number: int, result: CallAnswer) -> None:
        self._queue(partial(self._sock.answer, number, result), number)

    def _queue(self, send: Callable[[], None], number: int = 0) -> None:
        self._unsent.append((number, send))
        if len(self._unsent) == 1:
            self._send()

    def _send(self) -> None:
        """Send as much as the socket takes.

        A process that does not read delays only itself.
        """
        while self._unsent:
            number, send = self._unsent[0]
            try:
                send()
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._send)
                return
            except OSError:
                self.close()
                return
            except (EngineError, ValueError) as error:
                self._fail_unsent(number, error)
            self._unsent.popleft()
        self._loop.remove_writer(self._sock)

    def _fail_unsent(self, number: int, error: Exception) -> None:
        """Fail the call or question whose answer cannot be sent, such as one that is
        too long. Otherwise a thread of the model would wait without end.
        """
        logger.error("an answer to model %s cannot be sent: %s", self.name, error)
        kind = Refused if isinstance(error, Refused) else ExecutionFailed
        failure = kind(f"the answer cannot be sent: {error}")
        called = self._under_way.get(number)
        if called is not None:
            called.give_up(failure)
        elif number:
            self._send_answer(number, failure)

    def close(self) -> None:
        """Cancel the calls in flight."""
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        self._sock.close()
        self.routes.process_ended()
        self._on_close(self)
        self._unsent.clear()
        for called in list(self._under_way.values()):
            called.give_up(Cancelled("the calling model has been unloaded"))
        self._under_way.clear()

    def __repr__(self) -> str:
        return f"<CallingProcess {self.name}, {len(self._under_way)} under way>"
