"""Ids of requests: the client's, or generated ones; every answer has one.

An id is generated for every request without one, so it must cost only a tenth of a
microsecond: it is a number after a few characters that belong to this process.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterator, Mapping
from random import SystemRandom
from typing import Final, NamedTuple

#: The header that brings and takes one.
HEADER: Final = b"x-request-id"
#: Bytes that one has at most.
LONGEST: Final = 128

_FORM = b"%b-%%x" % os.urandom(5).hex().encode()
#: New ones, unlike those of any other process.
new_ids: Final[Iterator[bytes]] = map(_FORM.__mod__, itertools.count(1))


def taken_id(given: bytes) -> bytes:
    """Return an id that a client has sent; a new one where that is empty, too long, or
    more than ASCII that can be printed.
    """
    # Nothing that a log line or a header would have to escape or could end at.
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
    """Return the ids of the trace and of the caller's span, and the flags, that a W3C
    header ``traceparent`` has; None if it has none.
    """
    match = _PARENT.fullmatch(traceparent.lower())
    if match is None or not match[1].strip(b"0") or not match[2].strip(b"0"):
        return None
    return match[1].decode(), match[2].decode(), int(match[3], 16)


class SpanIds(NamedTuple):
    """The ids that the span of a request will have, which others are to name now."""

    trace_id: int
    span_id: int
    is_sampled: bool

    @property
    def traceparent(self) -> str:
        """Return the W3C header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.is_sampled:02x}"

    @classmethod
    def below(cls, traceparent: bytes, *, is_sampled: bool) -> SpanIds:
        """Make new ids, of the trace of this header if it has one."""
        context = trace_context(traceparent)
        # Never 0, which is no id.
        trace = _random.getrandbits(128) | 1 if context is None else int(context[0], 16)
        return cls(trace, _random.getrandbits(64) | 1, is_sampled)
