"""Calls of a Python model to other models, and their answers, as messages.

They travel on their own socket between the device process and its owner, which runs the
called models. Small tensors are in the message. Larger ones are in an anonymous segment
beside the message (engine/transport/tensor_pack.py).

    call     {call, model, version, deadline_ns, priority, outputs, parameters,
              requests, tensors | place}
    cancel   {cancel}                          no caller waits for that call any more
    next     {next}                            the response of that call was taken
    answer   {call, tensors | place}           or {call, error, message}
    ask      {ask, requests}                   who is answered by the present run?
    told     {call, askers}                    `Askers`
    counted  {counted}                         the log of routed calls is to be read
    ready    {ready, model, version}           does that model take requests?
    is       {call, ready}                     whether it does
    metrics  {metrics}                         values of `MetricTold`

engine/calls/routes.py describes the messages about routes.

`requests` are the numbers of the requests that the calling run answers.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from engine.errors import EngineBug, EngineError
from engine.tensor import Tensor
from engine.transport import control
from engine.transport.control import Message
from engine.transport.tensor_pack import pack_tensors, unpack_tensors
from popef_io import DataType

#: The most bytes of tensors that are in the message itself, all tensors together.
INLINE = 16 * 1024
#: The most tensors in the message itself. Describing each takes some bytes.
MOST_INLINE = 64


def with_tensors(
    message: Message, tensors: Mapping[str, Tensor]
) -> tuple[Message, list[int]]:
    """Return the message with the tensors in it or beside it, and descriptors that the
    caller closes.
    """
    size = sum(tensor.nbytes + len(name) for name, tensor in tensors.items())
    if size <= INLINE and len(tensors) <= MOST_INLINE:
        table = [
            [name, t.data_type.name, list(t.shape), bytes(t.buffer)]
            for name, t in tensors.items()
        ]
        return {**message, "tensors": table}, []
    place, memory = pack_tensors("call", tensors)
    fd = os.dup(memory.fd)
    memory.close()
    return {**message, "place": place}, [fd]


def tensors_of(message: Message, fds: Sequence[int]) -> dict[str, Tensor]:
    """Return the tensors of a message. `fds` stay open. Raises EngineBug."""
    if "place" in message:
        if not fds:
            raise EngineBug("the segment of a call is missing")
        return unpack_tensors(message["place"], fds[0])
    return {
        str(name): Tensor(DataType[data_type], tuple(shape), (raw,), len(raw))
        for name, data_type, shape, raw in message["tensors"]
    }


#: For each request: its ``x-request-id``, its ``traceparent``, and a JSON document. The
#: document has the request's id, timeout (in microseconds) and parameters, if it states
#: any.
Askers = tuple[tuple[str, str, str], ...]
#: The tensors of a call, the requests behind a run, whether a model is ready, or an
#: error.
CallAnswer = Mapping[str, Tensor] | Askers | bool | EngineError


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call, from the view of the device's owner.

    `deadline_ns` is a time of `time.monotonic_ns`, or 0 for none. `priority` is as in
    `ModelRunner.submit`. `outputs` are the wanted names, or None for all. `requests`
    are the numbers of the requests for which the model makes the call.
    """

    number: int
    model: str
    version: str
    deadline_ns: int
    inputs: Mapping[str, Tensor]
    outputs: tuple[str, ...] | None
    parameters: Mapping[str, Any]
    requests: tuple[int, ...] = ()
    priority: int = 0
    streams: bool = False
    """Whether the call takes several responses. Each response is an answer with
    ``more``. The next one follows after the caller has taken it.

    The last or only answer has no ``more``.
    """


@dataclass(frozen=True, slots=True)
class ResponseTaken:
    """Reports that one response of a call with several responses was taken."""

    number: int


@dataclass(frozen=True, slots=True)
class RouteLeft:
    """Reports that a route is closed, so that no request is in flight on it any more.

    The number 0 stands for no route and means that there are calls to count.
    """

    number: int


@dataclass(frozen=True, slots=True)
class AskersAsked:
    """A model asks for the ids of the requests that it answers."""

    number: int
    requests: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ReadyAsked:
    """A model asks whether another one accepts requests."""

    number: int
    model: str
    version: str


@dataclass(frozen=True, slots=True)
class MetricTold:
    """The value of a model's own metric in its process since loading
    (engine/programs/own_metrics.py).

    `values` has one entry. For a histogram it has the count in each bucket and the sum.
    There is one bucket more than upper `bounds`.
    """

    name: str
    kind: str
    text: str
    labels: tuple[tuple[str, str], ...]
    bounds: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class MetricsTold:
    """Changes of a model's own metrics."""

    series: tuple[MetricTold, ...]


@dataclass(frozen=True, slots=True)
class CallGivenUp:
    """Reports that no client waits for a call any more."""

    number: int


Received = (
    ModelCall
    | AskersAsked
    | CallGivenUp
    | RouteLeft
    | ResponseTaken
    | ReadyAsked
    | MetricsTold
)


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

    def receive(self) -> Received:
        """Return the next message: a call, a question, or a report about a call, a
        route or metrics.

        Raises BlockingIOError if there is none, EOFError at the end, EngineBug or
        ValueError for a malformed call.
        """
        message, fds = control.receive(self._sock)
        try:
            for key, read in _READERS.items():
                if key in message:
                    return read(message)
            return _call(message, fds)
        except (KeyError, TypeError) as error:
            raise EngineBug(f"a call that is none: {error!r}") from None
        finally:
            control.close_all(fds)

    def answer(self, number: int, answer: CallAnswer, more: bool = False) -> None:
        """Send the result of a call, one of several responses, or the answer to a
        question.

        Raises BlockingIOError if the socket has no room, and OSError if no process
        listens any more.
        """
        fds: list[int] = []
        message: Message = {"call": number}
        if isinstance(answer, tuple):
            message["askers"] = list(answer)
        elif isinstance(answer, bool):
            message["ready"] = answer
        elif isinstance(answer, EngineError):
            message.update(control.from_error(answer))
        else:
            if more:
                message["more"] = True
            message, fds = with_tensors(message, answer)
        try:
            control.send(self._sock, message, fds)
        finally:
            control.close_all(fds)

    def tell(self, message: Message, fds: Sequence[int] = ()) -> None:
        """Send the description of a route. Raises the errors of `answer`, and
        ValueError if the description is too long.
        """
        control.send(self._sock, message, fds)

    def close(self) -> None:
        self._sock.close()

    def __repr__(self) -> str:
        return f"<CallSocket {self._sock.fileno()}>"


def answer_of(message: Message, fds: Sequence[int]) -> CallAnswer:
    """Return the answer that `CallSocket.answer` has sent. `fds` stay open. Raises
    EngineBug.
    """
    if "error" in message:
        return control.to_error(message)
    if "askers" in message:
        return tuple((str(i), str(t), str(s)) for i, t, s in message["askers"])
    if "ready" in message:
        return bool(message["ready"])
    return tensors_of(message, fds)


def _call(message: Message, fds: Sequence[int]) -> ModelCall:
    outputs = message.get("outputs")
    return ModelCall(
        int(message["call"]),
        str(message["model"]),
        str(message["version"]),
        int(message["deadline_ns"]),
        tensors_of(message, fds),
        None if outputs is None else tuple(map(str, outputs)),
        dict(message.get("parameters") or {}),
        tuple(map(int, message["requests"])),
        int(message.get("priority", 0)),
        bool(message.get("streams")),
    )


def _askers_asked(message: Message) -> AskersAsked:
    return AskersAsked(int(message["ask"]), tuple(map(int, message["requests"])))


def _ready_asked(message: Message) -> ReadyAsked:
    target = str(message["model"]), str(message["version"])
    return ReadyAsked(int(message["ready"]), *target)


def _metric(told: Sequence[Any]) -> MetricTold:
    name, kind, text, labels, bounds, values = told
    pairs = tuple((str(label), str(value)) for label, value in labels)
    numbers = tuple(map(float, bounds)), tuple(map(float, values))
    return MetricTold(str(name), str(kind), str(text), pairs, *numbers)


#: Readers for messages that are no calls, by the key that identifies the message.
_READERS: dict[str, Callable[[Message], Received]] = {
    "cancel": lambda message: CallGivenUp(int(message["cancel"])),
    "next": lambda message: ResponseTaken(int(message["next"])),
    "left": lambda message: RouteLeft(int(message["left"])),
    "counted": lambda message: RouteLeft(0),
    "metrics": lambda message: MetricsTold(tuple(map(_metric, message["metrics"]))),
    "ready": _ready_asked,
    "ask": _askers_asked,
}
