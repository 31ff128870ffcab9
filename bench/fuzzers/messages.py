"""Send damaged messages between processes through the receivers of the product.

    python -m bench.fuzzers.messages --cases 1000000
    python -m bench.fuzzers.messages --cases 1 --seed 4711     # one of them again

Each case is a message with random content, of a kind that a receiver knows. It is sent
as it is, cut, damaged in its bytes or in its document, or as random bytes, with the
right or another number of descriptors. The receiver must return a message that arrives
as itself again, or raise one of the named errors, and leave no descriptor open. Exit
code 1 if a case found anything else: its seed is printed.
"""

from __future__ import annotations

import os
import random
import socket
import string
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

import msgpack
import msgspec

from app.repository.formats import SharedFormat
from app.spec import ModelSpec, TensorSpec
from bench.fuzzers.cases import run_cases
from engine.model.batch_plan import AnchorRows, BatchPlan
from engine.runner.runner_description import RunnerDescription
from engine.tensor import DataDesc, Tensor
from engine.transport.channel import ChannelLayout
from engine.transport.control import answers_of
from engine.transport.device_messages import ANSWERS as DEVICE_ANSWERS
from engine.transport.device_messages import DOOR, FAULTS
from engine.transport.device_messages import QUESTIONS as DEVICE_QUESTIONS
from engine.transport.messages import (
    MAX_FDS,
    MalformedMessage,
    Message,
    ObjectField,
    Receiver,
    close_all,
    encode,
)
from popef_io import DataType
from popgate_onnx.compiler.fork_server import ANSWERS, QUESTIONS
from popgate_python_messages.call_messages import TO_MODEL, TO_OWNER
from popgate_session_messages import (
    BETWEEN_RUNS,
    DURING_RUN,
    FROM_DEVICE,
    SESSION_MODEL,
)
from popgate_workers.messages import START, TO_SUPERVISOR, TO_WORKER
from popgate_workers.relay_messages import ANSWER, BODY, REQUEST

#: Makes a random value.
Sampler = Callable[[random.Random], Any]
#: Each receiver of the product.
RECEIVERS: Final[Sequence[Receiver[Any]]] = (
    *(START, TO_WORKER, TO_SUPERVISOR, ANSWER, REQUEST, BODY),
    *(TO_OWNER, TO_MODEL),
    *(QUESTIONS, ANSWERS),
    *(DEVICE_QUESTIONS, DOOR, FAULTS),
    *map(answers_of, DEVICE_ANSWERS),
    *(SESSION_MODEL, BETWEEN_RUNS, DURING_RUN, FROM_DEVICE),
)
#: The errors that `Receiver.receive` names.
NAMED: Final = (MalformedMessage, EOFError)
#: Numbers at the borders of types.
NUMBERS: Final = (0, 1, -1, 2**31, 2**32 - 1, 2**63 - 1, -(2**63), 2**64 - 1)


def _text(random: random.Random) -> str:
    return "".join(random.choices(string.printable + "äß日", k=random.randrange(9)))


def _plain(random: random.Random, depth: int = 0) -> Any:
    """Return a value that msgpack knows."""
    kinds = 5 if depth > 2 else 8
    match random.randrange(kinds):
        case 0:
            return None
        case 1:
            return random.choice(NUMBERS)
        case 2:
            return random.random()
        case 3:
            return _text(random)
        case 4:
            return random.randbytes(random.randrange(9))
        case 5:
            return random.random() < 0.5
        case 6:
            return [_plain(random, depth + 1) for _ in range(random.randrange(4))]
        case _:
            count = random.randrange(4)
            return {_text(random): _plain(random, depth + 1) for _ in range(count)}


def _spec(random: random.Random) -> ModelSpec:
    names = [f"t{n}" for n in range(random.randrange(1, 4))]
    inputs = tuple(TensorSpec.make(n, "FP32", (-1, random.randrange(9))) for n in names)
    default = Tensor(DataType.F32, (1,), (b"abcd",), 4)
    defaults = {"t0": default} if random.random() < 0.5 else {}
    return ModelSpec(_text(random), "1", inputs, inputs[:1], 8, 0, False, defaults)


def _layout(random: random.Random) -> ChannelLayout:
    return ChannelLayout(random.randrange(1, 9), (4096,) * random.randrange(3), (8192,))


def _description(random: random.Random) -> RunnerDescription:
    x, y = DataDesc("x", (-1, 2), DataType.F32), DataDesc("y", None, DataType.S8)
    plan = BatchPlan(0, 0, 1, random.randrange(9), (AnchorRows("x"),), ())
    sizes = {0: random.randrange(99)}
    layout = _layout(random)
    return RunnerDescription("m", (x,), (y,), plan, layout, 64, 2, 1, sizes)


def _format(random: random.Random) -> SharedFormat:
    return SharedFormat(_text(random), _spec(random), {"x": _plain(random)})


#: Objects for the fields that are an `ObjectField`.
OBJECTS: Final[Mapping[Any, Sampler]] = {
    ModelSpec: _spec,
    SharedFormat: _format,
    RunnerDescription: _description,
    ChannelLayout: _layout,
}


def sample(random: random.Random, kind: Any) -> Any:
    """Return a value of a type that a field of a message may have."""
    return _sampler(kind)(random)


@cache
def _sampler(kind: Any) -> Sampler:
    """Return what makes values of a type. It reads the annotations once."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:  # a number within bounds
        low, high = arguments[1].ge, arguments[1].le
        near = min(low + 99, high)
        return lambda random: random.choice((low, high, random.randint(low, near)))
    if origin is ObjectField:
        value = OBJECTS[arguments[0]]
        return lambda random: ObjectField(value(random))
    if origin in (Union, UnionType):
        return lambda random: sample(random, random.choice(arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        each = _sampler(arguments[0])
        return lambda random: tuple(each(random) for _ in range(random.randrange(4)))
    if origin is tuple:
        several = [_sampler(argument) for argument in arguments]
        return lambda random: tuple(made(random) for made in several)
    if origin is not None and issubclass(origin, Mapping):
        key = _sampler(str if arguments[0] is Any else arguments[0])
        item = _sampler(arguments[1])
        return lambda random: {
            key(random): item(random) for _ in range(random.randrange(4))
        }
    if kind in _SCALARS:
        return _SCALARS[kind]
    if issubclass(kind, Enum):
        members = list(kind)
        return lambda random: random.choice(members)
    constructor: Any = kind
    if is_dataclass(kind) or issubclass(kind, tuple):
        hints = get_type_hints(kind, include_extras=True)
        values = [_sampler(hint) for hint in hints.values()]
        return lambda random: constructor(*(value(random) for value in values))
    fields = {each.name: each.type for each in msgspec.structs.fields(kind)}
    named = {name: _sampler(hint) for name, hint in fields.items()}
    return lambda random: constructor(
        **{name: value(random) for name, value in named.items()}
    )


_SCALARS: Final[Mapping[Any, Sampler]] = {
    NoneType: lambda random: None,
    bool: lambda random: random.random() < 0.5,
    int: lambda random: random.choice((*NUMBERS[:4], random.randrange(99))),
    float: lambda random: random.choice((0.0, -1.5, float("inf"), random.random())),
    str: _text,
    bytes: lambda random: random.randbytes(random.randrange(9)),
    Any: _plain,
}


def _damaged_bytes(random: random.Random, raw: bytes) -> bytes:
    found = bytearray(raw)
    for _ in range(random.randrange(1, 4)):
        at = random.randrange(len(found) + 1)
        found[at : at + random.randrange(3)] = random.randbytes(random.randrange(3))
    return bytes(found)


def _damaged_document(random: random.Random, raw: bytes) -> bytes:
    """Replace, drop or add one value somewhere in the document."""
    document = msgpack.unpackb(raw, strict_map_key=False)
    at = document
    while isinstance(at, list) and at:
        place = random.randrange(len(at))
        if isinstance(at[place], list) and at[place] and random.random() < 0.8:
            at = at[place]
            continue
        match random.randrange(3):
            case 0:
                del at[place]
            case 1:
                at.insert(place, _plain(random))
            case _:
                at[place] = _plain(random)
        break
    found: bytes = msgpack.packb(document)
    return found


def make(seed: int) -> tuple[Receiver[Any], bytes, int]:
    """Return a receiver, what is sent to it, and with how many descriptors."""
    chance = random.Random(seed)
    receiver = chance.choice(RECEIVERS)
    message: Message = sample(chance, chance.choice(receiver.kinds))
    raw, count = encode(message), min(max(0, message.descriptors()), MAX_FDS)
    match chance.randrange(6):
        case 0:
            raw = chance.randbytes(chance.randrange(1, 64))
        case 1:
            raw = raw[: chance.randrange(1, len(raw) + 1)]
        case 2:
            raw = _damaged_bytes(chance, raw) or b"\0"
        case 3 | 4:
            raw = _damaged_document(chance, raw)
        case _:
            pass
    if chance.random() < 0.2:
        count = chance.randrange(5)
    return receiver, raw, count


class Harness:
    """A pair of sockets, and the number that a new descriptor gets between cases."""

    def __init__(self) -> None:
        self._ours, self._theirs = socket.socketpair(
            socket.AF_UNIX, socket.SOCK_SEQPACKET
        )
        self._next = self._next_number()

    def _next_number(self) -> int:
        """Return the number of the next descriptor, the lowest that is not open."""
        os.close(fd := os.dup(0))
        return fd

    def check(self, seed: int) -> tuple[str, str]:
        """Return what the receiver did, and why that is wrong; empty if it is right."""
        receiver, raw, count = make(seed)
        socket.send_fds(self._ours, [raw], [0] * count)
        try:
            outcome, why = self._receive(receiver), ""
        except NAMED as error:
            outcome, why = type(error).__name__, ""
        except Exception as error:
            outcome, why = "error", f"{type(error).__name__}: {error}"
        if not why and (number := self._next_number()) != self._next:
            why = f"a descriptor is left open: the next is {number}, not {self._next}"
        return outcome, why

    def _receive(self, receiver: Receiver[Any]) -> str:
        message, fds = receiver.receive(self._theirs)
        close_all(fds)
        raw = encode(message)
        if encode(receiver.decode(raw)) != raw:
            raise AssertionError(f"{message!r} does not arrive as itself again")
        return "message"

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


@contextmanager
def harness() -> Iterator[Harness]:
    """Give a harness, and close it."""
    made = Harness()
    try:
        yield made
    finally:
        made.close()


def main(arguments: Sequence[str] | None = None) -> int:
    with harness() as made:
        name = "bench.fuzzers.messages"
        return run_cases(name, __doc__, made.check, make, arguments)


if __name__ == "__main__":
    sys.exit(main())
