"""Messages of sessions, between their host and the device process.

Both processes import this package. May import of PopGate: `engine`. `OpenSession` of
the core carries `SessionModel` as its content.
"""

from __future__ import annotations

from engine.transport.device_messages import Number
from engine.transport.messages import Message, Receiver


class SessionModel(Message, frozen=True):
    """The model of a session. Its files are beside the message."""

    sources: tuple[str, ...]
    executable: str | None
    threads: Number
    providers: tuple[str, ...]
    check_package_hash: bool
    look_ahead: Number


SESSION_MODEL = Receiver[SessionModel](SessionModel)
