"""The client's end of a channel: puts requests into slots, takes results out."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from engine.channel import MAX_RANK, REQUEST, AnchorRing, Channel, ChannelLayout
from engine.errors import (
    Cancelled,
    DeadlineExceeded,
    DeviceLost,
    EngineBug,
    EngineError,
    ExecutionFailed,
    InvalidInput,
    QueueFull,
)
from engine.link import Outcome
from engine.request import OnDone, Request
from engine.shared_memory import PAGE, page_aligned
from engine.tensor import DataDesc, Tensor

if TYPE_CHECKING:
    from engine.device import Device

_REQUEST_NUMBERS = itertools.count(1)


class ReplicaChannel:
    """The rings to one replica on one device, and the requests on their way.

    `limit` requests at most are in flight. Those for which the rings have no room yet
    wait here, as references to the caller's memory, and are copied in as soon as
    results make room. All methods may be called from any thread; they take the
    device's lock.
    """

    def __init__(
        self,
        device: Device,
        replica: int,
        name: str,
        inputs: Sequence[DataDesc],
        outputs: Sequence[DataDesc],
        layout: ChannelLayout,
        limit: int,
    ) -> None:
        self.device = device
        self.replica = replica
        self.name = name
        self.limit = limit
        self.late = 0
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
        self._compute_ns = 0.0
        self._closed = False
        self.number = device.open_channel(self, self._channel, layout)

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

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
    ) -> Request:
        """Copy the tensors into their slots and wake the device; never blocks.

        The tensors' memory must stay as it is until the request is done. Raises
        QueueFull where `limit` requests are in flight, InvalidInput where a tensor
        can never fit. Nothing is queued then.
        """
        with self._lock:
            if len(self._in_flight) >= self.limit:
                raise self._full()
            number = next(_REQUEST_NUMBERS)
            request = Request(self, number, rows, deadline_ns, on_done)
            if self._backlog or not self._try_push(request, tensors):
                self._check_fits(tensors)
                self._backlog.append((request, tensors))
            self._in_flight[number] = request
            return request

    def _try_push(self, request: Request, tensors: Mapping[str, Tensor]) -> bool:
        """Put a request into the rings; False where one of them has no room."""
        channel = self._channel
        slot = channel.requests.try_write_lock()
        if slot < 0:
            return False
        # Two steps, so that a request is either in all rings or in none.
        places: list[tuple[AnchorRing, Tensor, int]] = []
        for name, anchor in self._inputs:
            tensor = tensors.get(name)
            if tensor is None:
                continue
            if len(tensor.shape) > MAX_RANK:
                raise InvalidInput(
                    f"input {name!r} has {len(tensor.shape)} dimensions, the most is "
                    f"{MAX_RANK}"
                )
            offset = anchor.place(tensor.nbytes)
            if offset < 0:
                return False
            places.append((anchor, tensor, offset))
        for anchor, tensor, offset in places:
            end = offset
            for part in tensor.parts:
                start, end = end, end + len(part)
                anchor.payload[start:end] = part
            anchor.describe(0, request.number, offset, tensor.nbytes, tensor.shape)
            anchor.ring.write_complete()
        REQUEST.pack_into(
            channel.view,
            channel.request_at(slot),
            request.number,
            request.rows,
            0,
            request.deadline_ns,
            time.monotonic_ns(),
        )
        request.slot = slot
        self._owners[slot] = request.number
        channel.requests.write_complete()
        self.device.notify(self.number)
        return True

    def _check_fits(self, tensors: Mapping[str, Tensor]) -> None:
        for name, anchor in self._inputs:
            tensor = tensors.get(name)
            if tensor is not None and tensor.nbytes > anchor.capacity:
                raise InvalidInput(
                    f"input {name!r} has {tensor.nbytes} bytes, the channel takes "
                    f"{anchor.capacity}: raise channel_memory"
                )

    def _refill(self) -> None:
        """Move requests from the backlog into the rings while there is room."""
        while self._backlog:
            request, tensors = self._backlog[0]
            if not request.done and not self._try_push(request, tensors):
                return
            self._backlog.popleft()
            if request.done:  # cancelled before it got a slot
                self._in_flight.pop(request.number, None)

    def _full(self) -> QueueFull:
        # What is in flight, at the pace of the batches seen so far.
        estimate = max(0.05, len(self._in_flight) * self._compute_ns / 1e9)
        return QueueFull(
            f"the queue of {self.name!r} is full: {self.limit} requests are waiting",
            estimate,
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
        """A completion has come: take the outputs out of their slots and resolve."""
        request = self._in_flight.pop(number, None)
        outputs: dict[str, Tensor] = {}
        for name, data_type, anchor in self._outputs:
            taken = anchor.take(number)
            if taken is not None:
                shape, data = taken
                outputs[name] = Tensor(data_type, shape, (data,), len(data))
        if self._backlog:
            self._refill()
        if request is None or request.done:
            self.late += 1  # nobody waits for it any more
            return
        request.queue_ns = queue_ns
        request.compute_ns = compute_ns
        request.batch_rows = rows
        if outcome == Outcome.DONE:
            self._compute_ns += 0.05 * (compute_ns / max(1, rows) - self._compute_ns)
            request.outputs = outputs
            request.resolve()
        else:
            request.resolve(_error(outcome, text))

    @property
    def usable(self) -> bool:
        """Whether requests can be taken: false once closed or lost."""
        return not self._closed

    def abandon(self, request: Request, error: EngineError) -> None:
        """Resolve a request now; the device drops it, or its result is discarded."""
        with self._lock:
            if request.done:
                return
            slot = request.slot
            usable = not self._closed
            if usable and slot >= 0 and self._owners[slot] == request.number:
                self._channel.set_cancelled(slot)
                self.device.tell_cancelled()
            request.resolve(error)
            if usable and slot < 0:
                self._refill()

    def fail_all(self, error: EngineError) -> None:
        """The device is lost, or the channel closes: everybody is told."""
        with self._lock:
            requests = list(self._in_flight.values())
            self._cancel(requests)
            self._in_flight.clear()
            self._backlog.clear()
            for request in requests:
                request.resolve(error)

    def _cancel(self, requests: list[Request]) -> None:
        """Let the device drop requests, or end their run."""
        with_device = [r for r in requests if r.slot >= 0 and not r.done]
        if self._closed or not with_device:
            return
        for request in with_device:
            self._channel.set_cancelled(request.slot)
        self.device.tell_cancelled()

    def close(self) -> None:
        """Fail what is in flight and give the memory back."""
        self.fail_all(DeviceLost("the channel was closed"))
        with self._lock:
            if not self._closed:
                self._closed = True
                self._channel.close()

    def __repr__(self) -> str:
        return (
            f"<ReplicaChannel {self.name!r} on {self.device.id}, "
            f"{len(self._in_flight)}/{self.limit} in flight, {self.late} late>"
        )


def plan_layout(
    inputs: Sequence[DataDesc],
    outputs: Sequence[DataDesc],
    slots: int,
    rows: int,
    memory: int,
) -> ChannelLayout:
    """Sizes of a channel: `memory` bytes per direction, shared out by need.

    An anchor whose size is known gets what `slots` requests of up to `rows` rows take,
    as far as it goes; one whose size is not known gets an equal share of the rest.
    """
    return ChannelLayout(
        slots, _share(inputs, slots, rows, memory), _share(outputs, slots, rows, memory)
    )


def _share(
    descs: Sequence[DataDesc], slots: int, rows: int, memory: int
) -> tuple[int, ...]:
    if not descs:
        return ()
    equal = max(PAGE, memory // len(descs) // PAGE * PAGE)
    sizes = []
    for desc in descs:
        known = _known_bytes(desc, rows)
        if known is None:
            sizes.append(equal)
        else:
            # Never less than two of the largest requests, so that one can be
            # filled while the other is read.
            sizes.append(max(page_aligned(min(known * slots, equal)), 2 * known + PAGE))
    return tuple(page_aligned(size) for size in sizes)


def _known_bytes(desc: DataDesc, rows: int) -> int | None:
    """Bytes of the largest request where the shape is free in dimension 0 at most."""
    if desc.shape is None or not desc.data_type.item_size:
        return None
    if any(dim < 0 for dim in desc.shape[1:]):
        return None
    nbytes = desc.data_type.item_size
    for position, dim in enumerate(desc.shape):
        if dim >= 0:
            nbytes *= dim
        elif position == 0 and rows:
            nbytes *= rows
        else:
            return None
    return nbytes


def _error(outcome: int, text: str) -> EngineError:
    match outcome:
        case Outcome.EXPIRED:
            return DeadlineExceeded("the deadline passed before the result was there")
        case Outcome.CANCELLED:
            return Cancelled("the request was cancelled")
        case Outcome.INVALID:
            return InvalidInput(text)
        case Outcome.FAILED | Outcome.FAILED_BY_INPUT:
            return ExecutionFailed(
                text, callers_fault=outcome == Outcome.FAILED_BY_INPUT
            )
    return EngineBug(text or f"a request ended as {Outcome(outcome).name}")
