"""Ids of requests: the client's, or generated ones; every answer has one.

An id is generated for every request without one, so it must cost only a tenth of a
microsecond. It is a number after a few characters that identify this process.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping
from random import SystemRandom
from typing import Final, NamedTuple

#: The header of a request and an answer that contains the id.
HEADER: Final = b"x-request-id"
#: The most bytes of an id.
LONGEST: Final = 128

_FORM = b"%b-%%x" % os.urandom(5).hex().encode()
#: New ids, which differ from those of any other process.
new_ids: Final[Iterator[bytes]] = map(_FORM.__mod__, itertools.count(1))


def taken_id(given: bytes) -> bytes:
    """Return the id that a client has sent.

    The result is a new id if that is empty, too long, or not printable ASCII.
    """
    # The id must not contain characters that end or change a log line or a header.
    if 0 < len(given) <= LONGEST and given.isascii() and given.decode().isprintable():
        return given
    return next(new_ids)


def id_of(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the id of a request with these headers."""
    given = headers.get(HEADER)
    return next(new_ids) if given is None else taken_id(given)


_random = SystemRandom()
_PARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


def trace_context(traceparent: bytes) -> tuple[str, str, int] | None:
    """Return the trace id, the caller's span id and the flags of a W3C header
    ``traceparent``.

    The result is None if the header is missing or invalid.
    """
    match = _PARENT.fullmatch(traceparent.lower())
    if match is None or not match[1].strip(b"0") or not match[2].strip(b"0"):
        return None
    return match[1].decode(), match[2].decode(), int(match[3], 16)


class SpanIds(NamedTuple):
    """The future ids of a request's span, for requests that must name them now."""

    trace_id: int
    span_id: int
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """Return the W3C header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"

    @classmethod
    def below(cls, traceparent: bytes, *, is_sampled: bool) -> SpanIds:
        """Make new ids, within the trace of this header if it names one."""
        context = trace_context(traceparent)
        # An id is never 0.
        trace = _random.getrandbits(128) | 1 if context is None else int(context[0], 16)
        return cls(trace, _random.getrandbits(64) | 1, is_sampled)
