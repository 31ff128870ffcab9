"""Calls of a Python model to other models, and their answers, as messages.

They travel on their own socket between the device process and its owner, which runs the
called models. Small tensors are in the message. Larger ones are in an anonymous segment
beside the message (engine/transport/tensor_pack.py).

`requests` are the numbers of the requests that the calling run answers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from engine.errors import EngineBug, EngineError, Refused
from engine.tensor import Tensor
from engine.transport.error_report import ErrorReport
from engine.transport.messages import (
    DescriptorsLost,
    Message,
    Receiver,
    close_all,
    send,
)
from engine.transport.shared_memory import SharedMemory
from engine.transport.tensor_pack import pack_tensors, unpack_tensors
from popef_io import DataType

#: The most bytes of tensors or of the clients' requests that are in the message itself,
#: all together.
INLINE = 16 * 1024
#: The most tensors in the message itself. Describing each takes some bytes.
MOST_INLINE = 64


class InlineTensor(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A tensor in a message."""

    name: str
    data_type: DataType
    shape: tuple[int, ...]
    data: bytes


class Tensors(msgspec.Struct, frozen=True, array_like=True):
    """The tensors of a message, in it or in the segment beside it."""

    inline: tuple[InlineTensor, ...] = ()
    place: tuple[int, int] | None = None

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> tuple[Tensors, list[int]]:
        """Return the tensors for a message, and descriptors that the caller closes."""
        size = sum(tensor.nbytes + len(name) for name, tensor in tensors.items())
        if size <= INLINE and len(tensors) <= MOST_INLINE:
            inline = (
                InlineTensor(str(name), t.data_type, t.shape, t.tobytes())
                for name, t in tensors.items()
            )
            return cls(tuple(inline)), []
        (offset, length), memory = pack_tensors("call", tensors)
        with memory:
            return cls(place=(offset, length)), [os.dup(memory.fd)]

    @property
    def segments(self) -> int:
        return 0 if self.place is None else 1

    def read(self, fds: Sequence[int]) -> dict[str, Tensor]:
        """Return the tensors. `fds` stay open. Raises EngineBug."""
        if self.place is not None:
            return unpack_tensors(self.place, fds[0])
        return {
            t.name: Tensor(t.data_type, t.shape, (t.data,), len(t.data))
            for t in self.inline
        }


#: For each request: its ``x-request-id``, its ``traceparent``, and a JSON document. The
#: document has the request's id, timeout (in microseconds) and parameters, if it states
#: any.
ClientRequests = tuple[tuple[str, str, str], ...]
#: The tensors of a call, the requests behind a run, whether a model is ready, or an
#: error.
CallAnswer = Mapping[str, Tensor] | ClientRequests | bool | EngineError


# -- to the owner


class ModelCall(Message, frozen=True):
    """A call.

    `deadline_ns` is a time of `time.monotonic_ns`, or 0 for none. `priority` is as in
    `ModelRunner.submit`. `outputs` are the wanted names, or None for all. `requests`
    are the numbers of the requests for which the model makes the call. A call that
    `streams` takes several responses.
    """

    number: int
    model: str
    version: str
    deadline_ns: int
    tensors: Tensors
    outputs: tuple[str, ...] | None
    parameters: Mapping[Any, Any]
    requests: tuple[int, ...] = ()
    priority: int = 0
    streams: bool = False

    def descriptors(self) -> int:
        return self.tensors.segments


class ResponseTaken(Message, frozen=True):
    """One response of a call with several responses was taken."""

    number: int


class CallGivenUp(Message, frozen=True):
    """No client waits for a call any more."""

    number: int


class RouteLeft(Message, frozen=True):
    """A route is closed, so that no request is in flight on it any more.

    The number 0 stands for no route and means that there are calls to count.
    """

    number: int


class ClientRequestsAsked(Message, frozen=True):
    """A model asks for the ids of the requests that it answers."""

    number: int
    requests: tuple[int, ...]


class ReadyAsked(Message, frozen=True):
    """A model asks whether another one accepts requests."""

    number: int
    model: str
    version: str


class MetricTold(msgspec.Struct, frozen=True, array_like=True):
    """The value of a model's own metric in its process since loading
    (`popgate_python_interface.own_metrics`).

    `values` has one entry. For a histogram it has the count in each bucket and the sum.
    There is one bucket more than upper `bounds`.
    """

    name: str
    kind: str
    text: str
    labels: tuple[tuple[str, str], ...]
    bounds: tuple[float, ...]
    values: tuple[float, ...]


class MetricsTold(Message, frozen=True):
    """Changes of a model's own metrics."""

    series: tuple[MetricTold, ...]


Question = ModelCall | ClientRequestsAsked | ReadyAsked
ToOwner = Question | CallGivenUp | RouteLeft | ResponseTaken | MetricsTold


# -- to the model


class CallOutputs(Message, frozen=True):
    """The result of a call. With `more`, the next response follows after the caller has
    taken this one.
    """

    number: int
    tensors: Tensors
    more: bool = False

    def descriptors(self) -> int:
        return self.tensors.segments


class CallFailed(Message, frozen=True):
    number: int
    report: ErrorReport


class ClientRequestsTold(Message, frozen=True):
    """The requests behind a run. If they are large, they are a document of `size` bytes
    in the memory beside the message.
    """

    number: int
    client_requests: ClientRequests
    size: int = 0

    @classmethod
    def of(
        cls, number: int, requests: ClientRequests
    ) -> tuple[ClientRequestsTold, list[int]]:
        """Return the message, and descriptors that the caller closes."""
        raw = msgspec.msgpack.encode(requests)
        if len(raw) <= INLINE:
            return cls(number, requests), []
        with SharedMemory.create("clients", len(raw)) as memory:
            memory.view[: len(raw)] = raw
            return cls(number, (), len(raw)), [os.dup(memory.fd)]

    def descriptors(self) -> int:
        return 1 if self.size else 0

    def read(self, fds: Sequence[int]) -> ClientRequests:
        """Return the requests. `fds` stay open."""
        if not self.size:
            return self.client_requests
        with SharedMemory.attach(os.dup(fds[0]), self.size) as memory:
            return msgspec.msgpack.decode(memory.view[: self.size], type=ClientRequests)


class ReadyTold(Message, frozen=True):
    number: int
    ready: bool


class RouteOffered(Message, frozen=True):
    """A route to a model, which bypasses the server.

    `devices` are the key and the id of each device that the process has not joined. A
    door to each is beside the message, and with `has_log`, for the first route, the log
    of calls. `runner` is of `RunnerDescription.to_message`. `timeout` is in seconds.
    """

    number: int
    model: str
    version: str
    devices: tuple[tuple[str, str], ...]
    runner: Mapping[str, Any]
    timeout: float
    has_log: bool

    def descriptors(self) -> int:
        return len(self.devices) + self.has_log


class RouteWithdrawn(Message, frozen=True):
    """The process must take no more calls to a route, and close it."""

    number: int


Answer = CallOutputs | CallFailed | ClientRequestsTold | ReadyTold
ToModel = Answer | RouteOffered | RouteWithdrawn

TO_OWNER = Receiver[ToOwner](
    *(
        ModelCall,
        ClientRequestsAsked,
        ReadyAsked,
        CallGivenUp,
        RouteLeft,
        ResponseTaken,
    ),
    MetricsTold,
)
TO_MODEL = Receiver[ToModel](
    CallOutputs, CallFailed, ClientRequestsTold, ReadyTold, RouteOffered, RouteWithdrawn
)


class InputsLost(Exception):
    """The inputs of call `number` did not arrive, because descriptors or memory are
    short.
    """

    def __init__(self, number: int, why: BaseException) -> None:
        super().__init__(f"the server has no room for the inputs of a call: {why}")
        self.number = number


class CallSocket:
    """The owner's end of the socket for the calls of one process. Never blocks. For one
    thread.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock

    def fileno(self) -> int:
        """Return a descriptor that is readable when a call has come; -1 once closed."""
        return self._sock.fileno()

    def receive(self) -> tuple[ToOwner, dict[str, Tensor]]:
        """Return the next message: a call, a question, or a report about a call, a
        route or metrics. Also return the inputs of a call.

        Raises BlockingIOError if there is none, EOFError at the end, MalformedMessage,
        InputsLost, and EngineBug for inputs that are not in the segment.
        """
        try:
            message, fds = TO_OWNER.receive(self._sock)
        except DescriptorsLost as lost:
            if isinstance(lost.message, ModelCall):
                raise InputsLost(lost.message.number, lost) from None
            raise
        if not isinstance(message, ModelCall):
            return message, {}
        try:
            return message, message.tensors.read(fds)
        except (LookupError, TypeError, ValueError) as error:
            raise EngineBug(f"a call without its inputs: {error!r}") from None
        except (OSError, MemoryError) as error:
            raise InputsLost(message.number, error) from None
        finally:
            close_all(fds)

    def answer(self, number: int, answer: CallAnswer, more: bool = False) -> None:
        """Send the result of a call, one of several responses, or the answer to a
        question.

        Raises BlockingIOError if the socket has no room, OSError if no process listens
        any more, MessageTooLong, and Refused if descriptors or memory are short.
        """
        try:
            message, fds = _message_of(number, answer, more)
        except (OSError, MemoryError) as error:
            raise Refused(f"the server has no room for it: {error}") from None
        try:
            self.send(message, fds)
        finally:
            close_all(fds)

    def send(self, message: ToModel, fds: Sequence[int] = ()) -> None:
        """Send a message. Raises the errors of `answer`, and MessageTooLong."""
        send(self._sock, message, fds)

    def close(self) -> None:
        self._sock.close()

    def __repr__(self) -> str:
        return f"<CallSocket {self._sock.fileno()}>"


def _message_of(
    number: int, answer: CallAnswer, more: bool
) -> tuple[ToModel, list[int]]:
    """Return an answer as a message, and descriptors that the caller closes."""
    if isinstance(answer, tuple):
        return ClientRequestsTold.of(number, answer)
    if isinstance(answer, bool):
        return ReadyTold(number, answer), []
    if isinstance(answer, EngineError):
        return CallFailed(number, ErrorReport.of(answer)), []
    tensors, fds = Tensors.of(answer)
    return CallOutputs(number, tensors, more), fds
