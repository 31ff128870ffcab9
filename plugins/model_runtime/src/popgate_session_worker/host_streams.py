"""The streams of a session in the device process, which request data from the host.

`popgate_session_messages` has the messages that they exchange while programs run. An
anchor is its place in the model's metadata. Prefetch requests are for reads that are
certain to follow.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import count
from math import prod
from typing import Any

import msgspec
import numpy as np

from engine.errors import AnchorsNotConnected, Cancelled, EngineBug, InvalidModel
from engine.programs.model_data import ModelData
from engine.tensor import Array
from engine.transport.messages import close_all, send
from engine.transport.shared_memory import SharedMemory
from popef_io import Anchor, DataType, TensorType, decode_strings, encode_strings
from popgate_session_messages import (
    DURING_RUN,
    MOST_BYTES,
    Abort,
    Ahead,
    AnchorBinding,
    Data,
    DataLocation,
    DeviceMessage,
    Need,
    Prefetch,
    Segment,
    Stored,
    Wrote,
)
from popgate_session_worker.stream_places import (
    InputStream,
    OutputStream,
    Place,
    StreamPlaces,
    fixed_size,
)

#: Outputs of one stream that wait for the host before the program waits too.
_WRITES_AHEAD = 4
#: Most prefetch requests in flight, over all streams; the meaning of "unlimited".
MAX_PREFETCHES = 64
#: Most bytes of prefetched inputs, over all streams.
_PREFETCH_BYTES = 64 * 1024 * 1024


class HostStreams:
    """The streams of a session, served over `sock`, by the file or by neither.

    `look_ahead`: how many reads may be prefetched. For one thread.
    """

    def __init__(
        self,
        sock: socket.socket,
        anchors: Sequence[Anchor],
        data: ModelData,
        look_ahead: int,
    ) -> None:
        self._sock = sock
        self._poller = select.poll()
        self._poller.register(sock, select.POLLIN)
        self._data = data
        self._look_ahead = min(look_ahead, MAX_PREFETCHES)
        self._numbers = count()
        self._unsent: list[tuple[int, SharedMemory]] = []
        self._anchors = {(a.type, a.handle): a for a in anchors}
        self._inputs: dict[str, InputStream] = {}
        self._outputs: dict[str, OutputStream] = {}
        self._all_inputs: dict[int, InputStream] = {}
        self._all_outputs: dict[int, OutputStream] = {}
        self._dummies: frozenset[str] = frozenset()
        self._dropped: frozenset[str] = frozenset()
        self._ready: frozenset[str] = frozenset()
        self._from_file: frozenset[str] = frozenset()
        self._coming: Iterator[str] = iter(())
        #: Anchors whose prefetched data were read, not reported to the host yet.
        self._consumed: list[int] = []
        self._prefetched_bytes = 0
        self._prefetched = 0
        for index, anchor in enumerate(anchors):
            places = StreamPlaces(self._make_segment, max(0, fixed_size(anchor)))
            if anchor.type is TensorType.INPUT:
                self._all_inputs[index] = InputStream(index, anchor, places)
            elif anchor.type is TensorType.OUTPUT:
                self._all_outputs[index] = OutputStream(index, anchor, places)

    # -- between runs

    def bind(self, binding: AnchorBinding) -> None:
        """Set the source of each anchor: the host, none, or the file."""
        inputs, outputs, host = self._all_inputs, self._all_outputs, binding.host
        self._inputs = {inputs[i].anchor.handle: inputs[i] for i in host if i in inputs}
        self._outputs = {
            outputs[i].anchor.handle: outputs[i] for i in host if i in outputs
        }
        self._dummies = _handles(inputs, binding.empty)
        self._dropped = _handles(outputs, binding.empty)
        self._ready = frozenset(
            inputs[i].anchor.handle
            for i in binding.ready
            if i in inputs and inputs[i].nbytes >= 0
        )
        self._from_file = _handles(inputs, binding.file)

    def foreseeable(self) -> frozenset[str]:
        """Return the handles that can be prefetched."""
        return self._ready if self._look_ahead else frozenset()

    def begin(self, coming: Iterator[str]) -> None:
        """Begin a run that will read `coming` (`upcoming_reads`)."""
        self._coming = coming
        self._prefetched = self._prefetched_bytes = 0
        # Drop the data that a failed run left.
        for stream in self._all_inputs.values():
            stream.prefetched = 0
            stream.expected.clear()
            stream.arrived.clear()
            stream.places.reclaim()
        for output in self._all_outputs.values():
            output.waiting = 0
            output.offered = None
            output.places.reclaim()

    def prefetches(self) -> tuple[Prefetch, ...]:
        """Return requests for the next certain reads that are not requested yet."""
        prefetches: list[Prefetch] = []
        while (
            self._prefetched < self._look_ahead
            and self._prefetched_bytes < _PREFETCH_BYTES
        ):
            handle = next(self._coming, None)
            if handle is None:
                break
            stream = self._inputs[handle]
            stream.prefetched += 1
            self._prefetched += 1
            self._prefetched_bytes += stream.nbytes
            prefetches.append(Prefetch(stream.index, self._expect(stream)))
        return tuple(prefetches)

    # -- Streams

    def read(self, handle: str) -> Array:
        stream = self._inputs.get(handle)
        if stream is None:
            return self._read_here(handle)
        ahead = () if stream.prefetched else self.prefetches()
        if not stream.prefetched:  # this read is not certain to follow
            self.send(Need(stream.index, self._expect(stream), ahead))
        else:
            stream.prefetched -= 1
            self._prefetched -= 1
            self._prefetched_bytes -= stream.nbytes
            ahead += self.prefetches()
            while not stream.arrived and self._poller.poll(0):
                self._receive()
            if not stream.arrived:
                self.send(Need(stream.index, None, ahead))
            else:
                self._consumed.append(stream.index)
                if ahead:
                    self.send(Ahead(ahead))
        while not stream.arrived:
            self._receive()
        return stream.arrived.popleft()

    def output_memory(
        self, handle: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        stream = self._outputs.get(handle)
        if stream is None or dtype != stream.dtype:
            return None
        nbytes = dtype.itemsize * prod(shape)
        place = self._room_for(stream, nbytes)
        array = place.array(shape, dtype)
        stream.offered = array, place
        return array

    def write(self, handle: str, value: Array) -> None:
        stream = self._outputs.get(handle)
        if stream is None:
            if handle in self._dropped:
                return
            kind = TensorType.OUTPUT
            raise _not_connected(self._anchors.get((kind, handle)), kind, handle)
        if stream.offered is not None and stream.offered[0] is value:
            place, nbytes = stream.offered[1], value.nbytes
        else:
            place, nbytes = self._copy_out(stream, value)
        stream.offered = None
        place.busy = True
        stream.waiting += 1
        told = Wrote(
            stream.index, place.location, nbytes, value.shape, stream.waiting > 1
        )
        self.send(told)

    # -- reading

    def _read_here(self, handle: str) -> Array:
        if handle in self._from_file:
            return self._data.read(handle)
        anchor = self._anchors.get((TensorType.INPUT, handle))
        if anchor is None or handle not in self._dummies:
            raise _not_connected(anchor, TensorType.INPUT, handle)
        info = anchor.tensor_info
        shape = tuple(1 if dim < 0 else dim for dim in info.shape or ())
        if info.data_type is DataType.STRING:
            return np.full(shape, b"", dtype=object)
        return np.zeros(shape, info.data_type.numpy_dtype)

    def _expect(self, stream: InputStream) -> DataLocation:
        place = stream.places.allocate_expected()
        place.busy = True
        stream.expected.append(place)
        return place.location

    def store(self, data: Data, fds: Sequence[int] = ()) -> None:
        """Store data in the oldest waiting place of an anchor."""
        stream = self._all_inputs[data.anchor]
        place = stream.expected.popleft()
        place.busy = False
        shape, nbytes = data.shape, data.nbytes
        if fds:
            memory = SharedMemory.attach(os.dup(fds[0]), nbytes)
            memory.detach_fd()
            # The next data of this size find room in one of the stream's places.
            stream.places.expect(nbytes)
            raw = memory.view
        else:
            raw = place.raw(nbytes)
        if stream.anchor.tensor_info.data_type is DataType.STRING:
            stream.arrived.append(decode_strings(raw, shape))
            return
        if nbytes != stream.dtype.itemsize * prod(shape):
            raise EngineBug(
                f"got {nbytes} bytes for {stream.anchor.name!r}, of shape {shape}"
            )
        if fds:
            stream.arrived.append(np.frombuffer(raw, stream.dtype).reshape(shape))
        else:
            stream.arrived.append(place.array(shape, stream.dtype))

    # -- writing

    def _copy_out(self, stream: OutputStream, value: Array) -> tuple[Place, int]:
        data_type = stream.anchor.tensor_info.data_type
        if data_type is DataType.STRING:
            data: Any = encode_strings(value)
        elif value.dtype != stream.dtype:
            raise InvalidModel(
                f"output {stream.anchor.name!r} is {data_type.name}, but the "
                f"program writes {value.dtype}"
            )
        else:
            data = np.ascontiguousarray(value).reshape(-1).view(np.uint8).data
        place = self._room_for(stream, len(data))
        place.raw(len(data))[:] = data
        return place, len(data)

    def _room_for(self, stream: OutputStream, nbytes: int) -> Place:
        """Return a place for an output. Wait if too many outputs wait for the host."""
        while stream.waiting >= _WRITES_AHEAD:
            self._receive()
        return stream.places.allocate(nbytes)

    # -- the conversation

    def _receive(self) -> None:
        try:
            message, fds = DURING_RUN.receive(self._sock)
        except (EOFError, OSError):
            raise Cancelled("the session has ended") from None
        try:
            match message:
                case Data():
                    self.store(message, fds)
                case Stored():
                    self._host_has(message)
                case Abort():
                    raise Cancelled(message.why)
        finally:
            close_all(fds)

    def _host_has(self, message: Stored) -> None:
        stream = self._all_outputs[message.anchor]
        place = stream.places.at(message.location.segment, message.location.offset)
        if place is not None and place.busy:
            place.busy = False
            stream.waiting -= 1

    def send(self, message: DeviceMessage) -> None:
        """Send a message, and the segments that the host does not know yet.

        Cancelled if the host has closed the session.
        """
        consumed, self._consumed = self._consumed, []
        new, self._unsent = self._unsent, []
        if consumed or new:
            message = msgspec.structs.replace(
                message,
                consumed=tuple(consumed),
                segments=tuple(Segment(number, memory.size) for number, memory in new),
            )
        try:
            send(self._sock, message, [memory.fd for _, memory in new], MOST_BYTES)
        except OSError:
            raise Cancelled("the session has ended") from None
        finally:
            for _, memory in new:
                memory.detach_fd()

    def _make_segment(self, size: int) -> tuple[int, SharedMemory]:
        memory = SharedMemory.create("stream", size)
        number = next(self._numbers)
        self._unsent.append((number, memory))
        return number, memory

    def __repr__(self) -> str:
        return (
            f"<HostStreams {len(self._inputs)} in, {len(self._outputs)} out, "
            f"{self._prefetched} prefetched>"
        )


def _handles(
    streams: Mapping[int, InputStream] | Mapping[int, OutputStream],
    indices: Collection[int],
) -> frozenset[str]:
    return frozenset(streams[i].anchor.handle for i in indices if i in streams)


def _not_connected(anchor: Anchor | None, kind: TensorType, handle: str) -> Exception:
    if anchor is None:
        return InvalidModel(
            f"a program uses stream {handle!r}, which is not an anchor of the model"
        )
    what = "reads" if kind is TensorType.INPUT else "writes"
    return AnchorsNotConnected(
        f"a program {what} {anchor.name!r} (stream {handle!r}), which is "
        "not connected; connect a queue or a callback to it"
    )
