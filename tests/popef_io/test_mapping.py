from __future__ import annotations

import gc
import io
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import FrameType

import numpy as np
import pytest

from popef_io import NotPopefError, Reader, Writer, load_model, mapping
from popef_io.mapping import map_file, read_stream
from tests.popef_io.containers import WEIGHT, write_small


def mappings(path: Path) -> int:
    """How often the file is mapped into this process."""
    return Path("/proc/self/maps").read_text().count(str(path))


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def run(code: str, path: Path) -> str:
    """What the program prints, which ends well and complains about nothing."""
    done = subprocess.run(
        [sys.executable, "-c", code, path],
        # Some may not write where coverage is counted.
        env={n: v for n, v in os.environ.items() if not n.startswith("COVERAGE")},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout


def test_map_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    source = map_file(path)
    assert source.name == str(path)
    assert bytes(source.view) == b"content"
    assert source.view.readonly
    assert (source.view.format, source.view.itemsize) == ("B", 1)
    assert repr(source) == f"<FileView {path} 7 bytes>"


def test_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    assert bytes(map_file(path).view) == b""
    with pytest.raises(NotPopefError, match="the file is empty"):
        Reader().parse_file(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        Reader().parse_file(tmp_path / "nowhere")


def test_file_that_may_not_be_read(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file")
    path.chmod(0)
    code = (
        "import os, sys, popef_io\n"
        "if os.geteuid() == 0:\n"  # root may read everything
        "    os.seteuid(65534)\n"
        "try:\n"
        "    popef_io.Reader().parse_file(sys.argv[1])\n"
        "except PermissionError as error:\n"
        "    print(error)\n"
    )
    assert str(path) in run(code, path)


def test_directory(tmp_path: Path) -> None:
    with pytest.raises(NotPopefError, match="got a directory"):
        Reader().parse_file(tmp_path)


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    with pytest.raises(NotPopefError, match="expected a regular file"):
        Reader().parse_file(path)


def test_device_and_socket(tmp_path: Path) -> None:
    with pytest.raises(NotPopefError, match="expected a regular file"):
        Reader().parse_file("/dev/null")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        with pytest.raises(OSError, match="socket"):
            Reader().parse_file(tmp_path / "socket")


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file")
    before = descriptors()
    models = [load_model(path) for _ in range(100)]
    assert descriptors() == before
    assert mappings(path) >= 1
    assert len(models) == 100


def test_mapping_goes_with_its_last_view(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file")
    with Reader() as reader:
        reader.parse_file(path)
        array = reader.tensors[0].data()
        part = array[1:, :2]
    del reader, array
    gc.collect()
    assert mappings(path) == 1
    np.testing.assert_array_equal(part, WEIGHT[1:, :2])
    del part
    gc.collect()
    assert mappings(path) == 0


def test_replacing_the_file_leaves_the_mapping(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file")
    model = load_model(path)
    with Writer(path) as writer:
        writer.create_opaque_blob("other").write(b"other")
    np.testing.assert_array_equal(model.tensors["w"].data(), WEIGHT)
    path.unlink()
    assert bytes(model.executable.raw()).startswith(b"executable ")


def test_views_cannot_be_written(tmp_path: Path) -> None:
    model = load_model(write_small(tmp_path / "file"))
    with pytest.raises(TypeError):
        model.tensors["w"].raw()[0] = 1
    array = model.tensors["w"].data()
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1
    with pytest.raises(ValueError, match="cannot set WRITEABLE"):
        array.flags.writeable = True


def test_views_held_at_exit(tmp_path: Path) -> None:
    """A program may end with views in its globals, and with threads that read them."""
    path = write_small(tmp_path / "file")
    code = (
        "import sys, atexit, popef_io\n"
        "model = popef_io.load_model(sys.argv[1])\n"
        "weight = model.tensors['w'].data()\n"
        "atexit.register(lambda: print(weight.sum()))\n"
    )
    assert run(code, path) == "15.0\n"


def test_file_without_memory_for_it(tmp_path: Path) -> None:
    """A file larger than the address space allows is an OSError, not a crash."""
    path = tmp_path / "sparse"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    code = (
        "import resource, sys, popef_io\n"
        "resource.setrlimit(resource.RLIMIT_AS, (1 << 33, 1 << 33))\n"
        "try:\n"
        "    popef_io.Reader().parse_file(sys.argv[1])\n"
        "except OSError as error:\n"
        "    print(error)\n"
    )
    assert "Cannot allocate memory" in run(code, path)


class Trickle(io.BytesIO):
    """A stream that gives a few bytes at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(100)


@pytest.mark.parametrize("size", [0, 1, 99, 100, 101, (1 << 20) + 7])
def test_read_stream(size: int) -> None:
    data = bytes(range(256)) * (size // 256 + 1)
    for stream in (io.BytesIO(data[:size]), Trickle(data[:size])):
        source = read_stream(stream, "name")
        assert bytes(source.view) == data[:size]
        assert source.view.readonly


def test_streams_are_aligned(tmp_path: Path) -> None:
    reader = Reader()
    with write_small(tmp_path / "file").open("rb") as file:
        reader.parse_stream(file)
    assert "<stream>" in repr(reader)
    array = reader.tensors[0].data()
    assert array.ctypes.data % 64 == 0
    np.testing.assert_array_equal(array, WEIGHT)


def test_a_detached_file_that_is_cut_short_ends_nobody(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file")
    code = (
        "import os, sys, popef_io\n"
        "model = popef_io.load_model(sys.argv[1], detached=True)\n"
        "before = model.tensors['w'].data()\n"
        "os.truncate(sys.argv[1], 0)\n"
        "print(before.sum())\n"
        "try:\n"
        "    model.tensors['w'].data()\n"
        "except popef_io.CorruptError as error:\n"
        "    print('was truncated' in str(error))\n"
        "try:\n"
        "    model.sources[0].open()\n"
        "except OSError as error:\n"
        "    print(error.strerror)\n"
    )
    assert run(code, path) == "15.0\nTrue\nBad address\n"


def test_what_became_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file")
    content = path.read_bytes()
    (source,) = load_model(path).sources
    path.unlink()
    os.mkfifo(path)
    descriptor = source.open()
    try:
        assert os.pread(descriptor, len(content) + 1, 0) == content
    finally:
        os.close(descriptor)


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("opening", ["map_file", "read"])
def test_an_interrupt_leaves_no_descriptor(tmp_path: Path, opening: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    source = map_file(path, detached=True)
    before = descriptors()
    left = calls = 0

    def interrupt(frame: FrameType, event: str, arg: object) -> None:
        # Python runs signal handlers when a function in C has returned.
        nonlocal left
        if event == "c_return" and frame.f_code.co_filename == mapping.__file__:
            left -= 1
            if not left:
                raise KeyboardInterrupt

    while left <= 0:  # until an interrupt comes too late
        calls += 1
        left = calls
        try:
            sys.setprofile(interrupt)
            map_file(path) if opening == "map_file" else source.read(0, 7)
        except KeyboardInterrupt:
            continue
        finally:
            sys.setprofile(None)
    assert calls > 3
    assert descriptors() == before
