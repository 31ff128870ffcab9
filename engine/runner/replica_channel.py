"""The client's end of a channel: puts requests into slots and takes results out."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from time import monotonic_ns

import numpy as np

from engine.config import weighted
from engine.devices.device_state import READY
from engine.devices.linked_device import LinkedDevice
from engine.devices.request import (
    FillUp,
    OnDone,
    Request,
    RequestChannel,
    UndelayedRequest,
    WholeRequest,
)
from engine.errors import (
    CallbackFailed,
    DeadlineExceeded,
    DeviceLost,
    EngineBug,
    EngineError,
    InvalidInput,
    QueueFull,
    RunnerClosed,
)
from engine.runner.request_numbers import request_numbers
from engine.runner.runner_description import RunnerDescription
from engine.runner.service_time import SELDOM, ServiceTime
from engine.runner.tracepoints import Tracepoints
from engine.tensor import Array, Tensor
from engine.transport.anchor_ring import MAX_RANK, AnchorRing
from engine.transport.bulk_copy import COPIED_AT_ONCE, COPIER, BulkCopy, bytes_of
from engine.transport.channel import REQUEST, REQUEST_SLOT, Channel
from engine.transport.link import MOST_OUTSTANDING
from engine.transport.outcome import (
    DONE,
    INTERRUPTED,
    Outcome,
    broken_off,
    error_of,
    not_copied,
)
from engine.transport.output_arrays import OutputArrays
from engine.transport.result_memory import RESULT_MEMORY

#: A function that moves a request to another replica, with its inputs. The first
#: replica has not begun the request. Returns whether a replica took it.
Heir = Callable[[Request, Mapping[str, Tensor], int], bool]
#: A function that fetches missing rows. It receives a channel, and the name of the
#: input that a run of the channel's replica waits for. It returns None, or an error
#: that ends the waiting requests.
Flush = Callable[["ReplicaChannel", str], EngineError | None]
logger = logging.getLogger(__name__)

#: From this many bytes of an output on, caches determine the speed of copies.
LARGE_OUTPUT = 256 * 1024

_BYTE = np.dtype(np.uint8)
#: (outcome, number, queue_ns, compute_ns, rows, text) of `finish`.
_Finished = tuple[int, int, int, int, int, int, str]


class _Arriving:
    """The first request of the backlog: a thread copies its inputs to their places."""

    __slots__ = ("copy", "places")

    def __init__(
        self, copy: BulkCopy, places: list[tuple[AnchorRing, Tensor, int]]
    ) -> None:
        self.copy = copy
        self.places = places


class _Leaving:
    """A finished request: a thread copies its outputs out of their slots."""

    __slots__ = ("copy", "outputs", "request")

    def __init__(
        self, request: Request, copy: BulkCopy, outputs: dict[str, Tensor]
    ) -> None:
        self.request = request
        self.copy = copy
        self.outputs = outputs


#: Stands for outputs that are not copied yet.
_LEAVING = EngineBug("outputs are being copied")


class ReplicaChannel(RequestChannel):
    """The rings to one replica on one device, and the requests in flight.

    At most `limit` requests are in flight. A request that finds no room in the rings
    waits in the backlog, as a reference to the caller's memory. It is copied in when
    results make room. Any thread may call the methods, which take the device's lock.

    If an event loop drives, a thread copies large data (`bulk_copy.py`). Meanwhile
    later requests wait in the backlog, and later completions wait in a list, so both
    keep their order. No part of a request is published, and no slot released, before
    its copy has ended.

    A channel is one line of its replica (`ReplicaLines`). It has a `priority` level, a
    `weight` and a `lane`, each of them 0 if it has none. `lines` are all channels to
    the replica, which share `service_time`. `lines` is empty if this is the only
    channel. When the device is lost, requests that have not begun go to `heir`, or fail
    if `heir` is None.
    """

    def __init__(
        self,
        device: LinkedDevice,
        replica: int,
        description: RunnerDescription,
        service_time: ServiceTime,
        priority: int = 0,
        weight: int = 0,
        lane: int = 0,
        heir: Heir | None = None,
        flusher: Flush | None = None,
        tracepoints: Tracepoints | None = None,
    ) -> None:
        self.device = device
        self.device_id = device.id
        self.replica = replica
        self.name = description.name
        self.limit = description.limit_of(priority)
        self.run_timeout = description.run_timeout
        self.late = 0
        self.service_time = service_time
        self.priority = priority
        self.weight = weight
        self.lane = lane
        self.lines: tuple[ReplicaChannel, ...] = ()
        self._heir = heir
        self._flusher = flusher
        self._points = tracepoints
        self._numbers = request_numbers()
        self._kept: dict[int, Mapping[str, Tensor]] = {}
        self._rows = 0
        self._in_flight: dict[int, Request] = {}
        self._backlog: deque[tuple[Request, Mapping[str, Tensor]]] = deque()
        layout = description.layout
        self._arriving: _Arriving | None = None
        self._leaving: _Leaving | None = None
        #: The index of the first output that a thread copies out. `_released` has this
        #: index after the copy until the slots are released, and else -1.
        self._leaving_from = 0
        self._released = -1
        #: The completion whose outputs are being copied, followed by later completions.
        self._finished: deque[_Finished] = deque()
        self._owners = [0] * layout.slots
        self._channel = channel = Channel.create(description.name, layout)
        self._inputs = [
            (desc.name, anchor)
            for desc, anchor in zip(description.inputs, channel.inputs, strict=True)
        ]
        self._outputs = [
            (desc.name, desc.data_type, anchor)
            for desc, anchor in zip(description.outputs, channel.outputs, strict=True)
        ]
        self._lock = device.lock
        #: Whether the channel can take requests. False once it is closed or lost.
        self.usable = True
        self._is_lost = False
        #: Whether requests run in order. Rows of different length do not.
        self._in_order = description.batches.ragged is None
        #: Whether the last outputs were large. If so, results are copied out early.
        self._large_outputs = False
        try:
            self.number = device.open_channel(self, channel, layout)
        except BaseException:
            channel.close()  # otherwise its descriptor would stay open
            raise

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def request_of(self, number: int) -> Request | None:
        """Return the request of this number, while it is in flight."""
        return self._in_flight.get(number)

    @property
    def awaiting(self) -> int:
        """Return the requests in flight that no run has taken yet."""
        with self._lock:
            if not self.usable:
                return 0
            if not self._in_order:
                return len(self._backlog) + len(self._untaken(self._placed()))
            return len(self._backlog) + self._channel.requests.untaken

    @property
    def rows(self) -> int:
        """Return the rows in flight, without those of abandoned requests. A request
        without rows counts as one row.
        """
        return self._rows

    @property
    def waiting(self) -> list[Request]:
        """Return the requests in flight, oldest first."""
        return list(self._in_flight.values())

    def submit(
        self,
        tensors: Mapping[str, Tensor],
        rows: int,
        deadline_ns: int = 0,
        on_done: OnDone | None = None,
        began_ns: int = 0,
        into: OutputArrays | None = None,
        delayed: bool = True,
        optional: bool = False,
    ) -> Request:
        """Copy the tensors into their slots and wake the device. Never blocks.

        The tensors' memory must not change until the request is done. With `began_ns`
        the request's times are recorded in `tracepoints`. The outputs are copied to
        `into` if given, instead of `Request.outputs`. With `delayed` False the request
        does not wait for others to run with it. With `optional` it wants the optional
        outputs too. Raises QueueFull if `limit` requests are in flight. Raises
        DeadlineUnreachable if the waiting requests take until after `deadline_ns`, but
        an idle replica takes the request all the same. Raises InvalidInput if a tensor
        can never fit. After an error nothing is queued.
        """
        with self._lock:
            if len(self._in_flight) >= self.limit:
                raise self._full()
            ahead = self._rows_ahead() if self.lines else self._rows
            predicted = 0
            if ahead and deadline_ns:
                now = monotonic_ns()
                left = deadline_ns - now
                if (ahead + (rows or 1)) * self.service_time.longest_ns > left:
                    predicted = self.service_time.admit(
                        self.name, ahead + (rows or 1), now, left
                    )
            number = next(self._numbers)
            request: Request
            if optional:
                request = WholeRequest(self, number, rows, deadline_ns, on_done, into)
            elif delayed:
                request = Request(self, number, rows, deadline_ns, on_done, into)
            else:
                request = UndelayedRequest(
                    self, number, rows, deadline_ns, on_done, into
                )
            request.predicted_ns = predicted
            request.began_ns = began_ns
            self._queue(request, tensors)
            if not ahead:
                self.service_time.since = request.submitted_ns
            return request

    def _ask_for_rows(self, name: str, waiting: list[Request]) -> None:
        """Ask for data of the input `name`, which a run of the waiting requests needs.
        Called without the lock.
        """
        if self._flusher is not None:
            try:
                failure = self._flusher(self, name)
            except SystemExit as error:  # the callback may not be called again
                what = f"flush_callback (called for rows of {name!r}) raised SystemExit"
                self._give_up(waiting, CallbackFailed(f"{what}: {error}"))
                raise
            if failure is not None:
                self._give_up(waiting, failure)

    def _give_up(self, requests: list[Request], error: EngineError) -> None:
        """End requests whose run will not be filled up. The device forgets them."""
        with self._lock:
            if not self.usable:
                return
            for request in requests:
                slot = request.slot
                if slot >= 0 and self._owners[slot] == request.number:
                    self._channel.set_cancelled(slot, leaves=True)
                if not request.done:
                    self._end(request, error)
            self.device.tell_cancelled()

    def fill_up(
        self, rows: int, tensors: Mapping[str, Tensor], on_done: OnDone
    ) -> None:
        """Queue rows that complete a waiting run (flushing.py)."""
        self.device.origin.check("ModelRunner")
        with self._lock:
            number = next(self._numbers)
            self._queue(FillUp(self, number, rows, 0, on_done), tensors)

    def _queue(self, request: Request, tensors: Mapping[str, Tensor]) -> None:
        if not self.usable:  # closed since the caller picked this channel
            if self._is_lost:
                raise DeviceLost(f"model {self.name!r} lost its device")
            raise self._unloaded()
        device = self.device
        if device.outstanding >= MOST_OUTSTANDING:
            raise QueueFull(f"device {device.id} has too many requests in flight")
        if self._backlog or not self._try_push(request, tensors):
            self._check_fits(tensors)
            self._backlog.append((request, tensors))
        self._in_flight[request.number] = request
        if self._heir is not None:
            self._kept[request.number] = tensors
        device.outstanding += 1
        self._rows += request.rows or 1

    def wait_for_room(self, most: int, end: float | None) -> None:
        """Block while `most` requests are in flight. Raises DeadlineExceeded at `end`
        (`time.monotonic()`).

        Copies finished large results out first, while they are in a cache. Then their
        slots are free for the next requests and still in the cache.
        """
        if self._large_outputs:
            self.device.catch_up()
        while len(self._in_flight) >= min(most, self.limit):
            with self._lock:
                oldest = next((r for r in self._in_flight.values() if not r.done), None)
            if oldest is None:
                return
            left = None if end is None else end - time.monotonic()
            if not oldest.wait(left):
                raise DeadlineExceeded(
                    f"the queue was full until the timeout: {most} requests are in "
                    "flight"
                )

    def _rows_ahead(self) -> int:
        """Return the rows that run before a new request of this line. These are the
        rows of higher levels and of this line. Lines of the same level add as many rows
        as their weights allow meanwhile.
        """
        higher = beside = 0
        mine = weights = self.weight or 1
        for line in self.lines:
            if line.priority < self.priority:
                higher += line.rows
            elif line.priority == self.priority and line is not self and line.rows:
                beside += line.rows
                weights += line.weight or 1
        if beside:
            beside = min(beside, max(1, self._rows) * (weights - mine) // mine or 1)
        return higher + self._rows + beside

    def _try_push(
        self,
        request: Request,
        tensors: Mapping[str, Tensor],
        places: list[tuple[AnchorRing, Tensor, int]] | None = None,
    ) -> bool:
        """Put a request into the rings. Return False if a ring has no room, or if a
        thread copies the request.

        `places` are the places of the request's bytes if they are already copied.
        """
        channel = self._channel
        slot = channel.requests.try_write_lock()
        if slot < 0:
            return False
        # 1. What can fail or find no room, before anything is published: a slot that is
        #    locked and not completed is locked again by the next request, so a request
        #    is either in all rings or in none.
        if places is None:
            places = []
            size = 0
            for name, anchor in self._inputs:
                tensor = tensors.get(name)
                if tensor is None:
                    continue
                if len(tensor.shape) > MAX_RANK:
                    raise _too_many_dimensions(name, tensor)
                size += tensor.nbytes
                if size > COPIED_AT_ONCE and self.device.is_adopted:
                    self._copy_in(tensors)
                    return False
                offset = anchor.place(tensor.nbytes)
                if offset < 0:
                    return False
                end = offset
                for part in tensor.parts:
                    start, end = end, end + len(part)
                    anchor.payload[start:end] = part
                places.append((anchor, tensor, offset))
        # 2. Descriptors, which the device does not read before they are published.
        for anchor, tensor, offset in places:
            anchor.describe(0, request.number, offset, tensor.nbytes, tensor.shape)
        now = request.submitted_ns = monotonic_ns()
        REQUEST.pack_into(
            channel.view,
            channel.requests_at + slot * REQUEST_SLOT,
            request.number,
            request.rows,
            request.flags,
            request.deadline_ns,
            now,
        )
        if not self._in_order:
            channel.set_begun(slot, 0)
        request.slot = slot
        self._owners[slot] = request.number
        # 3. Publish, the request last: a device that sees the request sees its data.
        #    Only then notify: a device that is woken finds it.
        for anchor, _, _ in places:
            anchor.write_complete()
        channel.requests.write_complete()
        self.device.notify(self.number)
        return True

    def _copy_in(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a request to its places in a thread, if there is room for all of it.

        The request becomes the first of the backlog. `_refill` continues with it.
        """
        places: list[tuple[AnchorRing, Tensor, int]] = []
        pairs: list[tuple[Array, Array]] = []
        for name, anchor in self._inputs:
            tensor = tensors.get(name)
            if tensor is None:
                continue
            if len(tensor.shape) > MAX_RANK:
                raise _too_many_dimensions(name, tensor)
            # This does not reserve the place. The place stays free until the request is
            # published, because nothing else is placed meanwhile.
            offset = anchor.place(tensor.nbytes)
            if offset < 0:
                return
            end = offset
            for part in tensor.parts:
                start, end = end, end + len(part)
                if end > start:
                    pairs.append((bytes_of(anchor.payload[start:end]), bytes_of(part)))
            places.append((anchor, tensor, offset))
        copy = BulkCopy(pairs, partial(self.device.follow_up, self._refill))
        self._arriving = _Arriving(copy, places)
        COPIER.add(copy)

    def _check_fits(self, tensors: Mapping[str, Tensor]) -> None:
        for name, anchor in self._inputs:
            tensor = tensors.get(name)
            if tensor is None:
                continue
            if len(tensor.shape) > MAX_RANK:
                raise _too_many_dimensions(name, tensor)
            if tensor.nbytes > anchor.payload_size:
                raise InvalidInput(
                    f"input {name!r} has {tensor.nbytes} bytes, which exceeds the "
                    f"limit of {anchor.payload_size}: send fewer rows at once, or "
                    "raise channel_memory"
                )

    def _refill(self) -> None:
        """Move requests from the backlog into the rings while there is room.

        A request that cannot be moved fails alone, because this call serves other
        requests.
        """
        if self.device.state is not READY:
            return  # being lost or closed, which fails all requests
        while self._backlog:
            request, tensors = self._backlog[0]
            failure: EngineError | None = None
            arriving, places = self._arriving, None
            if arriving is not None:
                if not (arriving.copy.is_over or request.done):
                    return
                self._arriving = None
                arriving.copy.stop()
                places = arriving.places
            try:
                if not request.done:
                    if arriving is not None and arriving.copy.failure is not None:
                        raise arriving.copy.failure
                    if not self._try_push(request, tensors, places):
                        return
            except Exception as error:
                failure = broken_off(error)
            self._backlog.popleft()
            if failure is not None or request.done:  # or cancelled before it had a slot
                del self._in_flight[request.number]
                self._kept.pop(request.number, None)
                self.device.outstanding -= 1
            if failure is not None:
                self._end(request, failure)

    def _end(self, request: Request, error: EngineError) -> None:
        """Resolve a request with an error."""
        self._rows -= request.rows or 1
        request.resolve(error)

    def _full(self) -> QueueFull:
        higher = self._rows_ahead() - self._rows if self.priority > 1 else 0
        return QueueFull(
            f"the queue of {self.name!r} is full: {self.limit} waiting",
            self.service_time.room_ns(higher) / 1e9,
        )

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
        if self._leaving is not None:  # an earlier request is still being copied out
            completion = (outcome, number, queue_ns, compute_ns, rows, longest, text)
            self._finished.append(completion)
            return
        # There are four cases. The request is done and wanted. It is done but was
        # abandoned meanwhile, so its slots must still be released. It ended without
        # results. Or the completion is a question (NEEDS_ROWS) and belongs to no
        # request.
        request = self._in_flight.pop(number, None)
        if request is not None:
            self.device.outstanding -= 1
            if self._kept:
                self._kept.pop(number, None)
        failure: EngineError | None = INTERRUPTED
        goes_on = False
        try:
            wanted = request is not None and not request.done and outcome == DONE
            # Output slots are released in the order of completions. The backlog is
            # moved next, before `resolve` calls back, so that the device has its next
            # work early.
            failed = self._collect(number, outcome, request if wanted else None)
            if failed is _LEAVING and request is not None:
                # `_go_on` continues with it. Until then it is in flight, as the oldest
                # request.
                self._in_flight = {number: request, **self._in_flight}
                self.device.outstanding += 1
                self._finished.appendleft(
                    (outcome, number, queue_ns, compute_ns, rows, longest, text)
                )
                goes_on = True
                return
            if self._backlog:
                self._refill()
            if request is None or request.done:
                self._count_cancelled(outcome, queue_ns, compute_ns, rows, text)
            else:
                request.queue_ns = queue_ns
                request.compute_ns = compute_ns
                request.batch_rows = rows
                request.batch_length = longest
                service = self.service_time
                if outcome == DONE and compute_ns != service.seen:
                    waiting = self._rows_of_lines() if self.lines else self._rows
                    # If nothing waits, no estimate is needed, and only one batch in
                    # `SELDOM` is measured. The batch's running time in nanoseconds
                    # serves as a random number.
                    if waiting > rows or service.is_new or compute_ns % SELDOM == 0:
                        service.observe(rows, queue_ns, compute_ns, waiting)
                    else:
                        service.seen = compute_ns
                if outcome != DONE or request.predicted_ns or request.began_ns:
                    failed = self._look_closer(request, outcome, text, failed)
            failure = failed
        except Exception as error:
            failure = broken_off(error)
        finally:
            if request is not None and not (goes_on or request.done):
                self._rows -= request.rows or 1
                request.resolve(failure)

    def _look_closer(
        self, request: Request, outcome: int, text: str, failed: EngineError | None
    ) -> EngineError | None:
        """Finish a request that failed or has recorded times. Return its error."""
        if request.predicted_ns:
            expired = outcome == Outcome.EXPIRED
            in_time = not expired and monotonic_ns() <= request.predicted_ns
            self.service_time.learn(met=in_time)
        if outcome != DONE:
            return error_of(outcome, text)
        if failed is None and request.began_ns and self._points is not None:
            self._points.record(request)
        return failed

    def _collect(
        self, number: int, outcome: int, request: Request | None
    ) -> EngineError | None:
        """Copy the outputs of request `number` out of their slots if `request` is not
        None, and release the slots. Return the error that prevented a copy, or
        `_LEAVING` if a thread must copy them first.
        """
        if outcome != DONE and not self._in_order:
            return None  # the next outputs belong to another request
        failure: EngineError | None = None
        outputs: dict[str, Tensor] = {}
        size = 0
        anchors = self._outputs
        if self._released >= 0:  # a thread has copied the rest
            anchors, self._released = anchors[self._released :], -1
            outputs = {} if request is None else dict(request.outputs)
        for name, data_type, anchor in anchors:
            slot = -1
            try:
                slot = anchor.find(number, self._in_order)
                if slot >= 0 and request is not None and failure is None:
                    start, nbytes, shape = anchor.record(slot)
                    payload, into = anchor.payload, request.into
                    self._large_outputs = nbytes >= LARGE_OUTPUT
                    size += nbytes
                    if into is not None:
                        into.take(name, data_type, shape, payload, start, nbytes)
                    elif name not in outputs:
                        if size > COPIED_AT_ONCE and self.device.is_adopted:
                            self._copy_out(request, outputs, name)
                            slot = -1  # not released yet
                            return _LEAVING
                        data = bytes(payload[start : start + nbytes])
                        outputs[name] = Tensor(data_type, shape, (data,), nbytes)
            except Exception as error:
                # The slot is released after any error, even a lack of memory or a bug.
                # Otherwise it would block all slots after it.
                failure = not_copied(name, error)
            finally:
                if slot >= 0:
                    anchor.skip()
        if request is not None:
            request.outputs = outputs
            if request.into is not None:
                request.into.end()
        return failure

    def _copy_out(
        self, request: Request, outputs: dict[str, Tensor], first: str
    ) -> None:
        """Copy the outputs of a request in a thread, from the one named `first`.

        The slots before it have been released.
        """
        pairs: list[tuple[Array, Array]] = []
        released = [name for name, _, _ in self._outputs].index(first)
        for name, data_type, anchor in self._outputs[released:]:
            slot = anchor.find(request.number, self._in_order)
            if slot < 0:
                continue
            start, nbytes, shape = anchor.record(slot)
            parts: tuple[memoryview, ...] = ()
            if nbytes:
                array = RESULT_MEMORY.array((nbytes,), _BYTE, nbytes)
                parts = (array.data,)
                pairs.append((array, bytes_of(anchor.payload[start : start + nbytes])))
            outputs[name] = Tensor(data_type, shape, parts, nbytes)
        copy = BulkCopy(pairs, partial(self.device.follow_up, self._go_on))
        self._leaving = _Leaving(request, copy, outputs)
        self._leaving_from = released
        COPIER.add(copy)

    def _go_on(self) -> None:
        """Finish the request whose outputs were copied or are no longer wanted, and
        then the later completions.

        For the side that drives, with the lock held.
        """
        leaving = self._leaving
        if leaving is None or not leaving.copy.is_over:
            return
        self._leaving = None
        self._released = self._leaving_from
        request, finished = leaving.request, self._finished
        if not request.done:
            request.outputs = leaving.outputs
            if leaving.copy.failure is not None:
                name = next(iter(leaving.outputs))
                request.outputs = {}
                self._end(request, not_copied(name, leaving.copy.failure))
        # Call a method, because compiled code would assume that `_leaving` is still
        # None.
        while finished and not self._copies_out():
            self.finish(*finished.popleft())

    def _copies_out(self) -> bool:
        """Return whether a thread copies outputs now."""
        return self._leaving is not None

    def _count_cancelled(
        self, outcome: int, queue_ns: int, compute_ns: int, rows: int, text: str
    ) -> None:
        """Handle a completion whose request was abandoned, or a completion that is a
        question.
        """
        if outcome == Outcome.NEEDS_ROWS:
            # `Device.collect` makes the call after it has released the lock, because a
            # user's callback may submit requests, even to this channel.
            waiting = [r for r in self._in_flight.values() if r.slot >= 0]
            self.device.data_requests.append(partial(self._ask_for_rows, text, waiting))
            return
        self.late += 1
        # Its service time counts too, because abandoned requests show that a machine
        # gets slower. A run that its deadline ended would have taken longer. A run that
        # ended because its client has gone shows nothing.
        if compute_ns and compute_ns != self.service_time.seen:
            expired = outcome == Outcome.EXPIRED
            slower = expired and self.service_time.is_slower(rows, compute_ns)
            if slower or outcome == Outcome.DONE:
                # These rows no longer count as in flight.
                in_flight = rows + self._rows_of_lines()
                self.service_time.observe(rows, queue_ns, compute_ns, in_flight)
        self.service_time.since = time.monotonic_ns()

    def _rows_of_lines(self) -> int:
        """Return rows in flight on the replica."""
        if not self.lines:
            return self._rows
        return sum(line.rows for line in self.lines)

    def wait(self, request: Request, timeout: float | None) -> bool:
        return self.device.wait(request, timeout)

    def abandon(self, request: Request, error: EngineError) -> None:
        """Resolve a request now. The device drops it, or its result is discarded."""
        self.device.origin.check("request")
        with self._lock:
            if request.done:
                return
            # The slot may belong to another request by now. The device releases it with
            # the run, before this side takes the completion.
            slot = request.slot
            usable = self.usable
            try:
                if usable and slot >= 0 and self._owners[slot] == request.number:
                    # Set the flag before the wake-up, so that the device finds it.
                    self._channel.set_cancelled(slot)
                    self.device.tell_cancelled()
                if request.predicted_ns and isinstance(error, DeadlineExceeded):
                    self.service_time.learn(met=False)
                self._measure(request)
            finally:
                self._end(request, error)
            if usable and slot < 0:
                self._refill()
            leaving = self._leaving
            if leaving is not None and leaving.request is request:
                leaving.copy.stop()
                self.device.follow_up(self._go_on)

    def _measure(self, request: Request) -> None:
        """Set the queue time and running time of a request that ends without a
        completion.

        The caller holds the lock.
        """
        slot, submitted = request.slot, request.submitted_ns
        if not self.usable or slot < 0 or self._owners[slot] != request.number:
            return
        now = began = monotonic_ns()
        if self._channel.requests.is_taken(slot):
            began = self.device.run_since(self.replica) or now
        request.queue_ns = max(0, began - submitted)
        request.compute_ns = max(0, now - max(began, submitted))

    def keep_here(self, request: Request) -> None:
        """Bind the request to this replica."""
        with self._lock:
            self._kept.pop(request.number, None)

    def inherit(self, request: Request, tensors: Mapping[str, Tensor]) -> bool:
        """Queue a request that another replica has not begun. Return whether there is
        room for it.
        """
        with self._lock:
            if not self.usable or len(self._in_flight) >= self.limit:
                return False
            ahead = self._rows
            # Results are taken in the order of numbers, so it needs a number after all
            # others here.
            request.number = next(self._numbers)
            request.channel, request.slot, request.predicted_ns = self, -1, 0
            try:
                self._queue(request, tensors)
            except EngineError:
                return False
            if not ahead:
                self.service_time.since = request.submitted_ns
            return True

    def lose(self, error: EngineError) -> Callable[[], None] | None:
        """Fail the requests that runs have taken. If an event loop drives, return a
        function that moves the other requests to another replica.

        The caller holds the lock.
        """
        self._is_lost = True
        heir = self._heir
        if heir is None or not self.device.is_adopted or not self.usable:
            self.fail_all(error)
            return None
        left = self._unstarted()
        for request, _ in left:
            del self._in_flight[request.number]
            self.device.outstanding -= 1
            self._rows -= request.rows or 1
        self.fail_all(error)
        return partial(self._hand_over, heir, left, error)

    @property
    def started(self) -> list[Request]:
        """Return the requests that a run has taken, oldest first."""
        with self._lock:
            if not self.usable:
                return []
            placed = self._placed()
            waiting = {id(request) for request in self._untaken(placed)}
            return [request for request in placed if id(request) not in waiting]

    def _placed(self) -> list[Request]:
        """Return the requests that are in the rings, oldest first."""
        return [r for r in self._in_flight.values() if r.slot >= 0]

    def _untaken(self, placed: list[Request]) -> list[Request]:
        """Return the requests of `placed` that no run has taken."""
        channel = self._channel
        if not self._in_order:
            owners = self._owners
            return [
                r
                for r in placed
                if owners[r.slot] == r.number and not channel.is_begun(r.slot)
            ]
        # Runs take requests in order, so the untaken requests are the last ones.
        count = channel.requests.untaken
        return placed[max(0, len(placed) - count) :] if count else []

    def _unstarted(self) -> list[tuple[Request, Mapping[str, Tensor]]]:
        """Return the requests that no run has taken, oldest first. Another replica may
        take them.
        """
        waiting = {id(request) for request in self._untaken(self._placed())}
        kept = self._kept
        return [
            (request, kept[number])
            for number, request in self._in_flight.items()
            if number in kept
            and not request.done
            and (request.slot < 0 or id(request) in waiting)
        ]

    def _hand_over(
        self,
        heir: Heir,
        left: list[tuple[Request, Mapping[str, Tensor]]],
        error: EngineError,
    ) -> None:
        """Move requests to another device and take its lock.

        The caller does not hold the lock.
        """
        stated = self.priority
        if self.weight:
            stated = weighted(stated, self.weight, self.lane)
        for request, tensors in left:
            if not request.done and not heir(request, tensors, stated):
                request.resolve(error)

    def fail_all(self, error: EngineError) -> None:
        """Fail all requests: the device is lost, or the channel closes."""
        with self._lock:
            self._stop_copies()
            requests = list(self._in_flight.values())
            try:
                for request in requests:
                    self._measure(request)
                self._cancel(requests)
            finally:
                # Set all counts first, because `resolve` calls back and a callback may
                # submit.
                self.device.outstanding -= len(requests)
                self._in_flight.clear()
                self._kept.clear()
                self._backlog.clear()
                self._rows = 0
                for request in requests:
                    request.resolve(error)

    def _stop_copies(self) -> None:
        """Stop all threads that use the rings."""
        arriving, self._arriving = self._arriving, None
        leaving, self._leaving = self._leaving, None
        if arriving is not None:
            arriving.copy.stop()
        if leaving is not None:
            leaving.copy.stop()
        self._finished.clear()

    def _cancel(self, requests: list[Request]) -> None:
        """Tell the device to drop requests, or to end their run."""
        with_device = [r for r in requests if r.slot >= 0 and not r.done]
        if not self.usable or not with_device:
            return
        for request in with_device:
            self._channel.set_cancelled(request.slot)
        self.device.tell_cancelled()

    def close(self) -> None:
        """Fail the requests in flight and release the memory."""
        # If the device is lost, the requests have already failed.
        self.fail_all(self._unloaded())
        with self._lock:
            if self.usable:
                self.usable = False
                self._channel.close()

    def _unloaded(self) -> RunnerClosed:
        return RunnerClosed(f"model {self.name!r} was unloaded")

    def __repr__(self) -> str:
        return (
            f"<ReplicaChannel {self.name!r} on {self.device.id}, "
            f"{len(self._in_flight)}/{self.limit} in flight, {self.late} late>"
        )


def _too_many_dimensions(name: str, tensor: Tensor) -> InvalidInput:
    return InvalidInput(
        f"input {name!r} has {len(tensor.shape)} dimensions; at most {MAX_RANK} are "
        "allowed"
    )
