"""Contents as streams: like a file that holds nothing else."""

from __future__ import annotations

import gc
import io
import tracemalloc
from pathlib import Path

import pytest

from popef.streams import stream_of
from popef_io import Reader, Writer

CONTENT = bytes(range(256)) * 100


@pytest.fixture(params=[False, True], ids=["stored", "compressed"])
def reader(tmp_path: Path, request: pytest.FixtureRequest) -> Reader:
    with Writer(tmp_path / "file") as writer:
        writer.create_executable("net", request.param).write(CONTENT)
    reader = Reader()
    reader.parse_file(tmp_path / "file")
    return reader


def test_reads_as_a_file_does(reader: Reader) -> None:
    (executable,) = reader.executables
    stream = stream_of(executable.raw())
    like = io.BytesIO(CONTENT)
    buffer, other = bytearray(9000), bytearray(9000)
    for step in (
        lambda s: s.read(3),
        lambda s: s.seek(5, io.SEEK_CUR),
        lambda s: s.read(20_000),
        lambda s: s.readinto(buffer if s is stream else other),
        lambda s: s.tell(),
        lambda s: s.read(),
        lambda s: s.read(10),
        lambda s: s.seek(-300, io.SEEK_END),
        lambda s: s.readline(),
        lambda s: s.seek(len(CONTENT) + 10),
        lambda s: s.read(),
        lambda s: s.seek(0),
        lambda s: s.read(),
        lambda s: (s.readable(), s.seekable()),
    ):
        assert step(stream) == step(like)
    assert buffer == other
    assert executable.size == len(CONTENT)
    with pytest.raises(OSError, match="write"):
        stream.write(b"x")


def test_positions_are_independent_and_not_negative(reader: Reader) -> None:
    first, second = (stream_of(reader.executables[0].raw()) for _ in range(2))
    first.seek(100)
    assert second.read(2) == CONTENT[:2]
    assert first.read(2) == CONTENT[100:102]
    with pytest.raises(ValueError, match="at least 0"):
        first.seek(-1)


def test_a_stream_outlives_its_reader_and_may_be_closed(reader: Reader) -> None:
    stream = stream_of(reader.executables[0].raw())
    reader.close()
    gc.collect()
    with stream:
        assert stream.read(5) == CONTENT[:5]
    with pytest.raises(ValueError, match="closed"):
        stream.read()


def test_opening_copies_nothing(tmp_path: Path) -> None:
    size = 8 << 20
    with Writer(tmp_path / "file") as writer:
        writer.create_opaque_blob("large", "").write(bytes(size))
    reader = Reader()
    reader.parse_file(tmp_path / "file")
    tracemalloc.start()
    try:
        stream = stream_of(reader.opaque_blobs[0].raw())
        assert stream.seek(-1, io.SEEK_END) == size - 1
        assert stream.read() == b"\0"
        assert tracemalloc.get_traced_memory()[1] < size // 8
    finally:
        tracemalloc.stop()
