"""Bytes of headers, in both directions (docs/reference/popef-format.md)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from popef_io import (
    BlobHeader,
    BlobType,
    CorruptError,
    DataType,
    NotPopefError,
    Reader,
    TensorDataInfo,
    TensorInfo,
    TensorType,
    TruncatedError,
    Writer,
)
from popef_io import descriptor as limits
from popef_io.layout import (
    MAX_BLOBS,
    MAX_DEFLATE_RATIO,
    MAX_DESCRIPTOR_SIZE,
    align,
    find_nonzero,
    read_header,
)
from popef_io.validation import MAX_RANK
from tests.popef_io.containers import parse

FORMAT = (
    Path(__file__).parents[2] / "docs" / "reference" / "popef-format.md"
).read_text(encoding="utf-8")

HEADERS = [
    (
        BlobHeader(2, 1, 8, 8, 52, 0x2A3CCCEA, 0x2E3FA576),
        (
            "89504745460d0a1a 0100 0200 01000000 c000000000000000 0800000000000000"
            "0800000000000000 34000000 eacc3c2a 76a53f2e 0000000000000000 a93c4d4e"
        ),
    ),
    (
        BlobHeader(0, 2, 100, 65_000, 1, 1, 0xFFFFFFFF),
        (
            "89504745460d0a1a 0100 0000 02000000 0001000000000000 6400000000000000"
            "e8fd000000000000 01000000 01000000 ffffffff 0000000000000000 86d87313"
        ),
    ),
    (
        BlobHeader(0xFFFF, 0xFFFFFFFC, 0, 0, 8 << 20, 0xFFFFFFFF, 0),
        (
            "89504745460d0a1a 0100 ffff fcffffff 4000800000000000 0000000000000000"
            "0000000000000000 00008000 ffffffff 00000000 0000000000000000 d955ad60"
        ),
    ),
]


@pytest.mark.parametrize(("header", "text"), HEADERS)
def test_header_and_its_bytes(header: BlobHeader, text: str) -> None:
    data = bytes.fromhex(text)
    assert header.encode() == data
    file = memoryview(data + bytes(header.total_size - len(data)))
    assert read_header(file, 0, 0, "file") == header


@pytest.mark.parametrize(("header", "text"), HEADERS)
def test_header_in_parts(header: BlobHeader, text: str) -> None:
    data = bytes.fromhex(text)
    for size in range(len(data)):
        expected = TruncatedError if size else NotPopefError
        with pytest.raises(expected):
            read_header(memoryview(data[:size]), 0, 0, "file")
        with pytest.raises(TruncatedError if size else CorruptError):
            read_header(memoryview(bytes(64) + data[:size]), 64, 1, "file")


def test_header_questions() -> None:
    header = BlobHeader(0, 2, 100, 200, 1, 0, 0)
    assert (header.type, header.type_name) == (
        BlobType.POPLAR_EXECUTABLE,
        "POPLAR_EXECUTABLE",
    )
    assert header.is_compressed
    assert not header.is_last
    assert (header.payload_offset, header.total_size) == (128, 256)
    last = header.with_last(True)
    assert last.is_last
    assert last.is_compressed
    assert last.with_last(False) == header
    unknown = BlobHeader(5, 0, 0, 0, 0, 0, 0)
    assert (unknown.type, unknown.type_name) == (None, "type 5")
    assert unknown.total_size == 64


@pytest.mark.parametrize(
    ("size", "aligned"),
    [(0, 0), (1, 64), (63, 64), (64, 64), (65, 128), (2**63, 2**63)],
)
def test_align(size: int, aligned: int) -> None:
    assert align(size) == aligned


def test_find_nonzero() -> None:
    view = memoryview(b"\1\0\0\2\0")
    assert find_nonzero(view, 1, 3) is None
    assert find_nonzero(view, 1, 5) == 3
    assert find_nonzero(view, 0, 1) == 0
    assert find_nonzero(view, 2, 2) is None


def test_example_of_the_document(tmp_path: Path) -> None:
    lines = re.findall(r"^[0-9a-f]{4}  ((?:[0-9a-f]{2} ){15}..)", FORMAT, re.M)
    data = bytes.fromhex(" ".join(lines))
    with Writer(tmp_path / "file") as writer:
        info = TensorDataInfo("w", TensorInfo((2,), DataType.F32))
        with writer.create_tensor_data(info) as blob:
            blob.write(bytes.fromhex("0000803f 00000040"))
    assert (tmp_path / "file").read_bytes() == data
    reader = Reader()
    parse(reader, data)
    assert reader.tensors[0].data().tolist() == [1, 2]


def test_numbers_of_the_document() -> None:
    for kind in BlobType:
        assert f"| {kind.value} | {kind.name} |" in FORMAT
    for data_type in DataType:
        size = data_type.item_size or "varies"
        assert f"| {data_type.value} | {data_type.name} | {size} |" in FORMAT
    directions = ", ".join(f"{member.value} {member.name}" for member in TensorType)
    assert directions in FORMAT


@pytest.mark.parametrize(
    ("what", "limit"),
    [
        ("blobs in a file", f"{MAX_BLOBS:,}"),
        ("descriptor", f"{MAX_DESCRIPTOR_SIZE >> 20} MiB"),
        ("name, handle, program name", f"{limits.MAX_NAME_SIZE >> 10} KiB"),
        ("value of an option", f"{limits.MAX_VALUE_SIZE >> 20} MiB"),
        ("anchors", f"{limits.MAX_ANCHORS:,}"),
        ("options of a list", f"{limits.MAX_OPTIONS:,}"),
        ("programs of an anchor, or of a list of the flow", f"{limits.MAX_PROGRAMS:,}"),
        ("named programs", f"{limits.MAX_PROGRAM_NAMES:,}"),
        ("rank", f"{MAX_RANK}; {MAX_RANK - 1} for a tensor in a feed"),
        ("replicas, devices, processes", f"{limits.MAX_COUNT:,}"),
        ("ratio of decompressed to compressed size", f"{MAX_DEFLATE_RATIO:,}, the"),
    ],
)
def test_limits_of_the_document(what: str, limit: str) -> None:
    assert f"| {what} | {limit}" in FORMAT
