"""Compressed bodies, inflated within bounds."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import numpy as np
import pytest

from app.codec.compression import (
    Coding,
    CompressResponses,
    ResponseCodings,
    compress,
    inflate,
)
from app.codec.messages import Body, Response, lines_of
from app.errors import BodyTooLarge, MalformedBody, UnsupportedMediaType
from engine import Buffer

DATA = bytes(range(256)) * 100


#: Without a time: what tests are called by must not differ between processes.
PACKED = gzip.compress(DATA, mtime=0)


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", PACKED),
        (b"GZIP ", PACKED),
        (
            b"x-gzip",
            gzip.compress(DATA[:50], mtime=0) + gzip.compress(DATA[50:], mtime=0),
        ),
        (b"deflate", zlib.compress(DATA)),
        (b"identity", DATA),
        (b"", DATA),
    ],
)
@pytest.mark.parametrize("step", [1, 100, 1 << 20])
def test_inflates(encoding: bytes, body: bytes, step: int) -> None:
    chunks: Body = [body[i : i + step] for i in range(0, len(body), step)]
    assert b"".join(inflate(encoding, chunks, len(DATA))) == DATA


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"gzip, gzip", b"\xff"])
def test_not_read(encoding: bytes) -> None:
    with pytest.raises(
        UnsupportedMediaType, match="expected gzip, deflate or identity"
    ):
        inflate(encoding, [DATA], 1 << 20)


@pytest.mark.parametrize("body", [b"", b"{}", PACKED[:-1], PACKED + b"x", b"\x1f\x8b"])
def test_damaged(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        inflate(b"gzip", [body], 1 << 20)


BOMB = gzip.compress(bytes(50 << 20))
LYING = BOMB[:-4] + (1 << 20).to_bytes(4, "little")


@pytest.mark.parametrize(
    ("bomb", "most"),
    [
        ([BOMB], 1 << 20),
        ([BOMB[:-2], BOMB[-2:-1], BOMB[-1:]], 1 << 20),
        ([LYING], 8 << 20),
    ],
)
def test_a_bomb_is_stopped_early(bomb: Body, most: int) -> None:
    """Before anything is inflated if it says how large it is."""
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge, match="maximum allowed value of 6291456 by"):
            inflate(b"gzip", bomb, 6 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most


def test_the_limit_itself_is_allowed() -> None:
    assert inflate(b"gzip", [PACKED], len(DATA))
    with pytest.raises(BodyTooLarge):
        inflate(b"gzip", [PACKED], len(DATA) - 1)


def test_members_without_end_are_refused() -> None:
    with pytest.raises(MalformedBody, match="more than 1000 members"):
        inflate(b"gzip", [gzip.compress(b"") * 1001], 1 << 20)


@pytest.mark.parametrize(
    ("accept", "asked", "always"),
    [
        (b"gzip", Coding.GZIP, Coding.GZIP),
        (b"Deflate", Coding.DEFLATE, Coding.DEFLATE),
        (b"gzip;q=0.5, deflate;q=0.8", Coding.DEFLATE, Coding.DEFLATE),
        (b"deflate;q=0.8, gzip;q=0.8", Coding.DEFLATE, Coding.DEFLATE),
        (b"gzip;q=0.5, identity", None, None),
        (b"gzip;q=0.5, identity;q=0.1, br;q=1", Coding.GZIP, Coding.GZIP),
        (b"gzip;q=0", None, None),
        (b"gzip;q=much", None, None),
        (b"gzip;q=7", None, None),
        (b"gzip;q=0_1", None, None),
        (b"br", None, None),
        (b"*", None, None),
        (b"identity", None, None),
        (b"", None, None),
        (b",;,", None, None),
        # What HTTP libraries send by themselves.
        (b"gzip, deflate", None, Coding.GZIP),
        (b"deflate, gzip, br, zstd", None, Coding.DEFLATE),
    ],
)
def test_choice(accept: bytes, asked: Coding | None, always: Coding | None) -> None:
    codings = ResponseCodings()
    assert [codings.choose(accept) for _ in "ab"] == [asked, asked]
    assert ResponseCodings(CompressResponses.ALWAYS).choose(accept) is always
    assert ResponseCodings(CompressResponses.NEVER).choose(accept) is None


def test_any_number_of_different_headers_is_bounded() -> None:
    codings = ResponseCodings()
    for number in range(1000):
        assert codings.choose(b"gzip;q=0.%d" % (number + 1)) is Coding.GZIP
    assert int(repr(codings).split()[2]) <= 256


@pytest.mark.parametrize("coding", Coding)
@pytest.mark.parametrize("parts", [[DATA], [DATA[:7], DATA[7:]], [b""]])
def test_compresses(coding: Coding, parts: list[bytes]) -> None:
    headers = [(b"content-length", b"%d" % sum(map(len, parts))), (b"x", b"y")]
    packed = compress(Response(200, lines_of(headers), parts), coding)
    found = dict(packed.headers)
    assert int(found[b"content-length"]) == len(packed.body) == packed.nbytes
    assert (found[b"content-encoding"], found[b"x"]) == (coding.value, b"y")
    assert len(packed.headers) == len(found)
    window = 31 if coding is Coding.GZIP else 15  # not just "either of them"
    assert zlib.decompress(packed.body, window) == b"".join(parts)


def test_a_large_answer_is_compressed_in_steps() -> None:
    data = bytes(range(256)) * 5000
    numbers: memoryview = np.frombuffer(data, np.float32).data
    parts: list[Buffer] = [b"", data[:7], memoryview(data)[7:], numbers]
    answer = Response(200, b"", parts, 2 * len(data))
    packed = compress(answer, Coding.GZIP)
    assert gzip.decompress(packed.body) == data + data
    assert packed.nbytes == len(packed.body)
