"""The client's end of a channel: puts requests into slots, takes results out."""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from threading import Thread
from time import monotonic_ns

from engine.config import weighted, weighted_with
from engine.devices.device_state import READY
from engine.devices.linked_device import LinkedDevice
from engine.devices.request import (
    FillUp,
    OnDone,
    Request,
    RequestChannel,
    UndelayedRequest,
)
from engine.errors import (
    CallbackFailed,
    DeadlineExceeded,
    DeadlineUnreachable,
    DeviceLost,
    EngineError,
    InvalidInput,
    QueueFull,
    RunnerClosed,
)
from engine.runner.service_time import SELDOM, ServiceTime
from engine.runner.tracepoints import Tracepoints
from engine.tensor import DataDesc, Tensor
from engine.transport.anchor_ring import MAX_RANK, AnchorRing
from engine.transport.channel import REQUEST, REQUEST_SLOT, Channel, ChannelLayout
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

#: Takes a request that another replica of the model had not begun, with its inputs;
#: returns whether it does.
Heir = Callable[[Request, Mapping[str, Tensor], int], bool]
#: Called with a channel and the name of the input that a run of its replica waits for;
#: it returns what ends those that wait, or None.
Flush = Callable[["ReplicaChannel", str], EngineError | None]
#: Opens a channel to the same replica, of a level and a weight. Blocks.
Opener = Callable[[int, int], "ReplicaChannel"]

logger = logging.getLogger(__name__)

#: Bits of a request's number below those of its process.
PROCESS_SHIFT = 40
# Several processes may feed a device: a number is of one request of one of them.
_REQUEST_NUMBERS = itertools.count((os.getpid() << PROCESS_SHIFT) + 1)
#: Retry-After of a full queue: before a service time is known, and at least.
UNKNOWN_ROOM_NS = 1_000_000_000
MIN_ROOM_NS = 1_000_000
#: Bytes of an output from which caches decide how fast copies are.
LARGE_OUTPUT = 256 * 1024


def _renew_numbers() -> None:
    """In a forked child, which is another process."""
    global _REQUEST_NUMBERS
    _REQUEST_NUMBERS = itertools.count((os.getpid() << PROCESS_SHIFT) + 1)


os.register_at_fork(after_in_child=_renew_numbers)


def new_request_number() -> int:
    """A number that no request has, of whatever process."""
    return next(_REQUEST_NUMBERS)


def process_of(number: int) -> int:
    """The process that has made a request of this number."""
    return number >> PROCESS_SHIFT


class ReplicaChannel(RequestChannel):
    """The rings to one replica on one device, and the requests on their way.

    `limit` requests at most are in flight. Those for which the rings have no room yet
    wait here, as references to the caller's memory, and are copied in as soon as
    results make room. All methods may be called from any thread; they take the
    device's lock.

    A replica has one channel for each priority level of its model, which share
    `service_time`; `levels` are all of them, the highest first, and empty if there are
    none. Beside each there is one for every `weight` and `lane` that was asked for,
    opened by `opener`. `lines` are all the channels to the replica, and empty if this
    is the only one.
    """

    def __init__(
        self,
        device: LinkedDevice,
        replica: int,
        name: str,
        inputs: Sequence[DataDesc],
        outputs: Sequence[DataDesc],
        layout: ChannelLayout,
        limit: int,
        service_time: ServiceTime,
        priority: int = 0,
        weight: int = 0,
        opener: Opener | None = None,
    ) -> None:
        self.device = device
        self.device_id = device.id
        self.replica = replica
        self.name = name
        self.limit = limit
        self.late = 0
        self.service_time = service_time
        self.priority = priority
        self.weight = weight
        self.lane = 0
        self.levels: tuple[ReplicaChannel, ...] = ()
        self.lines: tuple[ReplicaChannel, ...] = ()
        self._opener = opener
        self._weighted: dict[tuple[int, int], ReplicaChannel] = {}
        self.flusher: Flush | None = None
        #: Takes what has not begun when the device is lost; None: it fails.
        self.heir: Heir | None = None
        self._kept: dict[int, Mapping[str, Tensor]] = {}
        self.tracepoints: Tracepoints | None = None
        self._rows = 0
        self._in_flight: dict[int, Request] = {}
        self._backlog: deque[tuple[Request, Mapping[str, Tensor]]] = deque()
        self._owners = [0] * layout.slots
        self._channel = channel = Channel.create(name, layout)
        self._inputs = [
            (desc.name, anchor)
            for desc, anchor in zip(inputs, channel.inputs, strict=True)
        ]
        self._outputs = [
            (desc.name, desc.data_type, anchor)
            for desc, anchor in zip(outputs, channel.outputs, strict=True)
        ]
        self._lock = device.lock
        #: Whether requests can be taken: false once closed or lost.
        self.usable = True
        self._is_lost = False
        #: Whether the last outputs were large: then they are copied out early.
        self._large_outputs = False
        self.number = device.open_channel(self, self._channel, layout)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def request_of(self, number: int) -> Request | None:
        """The request of this number, while it is in flight."""
        return self._in_flight.get(number)

    @property
    def awaiting(self) -> int:
        """Requests in flight that no run has taken yet."""
        with self._lock:
            if not self.usable:
                return 0
            return len(self._backlog) + self._channel.requests.untaken

    @property
    def rows(self) -> int:
        """Rows in flight, of requests that are not abandoned; one without rows counts
        as one."""
        return self._rows

    @property
    def waiting(self) -> list[Request]:
        """The requests in flight, oldest first."""
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
    ) -> Request:
        """Copy the tensors into their slots and wake the device; never blocks.

        The tensors' memory must stay as it is until the request is done. `began_ns`:
        record where its time went, in `tracepoints`. `into`: what its outputs are
        copied to, instead of `Request.outputs`. Not `delayed`: it waits for no others
        to run with it. Raises
        QueueFull if `limit` requests are in flight, DeadlineUnreachable if what
        waits takes longer than until `deadline_ns` (a replica that has nothing to do
        tries), InvalidInput if a tensor can never fit. Nothing is queued then.
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
                    predicted = self._admit(ahead + (rows or 1), now, left)
            number = next(_REQUEST_NUMBERS)
            if delayed:
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
        """A run of requests that wait needs data of the input `name`. Called without
        the lock."""
        if self.flusher is not None:
            try:
                failure = self.flusher(self, name)
            except SystemExit as error:  # there may be no later chance
                what = f"flush_callback, asked for rows of {name!r}, raised SystemExit"
                self._give_up(waiting, CallbackFailed(f"{what}: {error}"))
                raise
            if failure is not None:
                self._give_up(waiting, failure)

    def _give_up(self, requests: list[Request], error: EngineError) -> None:
        """End requests whose run will not be filled up; the device forgets them."""
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
        """Queue rows that complete a run which waits for some (flushing.py)."""
        self.device.origin.check("ModelRunner")
        with self._lock:
            number = next(_REQUEST_NUMBERS)
            self._queue(FillUp(self, number, rows, 0, on_done), tensors)

    def _queue(self, request: Request, tensors: Mapping[str, Tensor]) -> None:
        if not self.usable:  # since the caller picked this channel
            if self._is_lost:
                raise DeviceLost(f"{self.name!r} lost its device")
            raise self._unloaded()
        device = self.device
        if device.outstanding >= MOST_OUTSTANDING:
            raise QueueFull(f"device {device.id} has too many requests in flight")
        if self._backlog or not self._try_push(request, tensors):
            self._check_fits(tensors)
            self._backlog.append((request, tensors))
        self._in_flight[request.number] = request
        if self.heir is not None:
            self._kept[request.number] = tensors
        device.outstanding += 1
        self._rows += request.rows or 1

    def wait_for_room(self, most: int, end: float | None) -> None:
        """Block while `most` requests are in flight; DeadlineExceeded at `end`
        (`time.monotonic()`).

        Large results that are there are copied out first, while they are in a cache:
        then their slots are free for the next requests, and in it too.
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

    def line(self, priority: int) -> ReplicaChannel:
        """The channel of requests that state this priority (`ModelRunner.submit`)."""
        if priority >= 0:
            known = 0 < priority <= len(self.levels)
            return self.levels[priority - 1] if known else self
        level, weight, lane = weighted_with(priority)
        return self.line(level)._of_weight(weight, lane)

    def _of_weight(self, weight: int, lane: int) -> ReplicaChannel:
        found = self._weighted.get((weight, lane))
        if found is None:
            # Opening it waits for what runs. Until it is there, they wait with all.
            self._weighted[weight, lane] = found = self
            name = f"popgate-weight-{weight}-{lane}"
            Thread(
                target=self._open_line, args=(weight, lane), name=name, daemon=True
            ).start()
        return found

    def _open_line(self, weight: int, lane: int) -> None:
        """Open the channel of a weight, in a thread."""
        assert self._opener is not None
        try:
            mine = self._opener(self.priority, weight)
        except (EngineError, OSError) as error:  # the device is lost, most likely
            if self.usable:
                what = "%r: requests of weight %d have no line of their own: %s"
                logger.warning(what, self, weight, error)
            return
        mine.lane = lane
        mine.flusher, mine.heir = self.flusher, self.heir
        mine.tracepoints = self.tracepoints
        with self._lock:
            usable = self.usable
            if usable:
                mine.levels = self.levels
                lines = (*(self.lines or (self,)), mine)
                for line in lines:
                    line.lines = lines
                self._weighted[weight, lane] = mine
        if usable:
            logger.debug("%r is a line of weight %d", mine, weight)
        else:
            self.device.close_channel(mine)

    def _rows_ahead(self) -> int:
        """Rows that run before a request of this line: those of higher levels and its
        own, and as many of its neighbours as their weights let run meanwhile."""
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

    def _admit(self, rows: int, now: int, left: int) -> int:
        """Admission control: the predicted completion of the last of `rows` rows.

        Raises DeadlineUnreachable if that is over `left` nanoseconds from `now`.
        """
        predicted = self.service_time.completion_ns(rows, now)
        late = predicted - now - left
        if late > 0:
            raise DeadlineUnreachable(
                f"the predicted completion is {late / 1e9:.3f} s after the deadline: "
                f"the queue of {self.name!r} takes longer than the "
                f"{max(0, left) / 1e9:.3f} s that are left",
                (self.service_time.admission_ns(rows, left, now) - now) / 1e9,
            )
        return predicted

    def _try_push(self, request: Request, tensors: Mapping[str, Tensor]) -> bool:
        """Put a request into the rings; False if one of them has no room."""
        channel = self._channel
        slot = channel.requests.try_write_lock()
        if slot < 0:
            return False
        # 1. What can fail or find no room, before anything is published: a slot that is
        #    locked and not completed is locked again by the next request, so a request
        #    is either in all rings or in none.
        places: list[tuple[AnchorRing, Tensor, int]] = []
        for name, anchor in self._inputs:
            tensor = tensors.get(name)
            if tensor is None:
                continue
            if len(tensor.shape) > MAX_RANK:
                raise _too_many_dimensions(name, tensor)
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
        request.slot = slot
        self._owners[slot] = request.number
        # 3. Publish, the request last: a device that sees the request sees its data.
        #    Only then notify: a device that is woken finds it.
        for anchor, _, _ in places:
            anchor.write_complete()
        channel.requests.write_complete()
        self.device.notify(self.number)
        return True

    def _check_fits(self, tensors: Mapping[str, Tensor]) -> None:
        for name, anchor in self._inputs:
            tensor = tensors.get(name)
            if tensor is None:
                continue
            if len(tensor.shape) > MAX_RANK:
                raise _too_many_dimensions(name, tensor)
            if tensor.nbytes > anchor.payload_size:
                raise InvalidInput(
                    f"input {name!r} has {tensor.nbytes} bytes, a request may bring "
                    f"{anchor.payload_size} of it (the engine's option "
                    "channel_memory): send fewer rows at once"
                )

    def _refill(self) -> None:
        """Move requests from the backlog into the rings while there is room.

        One that cannot be moved fails alone: here, others are being seen to.
        """
        if self.device.state is not READY:
            return  # it is being lost, or closed: they will all be failed
        while self._backlog:
            request, tensors = self._backlog[0]
            failure: EngineError | None = None
            try:
                if not request.done and not self._try_push(request, tensors):
                    return
            except Exception as error:
                failure = broken_off(error)
            self._backlog.popleft()
            if failure is not None or request.done:  # or cancelled before it got a slot
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
        now = time.monotonic_ns()
        known = self.service_time.seen >= 0
        room = self.service_time.batch_end_ns(now) if known else now + UNKNOWN_ROOM_NS
        if self.levels and self.priority > 1:
            before = self._rows_ahead() - self._rows
            room = max(
                room, self.service_time.completion_ns(before, now) if before else 0
            )
        return QueueFull(
            f"the queue of {self.name!r} is full: {self.limit} waiting",
            max(MIN_ROOM_NS, room - now) / 1e9,
        )

    def finish(
        self,
        outcome: int,
        number: int,
        queue_ns: int,
        compute_ns: int,
        rows: int,
        text: str,
    ) -> None:
        """A completion has come: take the outputs out of their slots and resolve.

        Once the request is no longer in flight only this call can resolve it, so
        whatever is raised from there on ends up at its `resolve`.
        """
        # One of four cases: done and waited for; done, but abandoned meanwhile (its
        # slots are released all the same); ended without results; or a question
        # (NEEDS_ROWS), which is of no request.
        request = self._in_flight.pop(number, None)
        if request is not None:
            self.device.outstanding -= 1
            if self._kept:
                self._kept.pop(number, None)
        failure: EngineError | None = INTERRUPTED
        try:
            wanted = request is not None and not request.done and outcome == DONE
            # Output slots are released in the order of completions. Then the backlog,
            # before `resolve` calls back, so that the device has its next work early.
            failed = self._collect(number, request if wanted else None)
            if self._backlog:
                self._refill()
            if request is None or request.done:
                self._count_cancelled(outcome, queue_ns, compute_ns, rows, text)
            else:
                request.queue_ns = queue_ns
                request.compute_ns = compute_ns
                request.batch_rows = rows
                service = self.service_time
                if outcome == DONE and compute_ns != service.seen:
                    waiting = self._rows_of_lines() if self.lines else self._rows
                    # Where nothing waits no estimate is needed, and one batch in so
                    # many is measured; any number is a fair die.
                    if waiting > rows or service.is_new or compute_ns % SELDOM == 0:
                        service.observe(rows, queue_ns, compute_ns, waiting)
                    else:
                        service.seen = compute_ns
                if request.predicted_ns:
                    expired = outcome == Outcome.EXPIRED
                    in_time = not expired and monotonic_ns() <= request.predicted_ns
                    self.service_time.learn(met=in_time)
                if outcome != DONE:
                    failed = error_of(outcome, text)
                elif (
                    failed is None and request.began_ns and self.tracepoints is not None
                ):
                    self.tracepoints.record(request)
            failure = failed
        except Exception as error:
            failure = broken_off(error)
        finally:
            if request is not None and not request.done:
                self._rows -= request.rows or 1
                request.resolve(failure)

    def _collect(self, number: int, request: Request | None) -> EngineError | None:
        """Copy the outputs of request `number` out of their slots, where `request` is
        there to have them, and release the slots. Returns what kept them from being
        copied."""
        failure: EngineError | None = None
        outputs: dict[str, Tensor] = {}
        for name, data_type, anchor in self._outputs:
            slot = -1
            try:
                slot = anchor.find(number)
                if slot >= 0 and request is not None and failure is None:
                    start, nbytes, shape = anchor.record(slot)
                    payload, into = anchor.payload, request.into
                    self._large_outputs = nbytes >= LARGE_OUTPUT
                    if into is not None:
                        into.take(name, data_type, shape, payload, start, nbytes)
                    else:
                        data = bytes(payload[start : start + nbytes])
                        outputs[name] = Tensor(data_type, shape, (data,), nbytes)
            except Exception as error:
                # The slot is released whatever it was, a lack of memory or a bug: one
                # that is not would hold up all those behind it.
                failure = not_copied(name, error)
            finally:
                if slot >= 0:
                    anchor.skip()
        if request is not None:
            request.outputs = outputs
            if request.into is not None:
                request.into.end()
        return failure

    def _count_cancelled(
        self, outcome: int, queue_ns: int, compute_ns: int, rows: int, text: str
    ) -> None:
        """Count a completion whose request was abandoned; or one that is a question."""
        if outcome == Outcome.NEEDS_ROWS:
            # Called back by `Device.collect` after it has released the lock: a user's
            # callback may submit requests, to this channel too.
            waiting = [r for r in self._in_flight.values() if r.slot >= 0]
            self.device.data_requests.append(partial(self._ask_for_rows, text, waiting))
            return
        self.late += 1
        # Its service time counts all the same: when a machine gets slower,
        # it is said by those who could not wait for it. One that was ended by its
        # deadline would have taken longer; one whose client has gone says nothing.
        if compute_ns and compute_ns != self.service_time.seen:
            expired = outcome == Outcome.EXPIRED
            slower = expired and self.service_time.is_slower(rows, compute_ns)
            if slower or outcome == Outcome.DONE:
                # They are no longer counted as in flight.
                in_flight = rows + self._rows_of_lines()
                self.service_time.observe(rows, queue_ns, compute_ns, in_flight)
        self.service_time.since = time.monotonic_ns()

    def _rows_of_lines(self) -> int:
        """Rows in flight on the replica."""
        if not self.lines:
            return self._rows
        return sum(line.rows for line in self.lines)

    def wait(self, request: Request, timeout: float | None) -> bool:
        return self.device.wait(request, timeout)

    def abandon(self, request: Request, error: EngineError) -> None:
        """Resolve a request now; the device drops it, or its result is discarded."""
        self.device.origin.check("request")
        with self._lock:
            if request.done:
                return
            # The slot may be another request's by now: the device releases it with the
            # run, before its completion is taken here.
            slot = request.slot
            usable = self.usable
            try:
                if usable and slot >= 0 and self._owners[slot] == request.number:
                    # The flag before the wake-up, so that the device finds it.
                    self._channel.set_cancelled(slot)
                    self.device.tell_cancelled()
                if request.predicted_ns and isinstance(error, DeadlineExceeded):
                    self.service_time.learn(met=False)
            finally:
                self._end(request, error)
            if usable and slot < 0:
                self._refill()

    def keep_here(self, request: Request) -> None:
        """It is for this replica and no other."""
        with self._lock:
            self._kept.pop(request.number, None)

    def inherit(self, request: Request, tensors: Mapping[str, Tensor]) -> bool:
        """Queue a request that another replica had not begun; returns whether there is
        room for it."""
        with self._lock:
            if not self.usable or len(self._in_flight) >= self.limit:
                return False
            ahead = self._rows
            request.channel, request.slot, request.predicted_ns = self, -1, 0
            try:
                self._queue(request, tensors)
            except EngineError:
                return False
            if not ahead:
                self.service_time.since = request.submitted_ns
            return True

    def lose(self, error: EngineError) -> Callable[[], None] | None:
        """What no run has taken goes to another replica, if an event loop drives; the
        rest fails. Lock held by the caller."""
        self._is_lost = True
        heir = self.heir
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

    def _unstarted(self) -> list[tuple[Request, Mapping[str, Tensor]]]:
        """The requests that no run has taken, oldest first, which another replica may
        have."""
        # Taken in their order, so those of the rings that are not are the last ones.
        placed = [r for r in self._in_flight.values() if r.slot >= 0]
        count = self._channel.requests.untaken
        waiting = {id(r) for r in placed[len(placed) - count :]} if count else set()
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
        """Without the lock: it takes that of another device."""
        stated = self.priority
        if self.weight:
            stated = weighted(stated, self.weight, self.lane)
        for request, tensors in left:
            if not request.done and not heir(request, tensors, stated):
                request.resolve(error)

    def fail_all(self, error: EngineError) -> None:
        """Fail all requests: the device is lost, or the channel closes."""
        with self._lock:
            requests = list(self._in_flight.values())
            try:
                self._cancel(requests)
            finally:
                # All counts first: `resolve` calls back, and a callback may submit.
                self.device.outstanding -= len(requests)
                self._in_flight.clear()
                self._kept.clear()
                self._backlog.clear()
                self._rows = 0
                for request in requests:
                    request.resolve(error)

    def _cancel(self, requests: list[Request]) -> None:
        """Let the device drop requests, or end their run."""
        with_device = [r for r in requests if r.slot >= 0 and not r.done]
        if not self.usable or not with_device:
            return
        for request in with_device:
            self._channel.set_cancelled(request.slot)
        self.device.tell_cancelled()

    def close(self) -> None:
        """Fail what is in flight and give the memory back."""
        # Of a device that is lost it has failed already: the model is unloaded.
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


def least_busy(channels: Iterable[ReplicaChannel | None]) -> ReplicaChannel | None:
    """Of those that can take requests, the one whose replica has the fewest; None if
    there is none."""
    ready = [c for c in channels if c is not None and c.usable]
    return min(ready, key=_busy) if ready else None


def _busy(channel: ReplicaChannel) -> int:
    """Requests in flight on the replica of a channel."""
    if not channel.lines:
        return channel.in_flight
    return sum(line.in_flight for line in channel.lines)


def _too_many_dimensions(name: str, tensor: Tensor) -> InvalidInput:
    return InvalidInput(
        f"input {name!r} has {len(tensor.shape)} dimensions, at most {MAX_RANK} are "
        "possible"
    )
