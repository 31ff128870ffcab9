"""Compressed bodies: inflate gzip and deflate within the body limit, and compress
responses.

Only inference answers are compressed. Stock clients decompress these, but expect every
other answer, errors included, uncompressed.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable

from app.codec.bounded_cache import remember
from app.codec.chunks import in_parts
from app.codec.media import quality_of
from app.codec.memory_check import reserve
from app.codec.messages import Body, Response, lines_of
from app.errors import (
    BodyTooLarge,
    MalformedBody,
    UnsupportedMediaType,
    larger_than_allowed,
)
from app.give_way import AT_ONCE, give_way
from engine import Buffer

_STEP = AT_ONCE  # bytes inflated at once
_EITHER = 32 + zlib.MAX_WBITS  # zlib's value for "gzip or zlib, by the header"
_PLAIN = (b"", b"identity")
_INFLATED = (b"gzip", b"x-gzip", b"deflate")
# The start of Python's message for zlib's Z_MEM_ERROR.
_NO_MEMORY = "Error -4 "
# The most bytes that deflate can produce from one byte.
_MOST_RATIO = 1032
# Members of one gzip body. Each has a cost, even if it is empty.
_MAX_MEMBERS = 1000
# Bytes of a small body: members without content take 5 us for each 20 bytes.
_SMALL = 4096
# The fastest level: a fifth of the time of zlib's default for nearly the same size.
_LEVEL = 1


def inflate_small(encoding: bytes, chunks: Body, limit: int) -> Body | None:
    """Return what `inflate` returns if that is little; else return None.

    The event loop does it, so a small body does not wait for the large ones of others.
    """
    if sum(map(len, chunks)) > _SMALL:
        return None
    try:
        return inflate(encoding, chunks, min(limit, AT_ONCE), pause=lambda: None)
    except BodyTooLarge:
        return None


class Coding(enum.Enum):
    """Codings of a response; the value is its Content-Encoding."""

    GZIP = b"gzip"
    DEFLATE = b"deflate"


class CompressResponses(enum.Enum):
    """Policies for following Accept-Encoding.

    HTTP libraries list every supported coding in every request, even if compression
    does not pay. ASKED ignores such a list, but follows a single coding or one that
    quality values prefer. ALWAYS follows every header, NEVER none.
    """

    ASKED = "asked"
    ALWAYS = "always"
    NEVER = "never"


def inflate(
    encoding: bytes, chunks: Body, limit: int, pause: Callable[[], None] = give_way
) -> Body:
    """Return the chunks of a body without its Content-Encoding. Pause between steps.

    Raises UnsupportedMediaType for an unknown encoding and MalformedBody for invalid
    data. Raises BodyTooLarge as soon as the result exceeds `limit` bytes.
    """
    name = encoding.strip().lower()
    if name in _PLAIN:
        return list(chunks)
    if name not in _INFLATED:
        msg = (
            f"content encoding '{name[:80].decode('ascii', 'backslashreplace')}' is "
            "not supported; expected gzip, deflate or identity"
        )
        raise UnsupportedMediaType(msg)
    if name != _INFLATED[-1]:
        stated = _stated_size(chunks)
        # A stated size beyond deflate's ratio comes from a damaged body.
        if limit < stated <= _MOST_RATIO * sum(map(len, chunks)):
            raise larger_than_allowed(f"{stated} inflated", limit)
    try:
        return _inflate(chunks, limit, pause)
    except zlib.error as error:
        if str(error).startswith(_NO_MEMORY):
            raise MemoryError from None
        raise MalformedBody(f"the body is not valid {name.decode()}: {error}") from None


def _stated_size(chunks: Body) -> int:
    """Return the size in the trailer of a gzip file's last member, modulo 2**32; 0
    without one.
    """
    return int.from_bytes(b"".join(bytes(c[-4:]) for c in chunks[-4:])[-4:], "little")


def _inflate(chunks: Body, limit: int, pause: Callable[[], None]) -> Body:
    inflater = zlib.decompressobj(_EITHER)
    out: Body = []
    size, members = 0, 1
    for chunk in chunks:
        pending: Buffer = chunk
        while pending:
            if inflater.eof:  # a gzip file may have several members
                inflater = zlib.decompressobj(_EITHER)
                members += 1
                if members > _MAX_MEMBERS:
                    msg = f"the gzip body has more than {_MAX_MEMBERS} members"
                    raise MalformedBody(msg)
            piece = inflater.decompress(pending, min(_STEP, limit - size + 1))
            pending = inflater.unconsumed_tail or inflater.unused_data
            size += len(piece)
            if size > limit:
                raise larger_than_allowed(f"{size} or more inflated", limit)
            if piece:
                reserve(len(piece))
                out.append(piece)
            if pending:
                pause()
    if not inflater.eof:
        raise MalformedBody("the compressed body is cut off")
    return out


class ResponseCodings:
    """Choice of the coding for an Accept-Encoding. Remembers its decisions."""

    def __init__(self, when: CompressResponses = CompressResponses.ASKED) -> None:
        self.when = when
        self._known: dict[bytes, Coding | None] = {}

    def choose(self, accept: bytes) -> Coding | None:
        """Return the coding for a header's value; None to leave the answer
        unchanged.
        """
        try:
            return self._known[accept]
        except KeyError:
            pass
        return remember(self._known, accept, self._decide(accept))

    def _decide(self, accept: bytes) -> Coding | None:
        if self.when is CompressResponses.NEVER:
            return None
        named: dict[bytes, float] = {}
        weighed = False
        for item in accept.lower().split(b","):
            name, _, parameter = (part.strip() for part in item.partition(b";"))
            weighed = weighed or bool(parameter)
            if name:
                named[name] = quality_of(parameter)
        if not weighed and len(named) > 1 and self.when is CompressResponses.ASKED:
            return None
        offered = [(named[c.value], c) for c in Coding if named.get(c.value, 0) > 0]
        if not offered:
            return None
        # The first of the best: a stable order, as the client named them.
        order = list(named)
        best = max(offered, key=lambda pair: (pair[0], -order.index(pair[1].value)))
        return best[1] if best[0] >= named.get(b"identity", 0.0) else None

    def __repr__(self) -> str:
        return f"<ResponseCodings {self.when.value} {len(self._known)} known>"


def compress(response: Response, coding: Coding) -> Response:
    """Return the response, compressed. Takes 10 to 20 ns a byte: use a thread if it is
    larger than `AT_ONCE`.

    Inference-Header-Content-Length still counts the bytes before compression.
    """
    window = zlib.MAX_WBITS + (16 if coding is Coding.GZIP else 0)
    packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, window)
    pieces: list[Buffer] = []
    for part in response.parts:
        view = memoryview(part).cast("B")
        for start in range(0, len(view), _STEP):
            if start:
                give_way()
            pieces.append(packer.compress(view[start : start + _STEP]))
    pieces.append(packer.flush())
    total = sum(map(len, pieces))
    headers = [header for header in response.headers if header[0] != b"content-length"]
    headers += [
        (b"content-length", b"%d" % total),
        (b"content-encoding", coding.value),
        (b"vary", b"accept-encoding"),
    ]
    lines = lines_of(headers)
    return Response(response.status, lines, in_parts(pieces, total), total)
