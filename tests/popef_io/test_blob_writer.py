from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from popef_io import (
    DataType,
    FeedDataInfo,
    InvalidValueError,
    LimitError,
    Reader,
    TensorDataInfo,
    Writer,
    WriterStateError,
    encode_strings,
)
from popef_io.layout import MAX_EXECUTABLE_SIZE
from tests.popef_io.containers import info


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[Writer]:
    writer = Writer(tmp_path / "file")
    yield writer
    writer.discard()


def read(writer: Writer) -> Reader:
    path = writer._output.path
    writer.close()
    reader = Reader()
    reader.parse_file(path)
    return reader


@pytest.mark.parametrize(
    "data",
    [
        b"\1\2\3\4",
        bytearray(b"\1\2\3\4"),
        memoryview(b"\1\2\3\4"),
        np.array([[1, 2], [3, 4]], np.uint8),
        np.array([0x0201, 0x0403], "<u2"),
        np.array(0x04030201, np.int32),
        np.array([[0x0201], [0x0403]], "<i2").data,
    ],
    ids=lambda data: f"{type(data).__name__}",
)
def test_takes_bytes_and_arrays(writer: Writer, data: Any) -> None:
    blob = writer.create_opaque_blob("o")
    assert blob.write(data) == 4
    blob.write(b"")
    blob.write(np.zeros((0, 3), np.float32))
    blob.write(b"\5")
    assert bytes(read(writer).opaque_blobs[0].raw()) == b"\1\2\3\4\5"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ("text", "expected bytes, got str"),
        (7, "expected bytes, got int"),
        ([1, 2], "expected bytes, got list"),
        (np.zeros((4, 4))[:, 1], "expected contiguous"),
        (np.zeros((4, 4))[::2], "expected contiguous"),
        (np.array(["a"], object), "convert strings with encode_strings"),
        (np.array(["2020-01-01"], "M8[D]"), "expected bytes, got ndarray"),
    ],
)
def test_takes_nothing_else(writer: Writer, data: Any, reason: str) -> None:
    blob = writer.create_opaque_blob("o")
    with pytest.raises(InvalidValueError, match=reason):
        blob.write(data)
    blob.write(b"x")
    assert bytes(read(writer).opaque_blobs[0].raw()) == b"x"


def test_rows_in_memory_order(writer: Writer) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    blob = writer.create_tensor_data(TensorDataInfo("t", info(3, 2)))
    with pytest.raises(InvalidValueError, match="expected contiguous"):
        blob.write(array.T)
    blob.write(np.ascontiguousarray(array.T))
    np.testing.assert_array_equal(read(writer).tensors[0].data(), array.T)


def test_values_of_tensors_are_little_endian(writer: Writer) -> None:
    array = np.ones(2, ">f4")
    opaque = writer.create_opaque_blob("o")
    opaque.write(array)
    opaque.close()
    blob = writer.create_tensor_data(TensorDataInfo("t", info(2)))
    with pytest.raises(InvalidValueError, match="expected little-endian"):
        blob.write(array)
    blob.write(array.astype("<f4"))
    found = read(writer)
    assert found.tensors[0].data().tolist() == [1, 1]
    assert bytes(found.opaque_blobs[0].raw()) == array.tobytes()


def test_no_more_than_described(writer: Writer) -> None:
    blob = writer.create_tensor_data(TensorDataInfo("t", info(2)))
    with pytest.raises(InvalidValueError, match="got 9 bytes, expected 8"):
        blob.write(bytes(9))
    blob.write(bytes(8))
    with pytest.raises(InvalidValueError, match="got 9 bytes, expected 8"):
        blob.write(b"x")
    blob.write(b"")
    blob.close()
    assert repr(blob) == "<BlobWriter DATA_TENSOR 't' closed 8 bytes>"


def test_no_less_than_described(writer: Writer) -> None:
    feed = writer.create_feed_data(FeedDataInfo("f", info(2), 3))
    feed.write(bytes(23))
    with pytest.raises(WriterStateError, match="got 23 bytes, expected 24"):
        feed.close()
    feed.write(bytes(1))
    feed.close()
    feed.close()


def test_state(writer: Writer) -> None:
    with writer.create_opaque_blob("o") as blob:
        assert repr(blob) == "<BlobWriter OPAQUE 'o' open 0 bytes>"
        blob.discard()
        blob.discard()
        with pytest.raises(WriterStateError, match="is discarded"):
            blob.close()
        blob = writer.create_opaque_blob("o")
    blob.close()


def test_strings_are_checked(writer: Writer) -> None:
    blob = writer.create_tensor_data(
        TensorDataInfo("t", info(2, data_type=DataType.STRING))
    )
    data = encode_strings(["one", "two"])
    blob.write(data[:5])
    with pytest.raises(InvalidValueError, match=r"DATA_TENSOR 't': .*strings"):
        blob.close()
    blob.write(data[5:])
    blob.close()
    assert read(writer).tensors[0].data().tolist() == [b"one", b"two"]


def test_booleans_are_checked(writer: Writer) -> None:
    info_ = TensorDataInfo("t", info(3, data_type=DataType.BOOL))
    blob = writer.create_tensor_data(info_)
    with pytest.raises(InvalidValueError, match="a BOOL element must be 0 or 1"):
        blob.write(b"\0\1\2")
    blob.write(np.array([True, False, True]))
    assert read(writer).tensors[0].data().tolist() == [True, False, True]


@pytest.mark.parametrize("steps", [1, 7])
def test_compression_in_steps(writer: Writer, steps: int) -> None:
    content = np.random.default_rng(0).integers(0, 4, 100_000).astype(np.uint8)
    with writer.create_executable("net", compress=True) as blob:
        for part in np.array_split(content, steps):
            blob.write(part)
    item = read(writer).executables[0]
    assert item.is_compressed
    assert item.raw() == content.tobytes()
    assert item.blob.header.payload_size < len(content) / 2


def test_compressed_content_is_bounded(writer: Writer) -> None:
    blob = writer.create_executable("net", compress=True)
    # Virtual memory only: the limit comes before anything is read.
    huge = np.zeros(MAX_EXECUTABLE_SIZE + 1, np.uint8)
    with pytest.raises(LimitError, match="size before compression"):
        blob.write(huge)
