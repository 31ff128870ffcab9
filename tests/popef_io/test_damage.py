"""Every truncation and every changed byte of a small file with all types of blobs."""

from __future__ import annotations

import struct
import zlib
from itertools import pairwise
from pathlib import Path

import pytest

from popef_io import (
    Blob,
    CorruptError,
    ModelBuilder,
    NotPopefError,
    PopefError,
    Reader,
    TruncatedError,
)
from tests.popef_io.containers import parse, write_small
from tests.popef_io.test_hostile import use_contents

MASKS = [1 << bit for bit in range(8)] + [0xFF]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("damage") / "small.popef"
    return write_small(path, unknown=True).read_bytes()


@pytest.fixture(scope="module")
def blobs(whole: bytes) -> tuple[Blob, ...]:
    reader = Reader()
    parse(reader, whole)
    return reader.blobs


def blob_at(blobs: tuple[Blob, ...], offset: int) -> Blob:
    return next(
        blob
        for blob in blobs
        if blob.offset <= offset < blob.offset + blob.header.total_size
    )


def is_payload(blob: Blob, offset: int) -> bool:
    begin = blob.offset + blob.header.payload_offset
    return begin <= offset < begin + blob.header.payload_size


def test_the_file_has_everything(blobs: tuple[Blob, ...]) -> None:
    assert len({blob.header.type_number for blob in blobs}) == 6
    for blob, following in pairwise(blobs):
        assert blob.offset + blob.header.total_size == following.offset


def test_every_truncation(whole: bytes, blobs: tuple[Blob, ...]) -> None:
    for size in range(len(whole)):
        reader = Reader()
        with pytest.raises(PopefError) as caught:
            parse(reader, whole[:size])
        error = caught.value
        assert isinstance(error, TruncatedError if size else NotPopefError), size
        assert error.where is not None
        blob = blob_at(blobs, size)
        assert (error.where.blob, error.where.offset) == (blob.index, blob.offset)
        assert f"blob {blob.index}" in str(error)
        assert reader.blobs == ()


def test_every_truncation_of_a_mapped_file(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "shorter.popef"
    for size in range(1, len(whole), 31):
        path.write_bytes(whole[:size])
        with pytest.raises(TruncatedError, match="the file is truncated") as caught:
            Reader().parse_file(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("mask", MASKS)
def test_every_changed_byte(whole: bytes, blobs: tuple[Blob, ...], mask: int) -> None:
    for offset in range(len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= mask
        blob = blob_at(blobs, offset)
        reader = Reader()
        error: PopefError
        if is_payload(blob, offset):
            parse(reader, bytes(damaged))
            with pytest.raises(CorruptError, match="checksum of the payload") as caught:
                reader.verify()
            error = caught.value
        else:
            with pytest.raises((CorruptError, NotPopefError)) as refused:
                parse(reader, bytes(damaged))
            error = refused.value
            assert reader.blobs == ()
        where = error.where
        assert where is not None
        assert where.blob == blob.index
        assert blob.offset <= where.offset <= offset
        assert f"blob {blob.index}" in str(error)
        assert f"offset {where.offset}" in str(error)


def test_names_the_blob_that_is_damaged(whole: bytes, blobs: tuple[Blob, ...]) -> None:
    tensor = blobs[2]
    damaged = bytearray(whole)
    damaged[tensor.offset + tensor.header.payload_offset] ^= 1
    reader = Reader()
    parse(reader, bytes(damaged))
    message = f"blob 2 DATA_TENSOR 'w', offset {tensor.offset}: the checksum"
    with pytest.raises(CorruptError, match=message):
        reader.tensors[0].data()
    reader.tensors[1].data()  # the others are as good as before


def with_right_checksums(data: bytearray, blob: Blob) -> bytes:
    """What somebody would do who changes a file on purpose."""
    begin = blob.offset
    end = begin + 64 + blob.header.descriptor_size
    descriptor_crc = zlib.crc32(data[begin + 64 : end])
    data[begin + 44 : begin + 48] = struct.pack("<I", descriptor_crc)
    data[begin + 60 : begin + 64] = struct.pack(
        "<I", zlib.crc32(data[begin : begin + 60])
    )
    return bytes(data)


@pytest.mark.parametrize("mask", MASKS)
def test_every_changed_byte_with_right_checksums(
    whole: bytes, blobs: tuple[Blob, ...], mask: int
) -> None:
    refused = 0
    for blob in blobs:
        for offset in range(
            blob.offset, blob.offset + 64 + blob.header.descriptor_size
        ):
            damaged = bytearray(whole)
            damaged[offset] ^= mask
            reader = Reader()
            try:
                parse(reader, with_right_checksums(damaged, blob))
                use_contents(reader)
                ModelBuilder(reader).create_model("net")
            except PopefError:
                refused += 1
    assert refused > 500
