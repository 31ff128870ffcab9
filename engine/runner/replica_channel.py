"""`ReplicaChannel`: the client's end of a channel, which carries requests to one
replica.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from engine.config import weighted
from engine.devices.device_state import READY
from engine.devices.linked_device import LinkedDevice
from engine.devices.request import OnDone, Request, RequestChannel
from engine.errors import DeviceLost, EngineError, QueueFull, RunnerClosed
from engine.runner.admission import Admission
from engine.runner.channel_rings import LEAVING, RequestWriter, ResultReader
from engine.runner.failover import Failover, Reroute
from engine.runner.in_flight import InFlight
from engine.runner.request_numbers import request_numbers
from engine.runner.runner_description import RunnerDescription
from engine.runner.service_time import SELDOM, ServiceTime
from engine.runner.tracepoints import Tracepoints
from engine.tensor import Tensor
from engine.transport.channel import FILLS_UP, UNDELAYED, WANTS_ALL, Channel
from engine.transport.link import MOST_OUTSTANDING
from engine.transport.outcome import DONE, INTERRUPTED, NEEDS_ROWS, broken_off
from engine.transport.output_arrays import OutputArrays

#: A function that fetches missing rows. It receives a channel, the name of the input
#: that a run of the channel's replica waits for, and the requests in the rings.
Flush = Callable[["ReplicaChannel", str, list[Request]], None]


class ReplicaChannel(RequestChannel):
    """The way of requests to one replica, and of their results back.

    A request that finds no room in the rings waits, as a reference to the caller's
    memory, until results make room. Any thread may call the methods, which take the
    device's lock.

    A channel is one line of its replica (`ReplicaLines`). It has a `priority` level, a
    `weight` and a `lane`, each of them 0 if it has none. `lines` are all lines of the
    replica once there are several. If the device is lost, requests that have not begun
    are passed to `reroute`, or fail if it is None.
    """

    def __init__(
        self,
        device: LinkedDevice,
        replica: int,
        description: RunnerDescription,
        service_time: ServiceTime,
        lines: list[Admission],
        priority: int = 0,
        weight: int = 0,
        lane: int = 0,
        reroute: Reroute | None = None,
        flusher: Flush | None = None,
        tracepoints: Tracepoints | None = None,
    ) -> None:
        self.device = device
        self.device_id = device.id
        self.replica = replica
        self.name = description.name
        self.limit = description.limit_of(priority)
        self.run_timeout = description.run_timeout
        self.late = 0  # completions of requests that were abandoned before
        self.priority, self.weight, self.lane = priority, weight, lane
        self.admission = Admission(
            self.name, self.limit, service_time, lines, priority, weight, tracepoints
        )
        self._flusher = flusher
        stated = weighted(priority, weight, lane) if weight else priority
        self._failover = None if reroute is None else Failover(reroute, stated)
        self._numbers = request_numbers()
        self._in_order = in_order = description.batches.ragged is None
        channel = Channel.create(self.name, description.layout)
        self._writer = RequestWriter(
            device, channel, description.inputs, in_order, self._refill
        )
        self.reader = ResultReader(
            device, channel, description.outputs, in_order, self._go_on
        )
        self.flight = InFlight(
            device, replica, self._writer, self.reader, self.admission, self._failover
        )
        self._lock = device.lock
        #: Whether the channel can take requests. False once it is closed or lost.
        self.usable = True
        self._is_lost = False
        try:
            self.number = device.open_channel(self, channel, description.layout)
        except BaseException:
            channel.close()  # otherwise its descriptor would stay open
            raise

    @property
    def in_flight(self) -> int:
        return len(self.flight.requests)

    @property
    def waiting(self) -> list[Request]:
        return list(self.flight.requests.values())

    @property
    def started(self) -> list[Request]:
        return self.flight.started

    def request_of(self, number: int) -> Request | None:
        return self.flight.requests.get(number)

    def submit(
        self,
        tensors: Mapping[str, Tensor],
        rows: int,
        deadline: float | None = None,
        on_done: OnDone | None = None,
        began_ns: int = 0,
        into: OutputArrays | None = None,
        delayed: bool = True,
        optional: bool = False,
    ) -> Request:
        """Copy the tensors into their slots and wake the device. Never blocks.

        The tensors' memory must not change until the request is done. The parameters
        and errors are those of `ModelRunner.submit`. If no request is in flight, none
        is refused for its deadline. After an error nothing is queued.
        """
        # 1 ns at least, because 0 is no deadline. NaN, in this order, becomes 1 ns too.
        ns = 0 if deadline is None else int(min(9e9, max(1e-9, deadline)) * 1e9)
        with self._lock:
            admission = self.admission
            if len(self.flight.requests) >= self.limit:
                raise admission.full()
            ahead = admission.rows_ahead() if admission.lines else admission.rows
            expected = admission.predict(ahead + (rows or 1), ns) if ahead and ns else 0
            flags = WANTS_ALL if optional else 0 if delayed else UNDELAYED
            number = next(self._numbers)
            request = Request(self, number, rows, ns, on_done, into, flags)
            request.predicted_ns = expected
            request.began_ns = began_ns
            self._queue(request, tensors, ahead)
            return request

    def fill_up(
        self, rows: int, tensors: Mapping[str, Tensor], on_done: OnDone
    ) -> None:
        """Queue rows that complete a waiting run (flushing.py)."""
        self.device.fork_guard.check("ModelRunner")
        with self._lock:
            number = next(self._numbers)
            request = Request(self, number, rows, 0, on_done, None, FILLS_UP)
            self._queue(request, tensors, 1)

    def requeue(self, request: Request, tensors: Mapping[str, Tensor]) -> bool:
        """Queue a request that another replica has not begun. Return whether there is
        room for it.
        """
        with self._lock:
            if not self.usable or self.in_flight >= self.limit:
                return False
            # Results are taken in the order of numbers, so it needs a number after all
            # others here.
            request.move(self, next(self._numbers))
            try:
                self._queue(request, tensors, self.admission.rows)
            except EngineError:
                return False
            return True

    def _queue(
        self, request: Request, tensors: Mapping[str, Tensor], ahead: int
    ) -> None:
        """Queue a request behind `ahead` rows."""
        if not self.usable:  # closed since the caller picked this channel
            if self._is_lost:
                raise DeviceLost(f"model {self.name!r} lost its device")
            raise RunnerClosed(f"model {self.name!r} was unloaded")
        device = self.device
        if device.outstanding >= MOST_OUTSTANDING:
            raise QueueFull(f"device {device.id} has too many requests in flight")
        writer = self._writer
        if writer.backlog or not writer.push(request, tensors, self.number):
            writer.keep(request, tensors)
        self.flight.requests[request.number] = request
        if self._failover is not None:
            self._failover.kept[request.number] = tensors
        device.outstanding += 1
        self.admission.rows += request.rows or 1
        if not ahead:
            self.admission.service_time.since = request.submitted_ns

    def _refill(self) -> None:
        """Move requests from the backlog into the rings while there is room.

        A request that cannot be moved fails alone, because this call serves other
        requests.
        """
        if self.device.state is not READY:
            return  # being lost or closed, which fails all requests
        while (dropped := self._writer.next_dropped(self.number)) is not None:
            self.flight.drop(*dropped)

    # -- finishing

    def finish(
        self,
        outcome: int,
        number: int,
        queue_ns: int,
        compute_ns: int,
        rows: int,
        longest: int,
        text: str,
    ) -> None:
        """Finish a request: take its outputs out of their slots and resolve it.

        Once the request is no longer in flight, only this call can resolve it. So the
        request is resolved even if an error is raised.
        """
        reader, flight, admission = self.reader, self.flight, self.admission
        if reader.leaving is not None:  # an earlier request is still being copied out
            completion = (outcome, number, queue_ns, compute_ns, rows, longest, text)
            reader.waiting.append(completion)
            return
        if outcome == NEEDS_ROWS:
            if self._flusher is not None:
                _ask_for_rows(self, self._flusher, text, number)
            return
        # The request is done and wanted. Or it was abandoned, so its slots must still
        # be released. Or it ended without results.
        request = flight.requests.get(number)
        failure: EngineError | None = INTERRUPTED
        goes_on = False
        if request is not None:  # no call from here to `try`: it could be interrupted
            del flight.requests[number]
            self.device.outstanding -= 1
        try:
            if self._failover is not None:
                self._failover.kept.pop(number, None)
            wanted = request is not None and not request.done and outcome == DONE
            # Output slots are released in the order of completions. The backlog is
            # moved next, before `resolve` calls back, so that the device has its next
            # work early.
            # If it was finished before, the next outputs may be of other requests.
            is_first = request is not None or self._in_order
            taker = request if wanted else None
            failed = reader.collect(number, outcome, taker) if is_first else None
            if failed is LEAVING and request is not None:
                # `_go_on` continues with it. Until then it is in flight, as the oldest
                # request.
                flight.put_back(request)
                reader.waiting.appendleft(
                    (outcome, number, queue_ns, compute_ns, rows, longest, text)
                )
                goes_on = True
                return
            if self._writer.backlog:
                self._refill()
            if request is not None and not request.done:
                request.queue_ns = queue_ns
                request.compute_ns = compute_ns
                request.batch_rows = rows
                request.batch_length = longest
                service = admission.service_time
                if (
                    outcome == DONE
                    and not (request.predicted_ns or request.began_ns)
                    and not (admission.lines or admission.rows > rows or service.is_new)
                    and compute_ns % SELDOM
                ):
                    service.seen = compute_ns  # nothing waits, so nothing is learned
                else:
                    failed = admission.learn(request, outcome, text, failed)
            else:
                self.late += 1
                admission.learn_abandoned(outcome, queue_ns, compute_ns, rows)
            failure = failed
        except Exception as error:
            failure = broken_off(error)
        finally:
            if request is not None and not (goes_on or request.done):
                admission.rows -= request.rows or 1
                request.resolve(failure)

    def _go_on(self) -> None:
        """Finish the request whose outputs were copied or are no longer wanted, and
        then the later completions.

        For the side that drives, with the lock held.
        """
        reader = self.reader
        leaving = reader.take_copied()
        if leaving is None:
            return
        request = leaving.request
        if not request.done:
            failure = leaving.deliver()
            if failure is not None:
                self.flight.fail(request, failure)
        while reader.waiting and not reader.is_copying():
            self.finish(*reader.waiting.popleft())

    def wait(self, request: Request, timeout: float | None) -> bool:
        return self.device.blocking.wait(request, timeout)

    def abandon(self, request: Request, error: EngineError) -> None:
        self.device.fork_guard.check("request")
        with self._lock:
            if request.done:
                return
            self.flight.abandon(request, error)
            if self.usable and request.slot < 0:
                self._refill()
            if self.reader.stop_copying(request):
                self.device.follow_up(self._go_on)

    def lose(self, error: EngineError) -> Callable[[], None] | None:
        self._is_lost = True
        return self.flight.lose(error)

    def fail_all(self, error: EngineError) -> None:
        self.flight.fail_all(error)

    def close(self) -> None:
        with self._lock:
            self.flight.close(RunnerClosed(f"model {self.name!r} was unloaded"))
            self.usable = False

    def __repr__(self) -> str:
        counts = f"{self.in_flight}/{self.limit} in flight, {self.late} late"
        return f"<ReplicaChannel {self.name!r} on {self.device.id}, {counts}>"


def _ask_for_rows(
    channel: ReplicaChannel, flusher: Flush, name: str, number: int
) -> None:
    """Let the user's callback give rows of an input. The device waits for them since it
    took request `number`.

    If that request has ended meanwhile, the device asks again for those after it.
    """
    waiting = channel.flight.until(number)
    if waiting:
        # The device makes the call without its lock, because a user's callback may
        # submit requests, even to this channel.
        ask = partial(flusher, channel, name, waiting)
        channel.device.data_requests.append(ask)
