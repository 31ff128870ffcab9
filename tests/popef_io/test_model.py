from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from popef_io import (
    Anchor,
    CorruptError,
    DataType,
    FeedDataInfo,
    InvalidValueError,
    Metadata,
    MissingBlobError,
    Model,
    ModelBuilder,
    ProgramFlow,
    Reader,
    TensorDataInfo,
    TensorInfo,
    TensorType,
    Writer,
    load_model,
)
from tests.popef_io.containers import FRAMES, WEIGHT, info, small_metadata, write_small


def write_model(writer: Writer, name: str, weight: float, owner: str) -> None:
    writer.create_executable(name).write(name.encode())
    writer.write(small_metadata(name))
    tensor = TensorDataInfo("w", info(2, 3), owner)
    writer.create_tensor_data(tensor).write(np.full((2, 3), weight, np.float32))


def model_with_data(
    tmp_path: Path, anchor: TensorInfo, data: TensorInfo, *, feed: bool = False
) -> Model:
    path = tmp_path / "file"
    with Writer(path) as writer:
        writer.create_executable("net")
        anchors = (Anchor("x", "h2d_x", anchor, TensorType.INPUT, (0,)),)
        writer.write(Metadata("net", anchors))
        size = data.size_in_bytes
        if feed:
            writer.create_feed_data(FeedDataInfo("x", data, 2)).write(bytes(2 * size))
        else:
            writer.create_tensor_data(TensorDataInfo("x", data)).write(bytes(size))
    return load_model(path)


def test_joins_what_belongs_together(tmp_path: Path) -> None:
    model = load_model(write_small(tmp_path / "file"))
    assert model.name == model.executable.name == "net"
    assert model.metadata == small_metadata()
    assert model.anchors == model.metadata.anchors
    assert [anchor.name for anchor in model.inputs] == ["x"]
    assert [anchor.name for anchor in model.outputs] == ["y"]
    assert list(model.tensors) == ["w"]  # `labels` has no anchor
    np.testing.assert_array_equal(model.tensors["w"].data(), WEIGHT)
    np.testing.assert_array_equal(model.feeds["x"].data(), FRAMES)
    assert bytes(model.opaque_blobs["notes"].raw()) == b"anything"
    assert repr(model) == "<Model 'net' inputs=['x'] outputs=['y'] tensors=1>"


def test_over_several_files(tmp_path: Path) -> None:
    whole = Reader()
    whole.parse_file(write_small(tmp_path / "whole"))
    paths = []
    for blob in whole.blobs:
        paths.append(tmp_path / f"{blob.index}.popef")
        with Writer(paths[-1]) as writer:
            writer.copy(blob)
    for files in (paths, paths[::-1]):
        model = load_model(*files)
        assert list(model.tensors) == ["w"]
        assert list(model.feeds) == ["x"]
        assert list(model.opaque_blobs) == ["notes"]


def test_several_models_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    with Writer(path) as writer:
        write_model(writer, "one", 1, "one")
        write_model(writer, "two", 2, "two")
        write_model(writer, "three", 3, "")
        writer.create_opaque_blob("notes").write(b"all")
        writer.create_opaque_blob("notes", "two").write(b"two")
    for name, weight, notes in (
        ("one", 1, b"all"),
        ("two", 2, b"two"),
        ("three", 3, b"all"),
    ):
        model = load_model(path, executable_name=name)
        assert model.executable.raw() == name.encode()
        assert (model.tensors["w"].data() == weight).all()
        assert model.opaque_blobs["notes"].raw() == notes
    with pytest.raises(InvalidValueError, match="name one of 'one', 'two', 'three'"):
        load_model(path)
    with pytest.raises(
        MissingBlobError, match="no executable 'four'; the executables are 'one'"
    ):
        load_model(path, executable_name="four")


def test_missing_executable(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        writer.write(small_metadata())
    with pytest.raises(
        MissingBlobError, match="file: there is no executable"
    ) as caught:
        load_model(tmp_path / "file")
    assert (caught.value.kind, caught.value.name) == ("POPLAR_EXECUTABLE", "")
    with pytest.raises(MissingBlobError, match="no file has been read"):
        ModelBuilder(Reader()).create_model("net")


def test_missing_metadata(tmp_path: Path) -> None:
    with Writer(tmp_path / "file") as writer:
        writer.create_executable("net")
        writer.write(small_metadata("other"))
    with pytest.raises(MissingBlobError, match=r"no metadata for .* 'net'") as caught:
        load_model(tmp_path / "file")
    assert (caught.value.kind, caught.value.name) == ("METADATA", "net")


@pytest.mark.parametrize("feed", [False, True])
@pytest.mark.parametrize("shape", [None, (-1, 3), (2, -1), (-1, -1), (2, 3)])
def test_data_fit_their_anchor(
    tmp_path: Path, shape: tuple[int, ...] | None, feed: bool
) -> None:
    anchor = TensorInfo(shape, DataType.F32)
    model = model_with_data(tmp_path, anchor, info(2, 3), feed=feed)
    assert "x" in (model.feeds if feed else model.tensors)


@pytest.mark.parametrize("feed", [False, True])
@pytest.mark.parametrize(
    "data",
    [info(), info(3), info(2, 4), info(2, 3, 1), info(2, 3, data_type=DataType.S32)],
    ids=str,
)
def test_data_that_do_not_fit(tmp_path: Path, data: TensorInfo, feed: bool) -> None:
    kind = "DATA_FEED" if feed else "DATA_TENSOR"
    message = rf"blob 2 {kind} 'x', .*its anchor expects F32\[\?, 3\]"
    with pytest.raises(CorruptError, match=message):
        model_with_data(tmp_path, info(-1, 3), data, feed=feed)


def test_data_of_an_anchor_in_both_directions(tmp_path: Path) -> None:
    """Weights that can be read back: the data belong to the way in."""
    with Writer(tmp_path / "file") as writer:
        writer.create_executable("net")
        anchors = (
            Anchor("w", "h2d_w", info(2), TensorType.INPUT, (0,)),
            Anchor("w", "d2h_w", info(4, 2), TensorType.OUTPUT, (2,), True),
            Anchor("y", "d2h_y", info(2), TensorType.OUTPUT, (1,)),
        )
        writer.write(Metadata("net", anchors, ProgramFlow((0,), (1,), (2,))))
        writer.create_tensor_data(TensorDataInfo("w", info(2))).write(bytes(8))
        writer.create_tensor_data(TensorDataInfo("y", info(2))).write(bytes(8))
    model = load_model(tmp_path / "file")
    assert list(model.tensors) == ["w"]
    assert (model.inputs, [anchor.name for anchor in model.outputs]) == ((), ["y"])


def test_stays_valid_without_its_reader(tmp_path: Path) -> None:
    reader = Reader()
    reader.parse_file(write_small(tmp_path / "file"))
    model = ModelBuilder(reader).create_model()
    reader.close()
    del reader
    np.testing.assert_array_equal(model.tensors["w"].data(), WEIGHT)
