"""Messages between processes: what is refused loses nothing and leaks nothing."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from typing import Any

import msgpack
import numpy as np
import pytest

from engine.transport.channel import ChannelLayout
from engine.transport.messages import (
    MAX_MESSAGE,
    DescriptorsLost,
    MalformedMessage,
    Message,
    MessageTooLong,
    ObjectField,
    Receiver,
    close_all,
    encode,
    send,
)
from tests.support import no_descriptors

Pair = tuple[socket.socket, socket.socket]


class Note(Message, frozen=True):
    """A message with fields."""

    text: str
    numbers: tuple[int, ...] = ()
    layout: ObjectField[ChannelLayout] | None = None


class Segments(Message, frozen=True):
    """A message with descriptors."""

    count: int

    def descriptors(self) -> int:
        return self.count


class Document(Message, frozen=True):
    """A message with a field of any type."""

    content: Mapping[str, Any]


RECEIVER = Receiver[Note | Segments](Note, Segments)


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_messages_and_descriptors_arrive_together(pair: Pair) -> None:
    ours, theirs = pair
    fd = os.eventfd(0)
    send(ours, Segments(2), [fd, fd])
    message, fds = RECEIVER.receive(theirs)
    assert message == Segments(2)
    os.eventfd_write(fds[0], 3)
    assert os.eventfd_read(fd) == 3
    assert not any(map(os.get_inheritable, fds))
    close_all([fd, *fds])


def test_the_flags_of_a_receiver_hold(pair: Pair) -> None:
    ours, theirs = pair
    theirs.setblocking(False)
    send(ours, Segments(0))
    assert RECEIVER.receive(theirs, socket.MSG_PEEK)[0] == Segments(0)
    assert RECEIVER.receive(theirs)[0] == Segments(0)


def test_fields_keep_their_types() -> None:
    layout = ObjectField(ChannelLayout(4, (4096,), (8192,)))
    message = Note("ä", (1, 2), layout)
    assert RECEIVER.decode(encode(message)) == message
    assert isinstance(RECEIVER.decode(encode(message)), Note)


def test_values_of_subclasses_and_of_numpy_become_plain() -> None:
    class Text(str):
        pass

    class Number(int):
        pass

    sent = Note(Text("a"), (Number(1), 2))
    assert RECEIVER.decode(encode(sent)) == Note("a", (1, 2))
    found = Receiver(Document).decode(encode(Document({"x": np.float64(0.5)})))
    assert found == Document({"x": 0.5})
    with pytest.raises(TypeError, match="a message cannot have a complex"):
        encode(Document({"x": 1j}))


def test_the_end_is_told_from_a_message(pair: Pair) -> None:
    ours, theirs = pair
    ours.close()
    with pytest.raises(EOFError):
        RECEIVER.receive(theirs)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"\xc1", "malformed"),
        (b"\x01", "Expected `array`, got `int`"),
        (b"\x92\x01", "got `int`"),
        (msgpack.packb(["Note"]), "at least length 2"),
        (msgpack.packb(["Note", 1]), "Expected `str`, got `int`"),
        (msgpack.packb(["Note", "", ["1"]]), "Expected `int`, got `str`"),
        (
            msgpack.packb(["Note", "", [], [0, [], [], []]]),
            r"layout of a channel: \[0, ",
        ),
        (msgpack.packb(["Memo", ""]), "'Memo'.*expected is one of Note, Segments"),
        (encode(Note("cut"))[:-1], "truncated"),
        (msgpack.packb(["Segments", 2]), "expects 2 descriptors beside it, got 1"),
        (msgpack.packb(["Segments", 0]), "expects 0 descriptors beside it, got 1"),
        (b"\x91" * 60_000, "malformed"),
        (b"\x92\xa4Note\xda\x00\x01\xff", "malformed"),
        (encode(Note("x" * 70_000)), "the limit is 65536 bytes"),
    ],
)
def test_a_malformed_message_is_refused_and_its_descriptors_closed(
    pair: Pair, raw: bytes, reason: str
) -> None:
    ours, theirs = pair
    receiver = Receiver[Note | Segments](Note, Segments, most=65536)
    before = open_descriptors()
    socket.send_fds(ours, [raw[:150_000]], [ours.fileno()])
    with pytest.raises(MalformedMessage, match=reason):
        receiver.receive(theirs)
    assert open_descriptors() == before


def test_a_message_arrives_without_room_for_its_descriptors(pair: Pair) -> None:
    ours, theirs = pair
    before = open_descriptors()
    send(ours, Segments(2), [ours.fileno(), theirs.fileno()])
    with no_descriptors(), pytest.raises(DescriptorsLost) as lost:
        RECEIVER.receive(theirs)
    assert lost.value.message == Segments(2)
    assert open_descriptors() == before


def test_too_long_a_message_is_not_sent(pair: Pair) -> None:
    ours, theirs = pair
    with pytest.raises(MessageTooLong, match=f"the limit is {MAX_MESSAGE}"):
        send(ours, Note("y" * MAX_MESSAGE))
    theirs.setblocking(False)
    with pytest.raises(BlockingIOError):
        RECEIVER.receive(theirs)


def test_a_message_with_other_descriptors_than_it_states_is_not_sent(
    pair: Pair,
) -> None:
    ours, _ = pair
    with pytest.raises(ValueError, match="Segments expects 2 descriptors"):
        send(ours, Segments(2), [ours.fileno()])
