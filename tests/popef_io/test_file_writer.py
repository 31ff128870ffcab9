"""Appending to containers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from popef_io import (
    DuplicateBlobError,
    FileWriter,
    NotPopefError,
    Reader,
    TensorDataInfo,
    Writer,
)
from tests.popef_io.containers import info, write_small
from tests.popef_io.test_writer import names, write_opaque


def test_begins_a_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for _ in range(2):
        with FileWriter(path) as writer:
            write_opaque(writer, "a")
        assert names(path) == ["a"]
        path.write_bytes(b"")  # an empty file is one that is not begun


def test_appends(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file")
    before = names(path)
    for index in range(3):
        with FileWriter(path) as writer:
            assert repr(writer).startswith("<FileWriter ")
            write_opaque(writer, f"late {index}")
    assert names(path) == [*before, "late 0", "late 1", "late 2"]


def test_gives_the_same_file_as_writing_at_once(tmp_path: Path) -> None:
    with Writer(tmp_path / "once") as writer:
        write_opaque(writer, "a", "b", "c")
    for name in ("a", "b", "c"):
        with FileWriter(tmp_path / "turns") as writer:
            write_opaque(writer, name)
    once, turns = (tmp_path / name for name in ("once", "turns"))
    assert once.read_bytes() == turns.read_bytes()


def test_leaves_the_file_alone_without_a_blob(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file")
    inode = path.stat().st_ino
    with FileWriter(path):
        pass
    assert path.stat().st_ino == inode
    assert os.listdir(tmp_path) == ["file"]


def test_leaves_the_file_alone_after_an_error(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file")
    before = path.read_bytes()
    writer = FileWriter(path)
    write_opaque(writer, "a")
    with pytest.raises(DuplicateBlobError, match="DATA_TENSOR blob 'w'"):
        writer.create_tensor_data(TensorDataInfo("w", info(1)))
    writer.discard()
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["file"]


def test_does_not_disturb_readers(tmp_path: Path) -> None:
    path = write_small(tmp_path / "file")
    reader = Reader()
    reader.parse_file(path)
    with FileWriter(path) as writer:
        write_opaque(writer, "a")
    np.testing.assert_array_equal(reader.tensors[0].data()[0], [0, 1, 2])
    reader.verify()


@pytest.mark.parametrize("size", [1, 64, -64, -1])
def test_refuses_a_file_that_is_damaged(tmp_path: Path, size: int) -> None:
    path = write_small(tmp_path / "file")
    data = path.read_bytes()[:size]
    path.write_bytes(data)
    with pytest.raises(Exception, match="the file is truncated"):
        FileWriter(path)
    assert path.read_bytes() == data
    assert os.listdir(tmp_path) == ["file"]


def test_refuses_other_files(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"This is not cache")
    with pytest.raises(NotPopefError):
        FileWriter(path)
    assert path.read_bytes() == b"This is not cache"
