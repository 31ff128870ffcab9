"""Control messages: errors keep their kind, descriptors are not lost or leaked.

Covers: engine/transport/failure.py, engine/transport/device_messages.py.
"""

from __future__ import annotations

import os
import socket

import pytest

from engine import EngineBug, EngineError, errors
from engine.transport import control
from engine.transport.messages import close_all


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def test_messages_and_descriptors_arrive_together() -> None:
    ours, theirs = pair()
    with ours, theirs:
        fd = os.eventfd(0)
        control.send(ours, {"op": "x", "n": [1, "ä", None]}, [fd, fd])
        message, fds = control.receive(theirs)
        assert message == {"op": "x", "n": [1, "ä", None]}
        os.eventfd_write(fds[0], 3)
        assert os.eventfd_read(fd) == 3
        close_all([fd, *fds])


def test_the_end_is_told_from_a_message() -> None:
    ours, theirs = pair()
    with theirs:
        ours.close()
        with pytest.raises(EOFError):
            control.receive(theirs)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, EngineError)
    ],
)
def test_every_error_survives_the_journey(name: str) -> None:
    error = getattr(errors, name)("what happened")
    back = control.to_error(control.from_error(error))
    assert type(back) is type(error)
    assert str(back) == str(error)


def test_foreign_errors_become_bugs() -> None:
    back = control.to_error(control.from_error(KeyError("k")))
    assert isinstance(back, EngineBug)
    assert "KeyError" in str(back)
    assert isinstance(control.to_error({"error": "os", "message": "m"}), EngineBug)
