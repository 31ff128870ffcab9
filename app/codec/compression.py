"""Compressed request bodies: gzip and deflate, inflated within the body limit.

Responses are never compressed here.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable

from app.errors import BodyTooLarge, MalformedBody, UnsupportedMediaType

_STEP = 1 << 20  # bytes inflated at once
_EITHER = 32 + zlib.MAX_WBITS  # zlib's word for "gzip or zlib, look at the header"
_PLAIN = (b"", b"identity")
_INFLATED = (b"gzip", b"x-gzip", b"deflate")


def inflate(encoding: bytes, chunks: Iterable[bytes], limit: int) -> list[bytes]:
    """The chunks of a body without its Content-Encoding.

    Raises UnsupportedMediaType for an encoding that is not read here, MalformedBody
    for data that is not in it, BodyTooLarge as soon as more than `limit` bytes are out.
    """
    name = encoding.strip().lower()
    if name in _PLAIN:
        return list(chunks)
    if name not in _INFLATED:
        msg = (
            f"content encoding '{name[:80].decode('ascii', 'backslashreplace')}' is "
            "not read here; expected gzip, deflate or identity"
        )
        raise UnsupportedMediaType(msg)
    try:
        return _inflate(chunks, limit)
    except zlib.error as error:
        msg = f"the body is not valid {name.decode()}: {error}"
        raise MalformedBody(msg) from None


def _inflate(chunks: Iterable[bytes], limit: int) -> list[bytes]:
    inflater = zlib.decompressobj(_EITHER)
    out: list[bytes] = []
    size = 0
    for chunk in chunks:
        pending = chunk
        while pending:
            if inflater.eof:  # a gzip file may have several members
                inflater = zlib.decompressobj(_EITHER)
            piece = inflater.decompress(pending, _STEP)
            pending = inflater.unconsumed_tail or inflater.unused_data
            size += len(piece)
            if size > limit:
                msg = (
                    "the inflated request body exceeds the maximum allowed input size "
                    f"of {limit} bytes. Use --http-max-input-size to increase the "
                    "limit."
                )
                raise BodyTooLarge(msg)
            if piece:
                out.append(piece)
    if not inflater.eof:
        msg = "the compressed body is cut off"
        raise MalformedBody(msg)
    return out
