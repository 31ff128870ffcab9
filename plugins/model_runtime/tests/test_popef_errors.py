"""`popef`: what goes wrong is a RuntimeError, as of a module written in C++.

TypeErrors, ValueErrors and OSErrors are what Python calls them as well.
"""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popef


def garbage(folder: Path) -> Path:
    path = folder / "garbage.popef"
    path.write_text("This is not cache")
    return path


def blob(folder: Path) -> popef.BlobWriter:
    return popef.Writer(folder / "file.popef").createOpaqueBlob("name", "")


def closed(folder: Path) -> popef.BlobWriter:
    made = blob(folder)
    made.write(b"1", 1)
    made.close()
    return made


def tensor(folder: Path) -> popef.BlobWriter:
    info = popef.TensorDataInfo()
    info.setName("w")
    info.tensorInfo().setShape([2])
    info.tensorInfo().setDataType(popef.DataType.F32)
    return popef.Writer(folder / "file.popef").createTensorData(info)


def writes(folder: Path, change: Callable[[Any], Any]) -> None:
    metadata = popef.Metadata()
    metadata.setExecutable("model")
    change(metadata)
    popef.Writer(folder / "file.popef").writeMetadata(metadata)


def empty_model(_: Path) -> Any:
    return popef.ModelBuilder(popef.Reader()).createModel()


Call = Callable[[Path], Any]
FAULTS: list[tuple[Call, type[Exception], str]] = [
    (
        lambda p: popef.Reader().parseFile(p / "none.popef"),
        FileNotFoundError,
        r"No such file or directory: '.*none\.popef'",
    ),
    (lambda p: popef.Reader().parseFile(p), RuntimeError, "got a directory"),
    (lambda p: popef.Reader().parseFile("a\0b"), ValueError, "got a zero byte in"),
    (lambda p: popef.Writer(b"a\0b"), ValueError, "got a zero byte in"),
    (
        lambda p: popef.Writer(p / "x").createFeeds(3),  # type: ignore[arg-type]
        TypeError,
        "expected a list of FeedDataInfo, got int: 3",
    ),
    (
        lambda p: writes(p, lambda m: m.anchors().append("x")),
        TypeError,
        "expected Anchor, got str: 'x'",
    ),
    (
        lambda p: writes(p, lambda m: m.engineOptions().append(3)),
        TypeError,
        "expected Option, got int: 3",
    ),
    (
        lambda p: writes(p, lambda m: m.programFlow().main().append("x")),
        RuntimeError,
        "program_flow",
    ),
    (lambda p: popef.Reader().parseFile(garbage(p)), RuntimeError, "garbage"),
    (
        lambda p: popef.Reader().parseFile(3),  # type: ignore[arg-type]
        TypeError,
        "expected the path of a file, got int: 3",
    ),
    (
        lambda p: popef.Reader().parseStream(io.StringIO()),  # type: ignore[arg-type]
        TypeError,
        "expected a stream of bytes, got StringIO",
    ),
    (
        lambda p: popef.Reader().parseStream(b"x"),  # type: ignore[arg-type]
        TypeError,
        "expected a stream of bytes, got bytes",
    ),
    (
        lambda p: popef.Writer("/nosuch/x.popef"),
        FileNotFoundError,
        r"directory: '/nosuch/x\.popef'$",
    ),
    (
        lambda p: popef.FileWriter("/nosuch/x.popef"),
        FileNotFoundError,
        r"directory: '/nosuch/x\.popef'$",
    ),
    (lambda p: popef.Writer(p), RuntimeError, "is not a regular file"),
    (lambda p: popef.Writer(p / "x").close(), RuntimeError, "at least one blob"),
    (lambda p: closed(p).write(b"2", 1), RuntimeError, "closed"),
    (lambda p: blob(p).write(b"12", 3), ValueError, "size is 3, .* have 2 bytes"),
    (lambda p: blob(p).write(b"12", -1), ValueError, "size is -1"),
    (
        lambda p: blob(p).write(3, 1),  # type: ignore[arg-type]
        TypeError,
        "expected bytes, a string or an array of numbers, got int: 3",
    ),
    (
        lambda p: blob(p).write(np.array([object()])),
        TypeError,
        "an array of objects has no bytes",
    ),
    (lambda p: blob(p).write(b"1", "1"), TypeError, "whole number"),  # type: ignore[arg-type]
    (
        lambda p: tensor(p).write(b"123456789", 9),
        RuntimeError,
        "got 9 bytes, expected 8",
    ),
    (lambda p: tensor(p).close(), RuntimeError, "got 0 bytes, expected 8"),
    (empty_model, RuntimeError, "no executable"),
    (lambda p: popef.Option(b"\xff"), ValueError, "in UTF-8"),
    (
        lambda p: popef.Anchor().setName(None),  # type: ignore[arg-type]
        TypeError,
        "expected a string, got NoneType",
    ),
    (
        lambda p: popef.Anchor().setPrograms([1.5]),  # type: ignore[list-item]
        TypeError,
        "expected a whole number, got float: 1.5",
    ),
    (
        lambda p: pickle.dumps(popef.Reader()),
        TypeError,
        "cannot pickle or copy Reader objects: make one in each process",
    ),
    (
        lambda p: pickle.dumps(popef.Writer(p / "x")),
        TypeError,
        "cannot pickle or copy Writer objects",
    ),
    (lambda p: copy.copy(blob(p)), TypeError, "cannot pickle or copy BlobWriter"),
]


@pytest.mark.parametrize(("call", "kind", "says"), FAULTS)
def test_every_error_is_a_runtime_error(
    call: Call, kind: type[Exception], says: str, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=says) as caught:
        call(tmp_path)
    assert isinstance(caught.value, kind)


def test_text_may_be_bytes(tmp_path: Path) -> None:
    """As the original's strings are given."""
    path = bytes(tmp_path / "file.popef")
    anchor, metadata = popef.Anchor(), popef.Metadata()
    anchor.setName(b"x")
    anchor.setHandle("h2d_ä".encode())
    anchor.setType(popef.TensorType.INPUT)
    metadata.setExecutable(b"model")
    metadata.setAnchors([anchor])
    metadata.setProgramsMap({0: b"load"})
    metadata.setEngineOptions([popef.Option(b"a", b"b")])
    writer = popef.Writer(path)
    writer.writeMetadata(metadata)
    writer.createExecutable(b"model", False).write("code", 4)
    writer.createOpaqueBlob(b"notes", b"model").write("größer", 3)
    writer.close()
    reader = popef.Reader()
    reader.parseFile(path)
    assert reader.metadata()[0] == metadata
    assert reader.metadata()[0].anchors()[0].handle() == "h2d_ä"
    model = popef.ModelBuilder(reader).createModel(b"model")
    assert model.executable.executable() == b"code"
    assert model.opaqueBlobs[0].data() == b"gr\xc3"


def test_memory_of_any_layout_is_written_row_by_row(tmp_path: Path) -> None:
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen = rows.copy()
    frozen.flags.writeable = False
    layouts: list[Any] = [rows.T, rows[:, ::2], np.asfortranarray(rows), rows[::-1]]
    layouts += [rows[:0], frozen, memoryview(rows.tobytes())[::2]]
    writer = popef.Writer(tmp_path / "file.popef")
    for number, data in enumerate(layouts):
        writer.createOpaqueBlob(f"{number}").write(data)
        writer.createOpaqueBlob(f"{number} with its size").write(data, data.nbytes)
    writer.close()
    reader = popef.Reader()
    reader.parseFile(tmp_path / "file.popef")
    found = {item.name: item.data() for item in reader.opaqueBlobs()}
    for number, data in enumerate(layouts):
        assert found[f"{number}"] == found[f"{number} with its size"] == data.tobytes()
