"""Reading files: the blobs that are there, in order, and what is no container.

Covers: popef_io/blob.py.
"""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from popef_io import (
    CorruptError,
    DuplicateBlobError,
    NotPopefError,
    Reader,
    TensorDataInfo,
    Writer,
)
from tests.popef_io.containers import (
    METADATA,
    OPAQUE,
    TENSOR,
    UNKNOWN,
    info,
    metadata_fields,
    pack,
    parse,
    raw_blob,
    raw_file,
    small_metadata,
    tensor_fields,
    write_small,
)


def opaque(name: str, executable: str = "") -> bytes:
    return raw_blob(OPAQUE, pack({"name": name, "executable": executable}), b"x")


def test_reads_what_was_written(tmp_path: Path) -> None:
    with Reader() as reader:
        reader.parse_file(write_small(tmp_path / "file"))
        assert reader.metadata == (small_metadata(),)
        assert [item.name for item in reader.executables] == ["net"]
        assert [item.name for item in reader.tensors] == ["w", "labels"]
        assert [item.name for item in reader.feeds] == ["x"]
        assert [item.name for item in reader.opaque_blobs] == ["notes"]
        assert reader.unknown_blobs == ()
        assert len(reader.blobs) == 6
        assert reader.tensors[0] is reader.tensors[0]
        assert repr(reader) == f"<Reader 6 blobs of {tmp_path / 'file'}>"


def test_nothing_read() -> None:
    reader = Reader()
    assert not any((reader.blobs, reader.metadata, reader.executables, reader.tensors))
    assert not any((reader.feeds, reader.opaque_blobs, reader.unknown_blobs))
    assert repr(reader) == "<Reader 0 blobs of nothing>"


def test_blobs_in_any_order() -> None:
    blobs = [
        opaque("o"),
        raw_blob(TENSOR, pack(tensor_fields()), bytes(8)),
        raw_blob(METADATA, pack(metadata_fields())),
        raw_blob(0, pack({"name": "net"}), b"code"),
    ]
    for turn in range(len(blobs)):
        reader = Reader()
        parse(reader, raw_file(*blobs[turn:], *blobs[:turn]))
        assert reader.metadata[0].executable == reader.executables[0].name == "net"
        assert reader.tensors[0].name == "t"
        assert reader.opaque_blobs[0].name == "o"


def test_files_add_up(tmp_path: Path) -> None:
    reader = Reader()
    for index in range(3):
        path = tmp_path / f"{index}.popef"
        with Writer(path) as writer:
            info_ = TensorDataInfo(f"t{index}", info(2))
            writer.create_tensor_data(info_).write(bytes(8))
        reader.parse_file(str(path))
    assert [tensor.name for tensor in reader.tensors] == ["t0", "t1", "t2"]
    assert [blob.index for blob in reader.blobs] == [0, 0, 0]


def test_a_bad_file_changes_nothing() -> None:
    reader = Reader()
    parse(reader, raw_file(opaque("a")))
    with pytest.raises(CorruptError):
        parse(reader, raw_file(opaque("b"), opaque("c"))[:-1] + b"x")
    with pytest.raises(NotPopefError):
        parse(reader, b"")
    with pytest.raises(DuplicateBlobError):
        parse(reader, raw_file(opaque("b"), opaque("a")))
    assert [item.name for item in reader.opaque_blobs] == ["a"]
    parse(reader, raw_file(opaque("b")))
    assert [item.name for item in reader.opaque_blobs] == ["a", "b"]


def test_doubles_over_several_files_name_both_places(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(raw_file(opaque("z"), opaque("a")))
    second.write_bytes(raw_file(opaque("a")))
    reader = Reader()
    reader.parse_file(first)
    message = (
        r"second, blob 0 OPAQUE 'a', .* exists already: .*first, blob 1 OPAQUE 'a'"
    )
    with pytest.raises(DuplicateBlobError, match=message) as caught:
        reader.parse_file(second)
    assert (caught.value.kind, caught.value.name) == ("OPAQUE", "a")


def test_same_names_of_different_owners() -> None:
    reader = Reader()
    parse(reader, raw_file(opaque("a"), opaque("a", "x"), opaque("a", "y")))
    assert [item.executable for item in reader.opaque_blobs] == ["", "x", "y"]


def test_unknown_types_are_kept() -> None:
    reader = Reader()
    # Flags, a descriptor that is no msgpack, the same twice: all theirs to decide.
    unknown = raw_blob(UNKNOWN, b"\xc1", b"payload", flags=0xFFFFFFFC)
    parse(reader, raw_file(unknown, opaque("a"), unknown))
    assert [bytes(item.raw()) for item in reader.unknown_blobs] == [b"payload"] * 2
    assert len(reader.opaque_blobs) == 1


def test_unknown_types_are_checked_like_others() -> None:
    whole = raw_file(raw_blob(UNKNOWN, b"later", b"payload"))
    with pytest.raises(CorruptError, match=r"blob 0 type 777, .*descriptor"):
        parse(Reader(), whole.replace(b"later", b"laser"))
    reader = Reader()
    parse(reader, whole.replace(b"payload", b"PAYLOAD"))
    with pytest.raises(CorruptError, match="checksum of the payload"):
        reader.verify()


def test_close_forgets_and_contents_stay(tmp_path: Path) -> None:
    reader = Reader()
    reader.parse_file(write_small(tmp_path / "file"))
    tensor = reader.tensors[0]
    reader.close()
    assert reader.blobs == ()
    assert tensor.data().shape == (2, 3)
    reader.parse_file(tmp_path / "file")
    assert len(reader.blobs) == 6


def test_payloads_are_not_read_before_they_are_used() -> None:
    reader = Reader()
    parse(
        reader,
        raw_file(
            raw_blob(OPAQUE, pack({"name": "o", "executable": ""}), b"x", payload_crc=1)
        ),
    )
    for _ in range(2):
        with pytest.raises(CorruptError, match="blob 0 OPAQUE 'o', offset 0"):
            reader.opaque_blobs[0].raw()


def test_contents_are_for_several_threads(tmp_path: Path) -> None:
    reader = Reader()
    reader.parse_file(write_small(tmp_path / "file"))
    sums: list[float] = []

    def work() -> None:
        for _ in range(50):
            sums.append(float(reader.tensors[0].data().sum()))
            assert bytes(reader.executables[0].raw()[:10]) == b"executable"

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == [15.0] * 200
