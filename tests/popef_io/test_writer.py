"""Writing files: all kinds of blobs, whole at the end or not there at all.

Covers: popef_io/draft.py.
"""

from __future__ import annotations

import gc
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from popef_io import (
    CorruptError,
    DuplicateBlobError,
    InvalidValueError,
    LimitError,
    Metadata,
    Reader,
    TensorDataInfo,
    Writer,
    WriterStateError,
)
from popef_io.draft import WriterState
from popef_io.layout import MAX_BLOBS
from tests.popef_io.containers import (
    OPAQUE,
    UNKNOWN,
    info,
    pack,
    parse,
    raw_blob,
    raw_file,
    small_metadata,
    write_small,
)


def names(path: Path) -> list[str]:
    reader = Reader()
    reader.parse_file(path)
    reader.verify()
    return [blob.name or "-" for blob in reader.blobs]


def write_opaque(writer: Writer, *blob_names: str) -> None:
    for name in blob_names:
        writer.create_opaque_blob(name).write(name.encode())


def test_file_appears_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with Writer(path) as writer:
        write_opaque(writer, "a", "b")
        assert not path.exists()
        assert len(os.listdir(tmp_path)) == 1
        assert repr(writer) == f"<Writer {path} open 1 blobs>"
    assert names(path) == ["a", "b"]
    assert os.listdir(tmp_path) == ["file"]
    assert repr(writer) == f"<Writer {path} closed 2 blobs>"


def test_same_blobs_same_bytes(tmp_path: Path) -> None:
    first = write_small(tmp_path / "first").read_bytes()
    assert write_small(tmp_path / "second").read_bytes() == first


def test_old_file_stays_until_then(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    writer = Writer(path)
    write_opaque(writer, "a")
    assert path.read_bytes() == b"old"
    writer.close()
    assert names(path) == ["a"]


@pytest.mark.parametrize("old", [None, b"old"])
def test_an_error_leaves_nothing(tmp_path: Path, old: bytes | None) -> None:
    path = tmp_path / "file"
    if old:
        path.write_bytes(old)

    def fail() -> None:
        with Writer(path) as writer:
            write_opaque(writer, "a")
            with writer.create_executable("net") as blob:
                blob.write(bytes(1 << 20))
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert os.listdir(tmp_path) == (["file"] if old else [])
    assert not old or path.read_bytes() == old


def test_discard(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        blob = writer.create_opaque_blob("a")
        blob.write(b"x")
        writer.discard()
        writer.discard()
        assert writer.state is WriterState.DISCARDED
        with pytest.raises(WriterStateError, match="OPAQUE 'a' is discarded"):
            blob.write(b"x")
        with pytest.raises(WriterStateError, match="the writer is discarded"):
            writer.close()
    assert os.listdir(tmp_path) == []


def test_refuses_calls_out_of_order(tmp_path: Path) -> None:
    reader = Reader()
    parse(reader, raw_file(raw_blob(UNKNOWN, b"")))
    writer = Writer(tmp_path / "file")
    first = writer.create_opaque_blob("a")
    first.write(b"x")
    second = writer.create_opaque_blob("b")
    with pytest.raises(WriterStateError, match="OPAQUE 'a' is closed"):
        first.write(b"y")
    first.close()
    second.write(b"y")
    writer.write(small_metadata())
    with pytest.raises(WriterStateError, match="OPAQUE 'b' is closed"):
        second.write(b"z")
    writer.close()
    writer.close()
    for call in (
        lambda: writer.write(small_metadata("other")),
        lambda: writer.create_executable("net"),
        lambda: writer.create_opaque_blob("c"),
        lambda: writer.create_feeds([]),
        lambda: writer.copy(reader.blobs[0]),
    ):
        with pytest.raises(WriterStateError, match="the writer is closed"):
            call()
    assert names(tmp_path / "file") == ["a", "b", "net"]


def test_needs_a_blob(tmp_path: Path) -> None:
    with (
        pytest.raises(WriterStateError, match="at least one blob"),
        Writer(tmp_path / "file"),
    ):
        pass
    assert os.listdir(tmp_path) == []


def test_incomplete_blob(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "file")
    blob = writer.create_tensor_data(TensorDataInfo("t", info(2)))
    blob.write(bytes(7))
    message = "DATA_TENSOR 't' .*got 7 bytes, expected 8"
    with pytest.raises(WriterStateError, match=message):
        writer.create_opaque_blob("a")
    blob.write(b"\0")
    write_opaque(writer, "a")
    writer.create_tensor_data(TensorDataInfo("u", info(2)))
    with pytest.raises(WriterStateError, match=r"'u' .*got 0 bytes, expected 8"):
        writer.close()
    assert writer.state is WriterState.DISCARDED
    assert os.listdir(tmp_path) == []


def test_a_failed_blob_can_be_left_out(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        write_opaque(writer, "a")
        blob = writer.create_opaque_blob("b")
        blob.write(bytes(1 << 20))
        with pytest.raises(InvalidValueError), blob:
            blob.write("no bytes")  # type: ignore[arg-type]
        write_opaque(writer, "b")
    assert names(tmp_path / "file") == ["a", "b"]
    assert (tmp_path / "file").stat().st_size == 2 * 192


def test_refuses_what_a_reader_would(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        write_opaque(writer, "a")
        with pytest.raises(DuplicateBlobError, match="OPAQUE blob 'a' exists already"):
            writer.create_opaque_blob("a")
        with pytest.raises(InvalidValueError, match="must not be empty"):
            writer.create_executable("")
        with pytest.raises(LimitError, match="num_ipus"):
            writer.write(Metadata("net", num_ipus=1 << 40))
        writer.write(Metadata("net"))
        with pytest.raises(DuplicateBlobError, match="METADATA blob 'net'"):
            writer.write(Metadata("net"))
        writer.create_opaque_blob("a", "net")
        writer.create_executable("a")
    assert names(tmp_path / "file") == ["a", "net", "a", "a"]


def test_path_that_must_not_be_replaced(tmp_path: Path) -> None:
    with pytest.raises(InvalidValueError, match="is not a regular file"):
        Writer(tmp_path)
    with pytest.raises(InvalidValueError, match="is not a regular file"):
        Writer("/dev/null")
    with pytest.raises(FileNotFoundError):
        Writer(tmp_path / "nowhere" / "file")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_follows_links_and_keeps_permissions(tmp_path: Path) -> None:
    path = tmp_path / "real" / "file"
    path.parent.mkdir()
    path.touch(0o640)
    link = tmp_path / "link"
    link.symlink_to(path)
    with Writer(link) as writer:
        write_opaque(writer, "a")
    assert link.is_symlink()
    assert names(path) == ["a"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


def test_new_file_has_usual_permissions(tmp_path: Path) -> None:
    mask = os.umask(0o027)
    try:
        with Writer(tmp_path / "file") as writer:
            write_opaque(writer, "a")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o640


def test_longest_file_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 255)
    with Writer(path) as writer:
        write_opaque(writer, "a")
    assert names(path) == ["a"]


def test_dropped_writer_leaves_nothing(tmp_path: Path) -> None:
    write_opaque(Writer(tmp_path / "file"), "a", "b")
    gc.collect()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("end", ["sys.exit(1)", "raise ValueError", "pass"])
def test_nothing_is_left_at_exit(tmp_path: Path, end: str) -> None:
    code = (
        "import sys, popef_io\n"
        "writer = popef_io.Writer(sys.argv[1])\n"
        "blob = writer.create_opaque_blob('a')\n"
        "blob.write(b'x')\n"
        f"{end}\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "file")]
    subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert os.listdir(tmp_path) == []


def test_full_disk(tmp_path: Path) -> None:
    """The error is the system's and names the file, and nothing is left."""
    path = tmp_path / "file"
    code = (
        "import resource, signal, sys, popef_io\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "writer = popef_io.Writer(sys.argv[1])\n"
        "writer.create_opaque_blob('a').write(b'x')\n"
        "blob = writer.create_executable('net')\n"
        "for call in (lambda: blob.write(bytes(200_000)), blob.close, writer.close):\n"
        "    try:\n"
        "        call()\n"
        "    except (OSError, popef_io.PopefError) as error:\n"
        "        print(type(error).__name__, error)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        f"OSError [Errno 27] File too large: '{path}'",
        "WriterStateError cannot write: POPLAR_EXECUTABLE 'net' is failed",
        "WriterStateError cannot write: POPLAR_EXECUTABLE 'net' is failed",
    ]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "call",
    ["popef_io.FileWriter(path)", "other.copy(reader.blobs[0])", "fill(other).close()"],
)
def test_full_disk_while(tmp_path: Path, call: str) -> None:
    """Appending, copying, and finishing a blob: the files that are there stay."""
    path = tmp_path / "file"
    with Writer(path) as writer:
        writer.create_opaque_blob("a").write(bytes(200_000))
    before = path.read_bytes()
    code = (
        "import resource, signal, sys, popef_io\n"
        "path = sys.argv[1]\n"
        "reader = popef_io.Reader()\n"
        "reader.parse_file(path)\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "other = popef_io.Writer(path)\n"
        "def fill(writer):\n"
        "    blob = writer.create_opaque_blob('b')\n"
        "    blob.write(bytes(99_999 - 128))\n"  # the zeros behind do not fit
        "    return blob\n"
        "try:\n"
        f"    {call}\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == f"[Errno 27] File too large: '{path}'\n"
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["file"]


def test_copy(tmp_path: Path) -> None:
    source = write_small(tmp_path / "source", unknown=True)
    reader = Reader()
    reader.parse_file(source)
    with Writer(tmp_path / "copy") as writer:
        for blob in reader.blobs:
            writer.copy(blob)
    assert (tmp_path / "copy").read_bytes() == source.read_bytes()
    with Writer(tmp_path / "turned") as writer:
        for blob in reversed(reader.blobs):
            writer.copy(blob)
        with pytest.raises(DuplicateBlobError, match="DATA_TENSOR blob 'w'"):
            writer.copy(reader.tensors[0].blob)
    assert names(tmp_path / "turned") == list(reversed(names(source)))


def test_copy_of_unknown_blobs_keeps_them_whole(tmp_path: Path) -> None:
    unknown = raw_blob(UNKNOWN, b"\xc1 later", bytes(range(256)), flags=0xF0)
    reader = Reader()
    parse(reader, raw_file(unknown, unknown))
    with Writer(tmp_path / "file") as writer:
        for item in reader.unknown_blobs:
            writer.copy(item.blob)
    assert (tmp_path / "file").read_bytes() == raw_file(unknown, unknown)


def test_copy_of_a_damaged_blob(tmp_path: Path) -> None:
    reader = Reader()
    descriptor = pack({"name": "o", "executable": ""})
    parse(reader, raw_file(raw_blob(OPAQUE, descriptor, b"x", payload_crc=1)))
    with Writer(tmp_path / "file") as writer:
        write_opaque(writer, "a")
        with pytest.raises(CorruptError, match="OPAQUE 'o'"):
            writer.copy(reader.blobs[0])
    assert names(tmp_path / "file") == ["a"]


def test_number_of_blobs(tmp_path: Path) -> None:
    """Copies count as well; the largest file itself would take too long to write."""
    reader = Reader()
    parse(reader, raw_file(raw_blob(UNKNOWN, b"")))
    blob = reader.blobs[0]
    writer = Writer(tmp_path / "file")
    for _ in range(3):
        writer.copy(blob)
    with pytest.raises(LimitError, match="number of blobs"):
        writer._check_new(small_metadata(), MAX_BLOBS - 2)
    writer.discard()
