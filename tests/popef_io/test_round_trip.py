"""Whatever can be written is read back as it was, and says so if it was changed."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from popef_io import (
    Anchor,
    BlobType,
    DataType,
    FeedDataInfo,
    Metadata,
    Option,
    PopefError,
    ProgramFlow,
    Reader,
    TensorDataInfo,
    TensorInfo,
    TensorType,
    Writer,
    decode_strings,
    encode_strings,
)
from popef_io.descriptor import decode, encode
from popef_io.errors import Location
from tests.popef_io.test_hostile import use_contents

quick = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
u32 = st.integers(0, (1 << 32) - 1)
count = st.integers(1, 1 << 16)
programs = st.lists(u32, max_size=4).map(tuple)
data_type = st.sampled_from(DataType)
shape = st.lists(st.integers(-1, 1 << 12), max_size=4).map(tuple)
tensor_info = st.builds(TensorInfo, st.none() | shape, data_type)
options = st.lists(
    st.builds(Option, name, text), max_size=3, unique_by=lambda option: option.name
).map(tuple)
anchors = st.lists(
    st.builds(
        Anchor,
        name=name,
        handle=name,
        tensor_info=tensor_info,
        type=st.sampled_from(TensorType),
        programs=st.lists(u32, max_size=3, unique=True).map(tuple),
        is_per_replica=st.booleans(),
    ),
    max_size=4,
    unique_by=(lambda anchor: anchor.handle, lambda anchor: (anchor.name, anchor.type)),
).map(tuple)
metadata = st.builds(
    Metadata,
    executable=name,
    anchors=anchors,
    program_flow=st.builds(ProgramFlow, programs, programs, programs),
    programs_map=st.dictionaries(u32, text, max_size=4),
    replication_factor=count,
    num_ipus=count,
    ipu_version=u32,
    is_pod=st.booleans(),
    num_processes=count,
    is_inference=st.booleans(),
    engine_options=options,
    device_options=options,
    seed_handle=text,
    device_iterations=st.integers(1, (1 << 32) - 1),
)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[TensorInfo, bytes]:
    dimensions = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    info = TensorInfo(dimensions, draw(data_type))
    if info.data_type is DataType.STRING:
        size = info.element_count
        words = draw(st.lists(st.binary(max_size=9), min_size=size, max_size=size))
        return info, encode_strings(words)
    size = info.size_in_bytes
    data = draw(st.binary(min_size=size, max_size=size))
    if info.data_type is DataType.BOOL:
        data = bytes(byte & 1 for byte in data)
    return info, data


blob = st.one_of(
    st.tuples(st.just("executable"), name, st.booleans(), st.binary(max_size=300)),
    st.tuples(st.just("metadata"), metadata),
    st.tuples(st.just("tensor"), name, text, tensors()),
    st.tuples(st.just("feed"), name, text, tensors(), st.integers(0, 3)),
    st.tuples(st.just("opaque"), name, text, st.binary(max_size=300)),
)


def key(item: Any) -> tuple[str, ...]:
    if item[0] == "metadata":
        return "metadata", item[1].executable
    return (item[0], item[1], "" if item[0] == "executable" else item[2])


blobs = st.lists(blob, min_size=1, max_size=6, unique_by=key)


def write(writer: Writer, item: Any) -> None:
    match item:
        case "metadata", value:
            writer.write(value)
        case "executable", label, compress, data:
            writer.create_executable(label, compress).write(data)
        case "opaque", label, owner, data:
            writer.create_opaque_blob(label, owner).write(data)
        case "tensor", label, owner, (info, data):
            writer.create_tensor_data(TensorDataInfo(label, info, owner)).write(data)
        case "feed", label, owner, (info, data), number:
            feed = FeedDataInfo(label, info, number, owner)
            writer.create_feed_data(feed).write(data * number)


def read_back(reader: Reader) -> list[Any]:
    """What `write` would have to be given."""
    found: list[Any] = [("metadata", value) for value in reader.metadata]
    for executable in reader.executables:
        content = bytes(executable.raw())
        found.append(("executable", executable.name, executable.is_compressed, content))
    found.extend(
        ("opaque", opaque.name, opaque.executable, bytes(opaque.raw()))
        for opaque in reader.opaque_blobs
    )
    for tensor in reader.tensors:
        info = tensor.info.tensor_info
        owner = tensor.info.executable
        found.append(("tensor", tensor.name, owner, (info, bytes(tensor.raw()))))
    for feed in reader.feeds:
        number = feed.info.num_tensors
        data = bytes(feed.raw())
        one = data[: len(data) // number] if number else b""
        label, owner, info = feed.name, feed.info.executable, feed.info.tensor_info
        found.append(("feed", label, owner, (info, one), number))
    return found


def without_data_of_no_tensors(item: Any) -> Any:
    if item[0] == "feed" and item[4] == 0:
        return (*item[:3], (item[3][0], b""), 0)
    return item


@quick
@given(blobs=blobs)
def test_files(tmp_path: Path, blobs: list[Any]) -> None:
    path = tmp_path / "file"
    with Writer(path) as writer:
        for item in blobs:
            write(writer, item)
    reader = Reader()
    reader.parse_file(path)
    expected = [without_data_of_no_tensors(item) for item in blobs]
    found = read_back(reader)
    assert len(found) == len(expected)
    assert all(item in found for item in expected)
    use_contents(reader)
    for tensor in reader.tensors:
        array = tensor.data()
        if tensor.info.tensor_info.data_type is not DataType.STRING:
            assert array.tobytes() == tensor.raw()


@quick
@given(value=metadata)
def test_metadata(value: Metadata) -> None:
    where = Location("file", 0)
    assert decode(BlobType.METADATA, encode(value), where) == value


@quick
@given(data=st.binary(max_size=400))
def test_arbitrary_bytes(data: bytes) -> None:
    for prefix in (b"", b"\x89PGEF\r\n\x1a", b"\x89PGEF\r\n\x1a\1\0\0\0"):
        with pytest.raises(PopefError):
            Reader().parse_stream(io.BytesIO(prefix + data))


@quick
@given(value=metadata, data=st.data())
def test_arbitrary_descriptors(value: Metadata, data: st.DataObject) -> None:
    """Bytes replaced, taken out or put in: refused, or read as another value."""
    descriptor = encode(value)
    begin = data.draw(st.integers(0, len(descriptor)))
    end = data.draw(st.integers(begin, min(begin + 8, len(descriptor))))
    changed = descriptor[:begin] + data.draw(st.binary(max_size=8)) + descriptor[end:]
    where = Location("file", 0)
    try:
        decoded = decode(BlobType.METADATA, changed, where)
    except PopefError:
        return
    assert isinstance(decoded, Metadata)
    assert decode(BlobType.METADATA, encode(decoded), where) == decoded


@quick
@given(words=st.lists(st.binary(max_size=20), max_size=20))
def test_strings(words: list[bytes]) -> None:
    data = encode_strings(words)
    assert decode_strings(data, (len(words),)).tolist() == words
    array = np.array([*words, None], dtype=object)[:-1]
    assert encode_strings(array) == data
