"""The client's end of the rings of a channel.

`RequestWriter` puts requests into the rings. `ResultReader` takes results out of them.
Both keep the order of requests. `engine/transport/channel.py` has the map of the bytes.

If an event loop drives the device, a thread copies large data (`bulk_copy.py`).
Meanwhile later requests wait in the backlog, and later completions wait in a list. No
part of a request is published, and no slot is released, before its copy has ended.

The device's lock guards both.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from time import monotonic_ns

import numpy as np

from engine.devices.linked_device import LinkedDevice
from engine.devices.request import Request
from engine.errors import EngineBug, EngineError, InvalidInput
from engine.tensor import Array, DataDesc, Tensor
from engine.transport.anchor_ring import MAX_RANK, AnchorRing
from engine.transport.bulk_copy import COPIED_AT_ONCE, COPIER, BulkCopy, bytes_of
from engine.transport.channel import REQUEST, REQUEST_SLOT, Channel
from engine.transport.link import LARGE
from engine.transport.outcome import DONE, broken_off, not_copied
from engine.transport.result_memory import RESULT_MEMORY
from popef_io import DataType

#: From this many bytes of an output on, caches determine the speed of copies.
LARGE_OUTPUT = 256 * 1024
#: Bytes of a request with strings that are as much work for the device as
#: `COPIED_AT_ONCE` bytes of numbers: 13,000 short strings take it 30 ms.
MANY_STRINGS = 64 * 1024

_BYTE = np.dtype(np.uint8)
#: Stands for the error of outputs that are not copied yet.
LEAVING = EngineBug("outputs are being copied")
#: (outcome, number, queue_ns, compute_ns, rows, longest, text) of `finish`.
Completed = tuple[int, int, int, int, int, int, str]


class Arriving:
    """The first request of the backlog: a thread copies its inputs to their places."""

    __slots__ = ("copy", "places")

    def __init__(
        self, copy: BulkCopy, places: list[tuple[AnchorRing, Tensor, int]]
    ) -> None:
        self.copy = copy
        self.places = places


class Leaving:
    """A finished request: a thread copies its outputs out of their slots, from the
    output with index `first` on.
    """

    __slots__ = ("copy", "first", "outputs", "request")

    def __init__(
        self, request: Request, copy: BulkCopy, outputs: dict[str, Tensor], first: int
    ) -> None:
        self.request = request
        self.copy = copy
        self.outputs = outputs
        self.first = first

    def deliver(self) -> EngineError | None:
        """Give the request its outputs. Return the error that ended the copy early, if
        any.
        """
        failure = self.copy.failure
        if failure is not None:
            return not_copied(next(iter(self.outputs)), failure)
        self.request.outputs = self.outputs
        return None


class RequestWriter:
    """Puts requests into the rings of a channel, in their order.

    `backlog` are the requests that found no room. The side that drives the device calls
    `copied` after a thread has copied the inputs of a large request. `in_order` is
    false if runs do not take the requests in their order, because rows have different
    lengths.
    """

    def __init__(
        self,
        device: LinkedDevice,
        channel: Channel,
        inputs: Sequence[DataDesc],
        in_order: bool,
        copied: Callable[[], None],
    ) -> None:
        self._device = device
        self.channel = channel
        self._in_order = in_order
        self._copied = copied
        self._inputs = [
            (desc.name, anchor)
            for desc, anchor in zip(inputs, channel.inputs, strict=True)
        ]
        self.backlog: OrderedDict[int, tuple[Request, Mapping[str, Tensor]]] = (
            OrderedDict()
        )
        has_strings = any(desc.data_type is DataType.STRING for desc in inputs)
        self._large_from = MANY_STRINGS if has_strings else COPIED_AT_ONCE
        self._owners = [0] * channel.layout.slots
        self._arriving: Arriving | None = None

    def push(
        self,
        request: Request,
        tensors: Mapping[str, Tensor],
        number: int,
        places: list[tuple[AnchorRing, Tensor, int]] | None = None,
    ) -> bool:
        """Put a request into the rings, and notify the device of it, with the `number`
        of the channel. Return False if a ring has no room, or if a thread copies the
        request.

        `places` are the places of the request's bytes if they are already copied.
        """
        channel = self.channel
        slot = channel.requests.try_write_lock()
        if slot < 0:
            return False
        # 1. What can fail or find no room, before anything is published: a slot that is
        #    locked and not completed is locked again by the next request, so a request
        #    is either in all rings or in none.
        size = COPIED_AT_ONCE + 1
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
                if size > COPIED_AT_ONCE and self._device.blocking.adopted:
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
        large = LARGE if size > self._large_from else 0
        self._publish(request, places, number | large)
        return True

    def _publish(
        self,
        request: Request,
        places: list[tuple[AnchorRing, Tensor, int]],
        number: int,
    ) -> None:
        """Publish a request and notify the device. If an exception such as
        KeyboardInterrupt comes first, take back what the device was not told of.
        Otherwise the later requests would find it before their own data.
        """
        requests, link = self.channel.requests, self._device.report.link
        told = -1 if link is None else link.submissions.written
        try:
            for anchor, _, _ in places:
                anchor.write_complete()
            requests.write_complete()
            self._device.notify(number)
        except BaseException:
            if link is None or link.submissions.written == told:
                at = self.channel.request_at((requests.written - 1) % requests.capacity)
                if REQUEST.unpack_from(self.channel.view, at)[0] == request.number:
                    requests.take_back()
                for anchor, _, _ in places:
                    slot = (anchor.written - 1) % anchor.capacity
                    if anchor.head(slot)[0] == request.number:
                        anchor.take_back()
            raise

    def _copy_in(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy a request to its places in a thread, if there is room for all of it.

        The request becomes the first of the backlog. `next_dropped` continues with it.
        """
        places: list[tuple[AnchorRing, Tensor, int]] = []
        pairs: list[tuple[Array, Array]] = []
        for _, anchor, tensor in self._given(tensors):
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
        copy = BulkCopy(pairs, partial(self._device.follow_up, self._copied))
        COPIER.add(copy)
        self._arriving = Arriving(copy, places)

    def _given(
        self, tensors: Mapping[str, Tensor]
    ) -> Iterator[tuple[str, AnchorRing, Tensor]]:
        """Yield the inputs that a request has, with their rings. Raises InvalidInput
        for too many dimensions. `push` has the same loop inlined, because each request
        passes it.
        """
        for name, anchor in self._inputs:
            tensor = tensors.get(name)
            if tensor is not None:
                if len(tensor.shape) > MAX_RANK:
                    raise _too_many_dimensions(name, tensor)
                yield name, anchor, tensor

    def keep(self, request: Request, tensors: Mapping[str, Tensor]) -> None:
        """Put a request into the backlog. Raises InvalidInput if it can never fit into
        the rings.
        """
        for name, anchor, tensor in self._given(tensors):
            if tensor.nbytes > anchor.payload_size:
                raise InvalidInput(
                    f"input {name!r} has {tensor.nbytes} bytes, which exceeds the "
                    f"limit of {anchor.payload_size}: send fewer rows at once, or "
                    "raise channel_memory"
                )
        self.backlog[request.number] = request, tensors

    def forget(self, request: Request) -> bool:
        """Remove a request from the backlog; return whether it was in it. The first
        stays, because it may be arriving.
        """
        number = request.number
        is_first = next(iter(self.backlog), number) == number
        return not is_first and self.backlog.pop(number, None) is not None

    def next_dropped(self, number: int) -> tuple[Request, EngineError | None] | None:
        """Move requests from the backlog into the rings while there is room, and notify
        the device of each, with the `number` of the channel.

        Return the first request that leaves the backlog for another reason: with its
        error, or with None if it is already done. Then call this again. Return None if
        no further request can leave the backlog.
        """
        backlog = self.backlog
        while backlog:
            request, tensors = next(iter(backlog.values()))
            failure: EngineError | None = None
            arriving, places = self._arriving, None
            if arriving is not None:
                if not (arriving.copy.is_over or request.done):
                    return None
                self._arriving = None
                arriving.copy.stop()
                places = arriving.places
            try:
                if not request.done:
                    if arriving is not None and arriving.copy.failure is not None:
                        raise arriving.copy.failure
                    if not self.push(request, tensors, number, places):
                        return None
            except Exception as error:
                failure = broken_off(error)
            del backlog[request.number]
            if failure is not None or request.done:  # or cancelled before it had a slot
                return request, failure
        return None

    def owns(self, request: Request) -> bool:
        """Return whether a request has a slot. The slot may belong to another request
        by now: the device releases it with the run, before this side takes the
        completion.
        """
        slot = request.slot
        return slot >= 0 and self._owners[slot] == request.number

    def untaken(self, placed: list[Request]) -> list[Request]:
        """Return the requests that no run has taken. `placed` are the requests in the
        rings, oldest first.
        """
        channel = self.channel
        if not self._in_order:
            return [
                request
                for request in placed
                if self.owns(request) and not channel.is_begun(request.slot)
            ]
        # Runs take requests in order, so the untaken requests are the last ones.
        count = channel.requests.untaken
        return placed[max(0, len(placed) - count) :] if count else []

    def count_awaiting(self, placed: list[Request]) -> int:
        """Return the number of requests that no run has taken, with the backlog."""
        return len(self.backlog) + len(self.untaken(placed))

    def stop(self) -> None:
        """Stop the thread that copies a request to its places."""
        arriving, self._arriving = self._arriving, None
        if arriving is not None:
            arriving.copy.stop()

    def __repr__(self) -> str:
        return f"<RequestWriter, {len(self.backlog)} in the backlog>"


class ResultReader:
    """Takes the results of requests out of the rings of a channel, in the order of
    completions.

    `leaving` is the request whose outputs a thread copies. The side that drives the
    device calls `copied` after that. `waiting` are the completions until then.
    `has_large_outputs` tells whether the last outputs were large.
    """

    def __init__(
        self,
        device: LinkedDevice,
        channel: Channel,
        outputs: Sequence[DataDesc],
        in_order: bool,
        copied: Callable[[], None],
    ) -> None:
        self._device = device
        self._in_order = in_order
        self._copied = copied
        self._outputs = [
            (desc.name, desc.data_type, anchor)
            for desc, anchor in zip(outputs, channel.outputs, strict=True)
        ]
        self.leaving: Leaving | None = None
        self.waiting: deque[Completed] = deque()
        self.has_large_outputs = False
        #: After a thread's copy and until the slots are released, the index of the
        #: first output that the thread copied. Otherwise -1.
        self._released = -1

    def collect(
        self, number: int, outcome: int, request: Request | None
    ) -> EngineError | None:
        """Copy the outputs of request `number` out of their slots if `request` is not
        None, and release the slots. Return the error that prevented a copy, or
        `LEAVING` if a thread must copy them first.
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
                    self.has_large_outputs = nbytes >= LARGE_OUTPUT
                    size += nbytes
                    if into is not None:
                        into.add(name, data_type, shape, payload, start, nbytes)
                    elif name not in outputs:
                        if size > COPIED_AT_ONCE and self._device.blocking.adopted:
                            self._copy_out(request, outputs, name)
                            slot = -1  # not released yet
                            return LEAVING
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
                request.into.finish()
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
        copy = BulkCopy(pairs, partial(self._device.follow_up, self._copied))
        COPIER.add(copy)
        self.leaving = Leaving(request, copy, outputs, released)

    def take_copied(self) -> Leaving | None:
        """Return the request whose outputs a thread has copied, or stopped copying.
        None if there is no such request.
        """
        leaving = self.leaving
        if leaving is None or not leaving.copy.is_over:
            return None
        self.leaving = None
        self._released = leaving.first
        return leaving

    def is_copying(self) -> bool:
        """Return whether a thread copies outputs. `leaving` tells so too, but compiled
        code remembers an attribute that it has compared to None.
        """
        return self.leaving is not None

    def stop_copying(self, request: Request) -> bool:
        """Stop copying the outputs of `request`. Return whether a thread did so."""
        leaving = self.leaving
        if leaving is None or leaving.request is not request:
            return False
        leaving.copy.stop()
        return True

    def stop(self) -> None:
        """Stop the thread that copies outputs, and drop the waiting completions."""
        leaving, self.leaving = self.leaving, None
        if leaving is not None:
            leaving.copy.stop()
        self.waiting.clear()

    def __repr__(self) -> str:
        return f"<ResultReader, {len(self.waiting)} completions wait for a copy>"


def _too_many_dimensions(name: str, tensor: Tensor) -> InvalidInput:
    return InvalidInput(
        f"input {name!r} has {len(tensor.shape)} dimensions; at most {MAX_RANK} are "
        "allowed"
    )
