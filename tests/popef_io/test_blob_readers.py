from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np
import pytest

from popef_io import (
    DataType,
    ExecutableReader,
    FeedDataInfo,
    LimitError,
    Reader,
    TensorDataInfo,
    TensorInfo,
    Writer,
    encode_strings,
)
from tests.popef_io.containers import (
    FRAMES,
    LABELS,
    OPAQUE,
    TENSOR,
    UNKNOWN,
    pack,
    parse,
    raw_blob,
    raw_file,
    tensor_fields,
    write_small,
)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    reader = Reader()
    reader.parse_file(write_small(tmp_path / "small.popef", unknown=True))
    return reader


def executable(path: Path, content: bytes, *, compress: bool) -> ExecutableReader:
    with Writer(path) as writer:
        writer.create_executable("net", compress).write(content)
    reader = Reader()
    reader.parse_file(path)
    return reader.executables[0]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("content", [b"", b"x", b"ab" * 5000, bytes(3 << 20)])
def test_executable(tmp_path: Path, content: bytes, compress: bool) -> None:
    item = executable(tmp_path / "file", content, compress=compress)
    assert item.raw() == content
    assert item.raw() == content
    assert item.size == len(content)
    assert item.is_compressed is compress
    assert item.raw().readonly
    stored = item.blob.header.payload_size
    assert stored == (len(zlib.compress(content)) if compress else len(content))


def test_executable_in_text(tmp_path: Path) -> None:
    item = executable(tmp_path / "file", b"abc", compress=True)
    assert repr(item) == "<ExecutableReader 'net' 3 bytes compressed>"


def test_largest_executable_is_the_callers_to_say(tmp_path: Path) -> None:
    executable(tmp_path / "file", bytes(1000), compress=True)
    for limit in (1000, 999):
        reader = Reader(max_executable_size=limit)
        reader.parse_file(tmp_path / "file")
        if limit == 1000:
            assert len(reader.executables[0].raw()) == 1000
        else:
            with pytest.raises(
                LimitError, match=r"blob 0 .* is 1000, which exceeds .* 999"
            ):
                reader.executables[0].raw()


@pytest.mark.parametrize("data_type", DataType)
@pytest.mark.parametrize("shape", [(), (1,), (0,), (2, 3), (4, 0, 2)])
def test_tensor_of_every_type(
    tmp_path: Path, data_type: DataType, shape: tuple[int, ...]
) -> None:
    count = int(np.prod(shape))
    array = (np.arange(count) % 2).astype(data_type.numpy_dtype).reshape(shape)
    data: bytes | np.ndarray[tuple[int, ...], np.dtype[np.generic]] = array
    if data_type is DataType.STRING:
        words = [f"word {index}".encode() for index in range(count)]
        array = np.array([*words, None], dtype=object)[:-1].reshape(shape)
        data = encode_strings(array)
    info = TensorDataInfo("t", TensorInfo(shape, data_type))
    with Writer(tmp_path / "file") as writer:
        writer.create_tensor_data(info).write(data)
    reader = Reader()
    reader.parse_file(tmp_path / "file")
    read = reader.tensors[0].data()
    assert (read.shape, read.dtype) == (shape, data_type.numpy_dtype)
    np.testing.assert_array_equal(read, array)
    assert reader.tensors[0].raw() == (
        data if isinstance(data, bytes) else array.tobytes()
    )
    assert reader.tensors[0].info == info


def test_tensors_are_views(reader: Reader) -> None:
    tensor = reader.tensors[0]
    first, second = tensor.data(), tensor.data()
    assert first.ctypes.data == second.ctypes.data
    assert first.ctypes.data % 64 == 0
    assert not first.flags.writeable
    assert repr(tensor) == "<TensorReader 'w' F32[2, 3]>"


def test_strings(reader: Reader) -> None:
    tensor = reader.tensors[1]
    assert tensor.data().tolist() == [label.encode() for label in LABELS]
    assert tensor.raw() == encode_strings(LABELS)


def test_feed(reader: Reader) -> None:
    feed = reader.feeds[0]
    assert (feed.name, len(feed)) == ("x", 4)
    np.testing.assert_array_equal(feed.data(), FRAMES)
    for frame, expected in zip(feed, FRAMES, strict=True):
        np.testing.assert_array_equal(frame, expected)
    assert feed.raw() == FRAMES.tobytes()
    assert repr(feed) == "<FeedReader 'x' 4 x F32[2, 3]>"


@pytest.mark.parametrize("count", [0, 1, 3])
def test_feeds_of_scalars_and_strings(tmp_path: Path, count: int) -> None:
    numbers = FeedDataInfo("n", TensorInfo((), DataType.S16), count)
    words = FeedDataInfo("w", TensorInfo((2,), DataType.STRING), count)
    with Writer(tmp_path / "file") as writer:
        writer.create_feed_data(numbers).write(np.arange(count, dtype=np.int16))
        writer.create_feed_data(words).write(encode_strings(["a", "b"] * count))
    reader = Reader()
    reader.parse_file(tmp_path / "file")
    assert [int(item) for item in reader.feeds[0]] == list(range(count))
    assert reader.feeds[1].data().tolist() == [[b"a", b"b"]] * count


def test_opaque(reader: Reader) -> None:
    opaque = reader.opaque_blobs[0]
    assert (opaque.name, opaque.executable) == ("notes", "net")
    assert bytes(opaque.raw()) == b"anything"
    assert repr(opaque) == "<OpaqueReader 'notes' 8 bytes>"


def test_unknown(reader: Reader) -> None:
    unknown = reader.unknown_blobs[0]
    assert unknown.type_number == UNKNOWN
    assert bytes(unknown.descriptor()) == b"later"
    assert bytes(unknown.raw()) == b"something"
    assert (unknown.blob.name, unknown.blob.executable) == (None, None)
    assert repr(unknown) == f"<UnknownBlob type 777 at {unknown.blob.offset}>"


def test_every_kind_of_contents_has_its_size(reader: Reader) -> None:
    contents = [
        *reader.executables,
        *reader.tensors,
        *reader.feeds,
        *reader.opaque_blobs,
        *reader.unknown_blobs,
    ]
    assert len({type(content) for content in contents}) == 5
    for content in contents:
        assert content.size == len(content.raw())


def test_blobs_tell_where_they_are(reader: Reader) -> None:
    names = [
        (blob.header.type_name, blob.name, blob.executable) for blob in reader.blobs
    ]
    assert names == [
        ("POPLAR_EXECUTABLE", "net", "net"),
        ("METADATA", "net", "net"),
        ("DATA_TENSOR", "w", ""),
        ("DATA_FEED", "x", ""),
        ("DATA_TENSOR", "labels", "net"),
        ("type 777", None, None),
        ("OPAQUE", "notes", "net"),
    ]
    blob = reader.blobs[2]
    assert repr(blob) == f"<Blob 2 DATA_TENSOR 'w' offset={blob.offset} size=192>"
    assert repr(reader.blobs[5]).startswith("<Blob 5 type 777 offset=")
    assert "small.popef, blob 2 DATA_TENSOR 'w', offset" in str(blob.where)


def test_payload_checksums_may_be_left_out() -> None:
    data = raw_file(
        raw_blob(TENSOR, pack(tensor_fields()), bytes(8), payload_crc=1),
        raw_blob(OPAQUE, pack({"name": "o", "executable": ""}), b"x", payload_crc=2),
    )
    reader = Reader(verify_payloads=False)
    parse(reader, data)
    reader.verify()
    assert reader.tensors[0].data().tolist() == [0, 0]
    assert bytes(reader.opaque_blobs[0].raw()) == b"x"
