"""Messages between the processes of one server: typed, bounded, with descriptors beside
them.

A message is a `msgspec.Struct` that derives from `Message`. On the wire it is a msgpack
list: the name of its class, then its fields. A `Receiver` knows the kinds of messages
that may come, and msgspec checks each field against its annotation. All processes of a
server have one version, so messages have none.

The sockets keep message borders (SOCK_SEQPACKET). File descriptors travel beside the
message, and the message states how many. `Receiver.receive` closes all descriptors of a
message that it refuses. Large tensors travel in shared memory.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Generic, TypeVar, Union, get_args

import msgspec

from engine.errors import EngineError
from popef_io import PopefError

#: The most bytes of a message, unless its channel has another limit.
MAX_MESSAGE = 192 * 1024
#: The most descriptors that the kernel takes at once (SCM_MAX_FD).
MAX_FDS = 253
_FD = struct.Struct("@i")


class MalformedMessage(ValueError):
    """The message is cut off, is of an unknown kind, or has a field of another type."""


class DescriptorsLost(MalformedMessage):
    """This process has no room for the descriptors beside a `message`."""

    def __init__(self, message: Message) -> None:
        super().__init__(f"no descriptors are left for {type(message).__name__}")
        self.message = message


class MessageTooLong(ValueError):
    """The message exceeds the limit of its channel, and was not sent."""


class Message(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A message. The name of a subclass, which is frozen too, is its kind."""

    def descriptors(self) -> int:
        """Return how many descriptors travel beside the message."""
        return 0


M = TypeVar("M", bound=Message)
T = TypeVar("T")


class ObjectField(Generic[T]):
    """A field that holds an object of a class with `to_message` and `from_message`.

    Compiled classes need it, because mypyc erases the annotations that msgspec reads.
    """

    __slots__ = ("value",)

    def __init__(self, value: T) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectField) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __repr__(self) -> str:
        return f"ObjectField({self.value!r})"


def _plain(value: Any) -> object:
    """Return a value that msgspec does not know as one that it knows."""
    if isinstance(value, ObjectField):
        found: object = value.value.to_message()
        return found
    if isinstance(value, str):  # a subclass, such as numpy.str_
        return str(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int):
        return int(value)
    raise TypeError(f"a message cannot have a {type(value).__name__}")


def _decode_object(kind: Any, value: Any) -> object:
    (inner,) = get_args(kind)
    return ObjectField(inner.from_message(value))


_encoder = msgspec.msgpack.Encoder(enc_hook=_plain)


def encode(message: Message, most: int = MAX_MESSAGE) -> bytes:
    """Return the bytes of a message. Raises MessageTooLong."""
    raw = _encoder.encode(message)
    if len(raw) > most:
        name = type(message).__name__
        raise MessageTooLong(f"{name} has {len(raw)} bytes; the limit is {most}")
    return raw


def send(
    sock: socket.socket,
    message: Message,
    fds: Sequence[int] = (),
    most: int = MAX_MESSAGE,
) -> None:
    """Send one message. Raises MessageTooLong, and OSError as sockets do."""
    raw = encode(message, most)
    if len(fds) != message.descriptors():
        raise ValueError(_unexpected(message, fds))
    if fds:
        socket.send_fds(sock, [raw], list(fds))
    else:
        sock.sendall(raw)


class Receiver(Generic[M]):
    """Receives messages of these kinds, of at most `most` bytes.

    A larger limit takes more time.
    """

    def __init__(self, *kinds: type[M], most: int = MAX_MESSAGE) -> None:
        self.kinds = kinds
        self._most = most

    @cached_property
    def _decode(self) -> Callable[[bytes], M]:
        kinds: Any = Union[self.kinds]  # noqa: UP007 - of a tuple
        return msgspec.msgpack.Decoder(kinds, dec_hook=_decode_object).decode

    def receive(self, sock: socket.socket, flags: int = 0) -> tuple[M, list[int]]:
        """Return the next message and the descriptors beside it. The caller closes
        them.

        `flags` are the flags of recvmsg. Raises EOFError at the end, MalformedMessage,
        DescriptorsLost, and OSError as sockets do.
        """
        flags |= socket.MSG_CMSG_CLOEXEC
        # `socket.recv_fds` of Python 3.11 ignores the flags.
        room = socket.CMSG_LEN(MAX_FDS * _FD.size)
        raw, beside, seen, _ = sock.recvmsg(self._most, room, flags)
        fds = [fd for _, _, data in beside for (fd,) in _FD.iter_unpack(data)]
        try:
            if seen & socket.MSG_TRUNC:
                limit = f"the limit is {self._most} bytes"
                raise MalformedMessage(f"a message was cut off; {limit}")
            if not raw:
                raise EOFError("the other side closed the socket")
            message = self.decode(raw)
            if seen & socket.MSG_CTRUNC:
                raise DescriptorsLost(message)
            if len(fds) != message.descriptors():
                raise MalformedMessage(_unexpected(message, fds))
        except BaseException:
            close_all(fds)
            raise
        return message, fds

    def decode(self, raw: bytes) -> M:
        """Return the message in these bytes. Raises MalformedMessage."""
        try:
            return self._decode(raw)
        except (
            *(msgspec.MsgspecError, EngineError, PopefError, ValueError, TypeError),
            *(ArithmeticError, AttributeError, LookupError, RecursionError),
        ) as error:
            known = ", ".join(kind.__name__ for kind in self.kinds)
            text = f"a message is malformed: {error}; expected is one of {known}"
            raise MalformedMessage(text) from error

    def __repr__(self) -> str:
        return f"<Receiver of {', '.join(kind.__name__ for kind in self.kinds)}>"


def _unexpected(message: Message, fds: Sequence[int]) -> str:
    name, expected = type(message).__name__, message.descriptors()
    return f"{name} expects {expected} descriptors beside it, got {len(fds)}"


def close_all(fds: Sequence[int]) -> None:
    """Close descriptors."""
    for fd in fds:
        os.close(fd)
