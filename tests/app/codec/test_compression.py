"""Compressed bodies, inflated within bounds."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib

import pytest

from app.codec.compression import inflate
from app.errors import BodyTooLarge, MalformedBody, UnsupportedMediaType

DATA = bytes(range(256)) * 100


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (b"gzip", gzip.compress(DATA)),
        (b"GZIP ", gzip.compress(DATA)),
        (b"x-gzip", gzip.compress(DATA[:50]) + gzip.compress(DATA[50:])),
        (b"deflate", zlib.compress(DATA)),
        (b"identity", DATA),
        (b"", DATA),
    ],
)
@pytest.mark.parametrize("step", [1, 100, 1 << 20])
def test_inflates(encoding: bytes, body: bytes, step: int) -> None:
    chunks = [body[i : i + step] for i in range(0, len(body), step)]
    assert b"".join(inflate(encoding, chunks, len(DATA))) == DATA


@pytest.mark.parametrize("encoding", [b"br", b"zstd", b"gzip, gzip", b"\xff"])
def test_not_read(encoding: bytes) -> None:
    with pytest.raises(
        UnsupportedMediaType, match="expected gzip, deflate or identity"
    ):
        inflate(encoding, [DATA], 1 << 20)


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", gzip.compress(DATA)[:-1], gzip.compress(DATA) + b"x", b"\x1f\x8b"],
)
def test_damaged(body: bytes) -> None:
    with pytest.raises(MalformedBody):
        inflate(b"gzip", [body], 1 << 20)


def test_a_bomb_is_stopped_early() -> None:
    bomb = gzip.compress(bytes(50 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(BodyTooLarge, match="maximum allowed input size of 4194304"):
            inflate(b"gzip", [bomb], 4 << 20)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 << 20


def test_the_limit_itself_is_allowed() -> None:
    assert inflate(b"gzip", [gzip.compress(DATA)], len(DATA))
    with pytest.raises(BodyTooLarge):
        inflate(b"gzip", [gzip.compress(DATA)], len(DATA) - 1)
