"""`popef`: what is written through it reads back through it."""

from __future__ import annotations

import gc
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import popef


def info_of(
    array: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> popef.TensorInfo:
    info = popef.TensorInfo()
    info.setShape(array.shape)
    info.setDataType(popef.DataType.F32)
    return info


def metadata_of(executable: str) -> popef.Metadata:
    """Metadata in which nothing has its default."""
    anchor = popef.Anchor()
    anchor.setName("input")
    anchor.setHandle("h2d_input")
    anchor.tensorInfo().setDataType(popef.DataType.F16)
    anchor.tensorInfo().shape().extend([2, 3])
    anchor.setType(popef.TensorType.INPUT)
    anchor.setPrograms([1])
    anchor.setIsPerReplica(True)
    metadata = popef.Metadata()
    metadata.setExecutable(executable)
    metadata.anchors().append(anchor)
    metadata.programFlow().setLoad([0])
    metadata.programFlow().main().append(1)
    metadata.programFlow().setSave([2, 3])
    metadata.setProgramsMap({0: "load", 1: "main", 2: "save", 3: "more"})
    metadata.setReplicationFactor(2)
    metadata.setNumIpus(4)
    metadata.setIpuVersion(21)
    metadata.setIsPOD(True)
    metadata.setNumProcesses(3)
    metadata.setIsInference(False)
    metadata.setEngineOptions([popef.Option("a", "b")])
    metadata.deviceOptions().append(popef.Option("c", "d"))
    metadata.setSeedHandle("seed")
    metadata.setDeviceIterations(5)
    return metadata


def test_metadata_comes_back(tmp_path: Path) -> None:
    path = str(tmp_path / "file.popef")
    written = metadata_of("model")
    writer = popef.Writer(path)
    writer.writeMetadata(written)
    writer.close()
    reader = popef.Reader()
    reader.parseFile(path)
    (metadata,) = reader.metadata()
    assert metadata == written
    assert metadata.executable() == "model"
    (anchor,) = metadata.anchors()
    assert anchor.name() == "input"
    assert anchor.handle() == "h2d_input"
    assert anchor.programs() == [1]
    assert anchor.type() is popef.TensorType.INPUT
    assert anchor.isPerReplica()
    assert anchor.tensorInfo().shape() == [2, 3]
    assert anchor.tensorInfo().numpyDType() == np.float16
    assert anchor.tensorInfo().sizeInBytes() == 12
    assert metadata.programFlow().load() == [0]
    assert metadata.programFlow().main() == [1]
    assert metadata.programFlow().save() == [2, 3]
    assert metadata.programsMap()[2] == "save"
    assert metadata.replicationFactor() == 2
    assert metadata.numIpus() == 4
    assert metadata.ipuVersion() == 21
    assert metadata.isPOD()
    assert metadata.numProcesses() == 3
    assert not metadata.isInference()
    assert metadata.engineOptions()[0].value() == "b"
    assert metadata.deviceOptions()[0].name() == "c"
    assert metadata.seedHandle() == "seed"
    assert metadata.deviceIterations() == 5


def test_numbers_of_numpy_are_written(tmp_path: Path) -> None:
    zero: Any = np.int64(0)
    one: Any = np.int64(1)
    two: Any = np.int64(2)
    no: Any = np.bool_(False)
    yes: Any = np.bool_(True)
    info = popef.TensorInfo()
    info.setShape(np.array([3, 4]))
    info.setDataType(popef.DataType.F32)
    anchor = popef.Anchor()
    anchor.setName("x")
    anchor.setHandle("h")
    anchor.setType(popef.TensorType.INPUT)
    anchor.setTensorInfo(info)
    anchor.setPrograms(np.array([1]))
    anchor.setIsPerReplica(no)
    flow = popef.ProgramFlow()
    flow.setLoad(np.array([0]))
    flow.setMain(np.array([1]))
    metadata = popef.Metadata()
    metadata.setExecutable("e")
    metadata.setAnchors((anchor,))
    metadata.setProgramFlow(flow)
    metadata.setProgramsMap({zero: "load", one: "main"})
    metadata.setNumIpus(two)
    metadata.setIsInference(yes)
    feed = popef.FeedDataInfo()
    feed.setName("x")
    feed.setTensorInfo(info)
    feed.setNumTensors(one)
    writer = popef.Writer(str(tmp_path / "np.popef"))
    writer.write(metadata)
    writer.createExecutable("e", False).write(b"content", 7)
    writer.createFeedData(feed).write(np.ones((1, 3, 4), np.float32), 48)
    writer.close()
    reader = popef.Reader()
    reader.parseFile(str(tmp_path / "np.popef"))
    assert reader.metadata()[0] == metadata
    assert reader.feeds()[0].data().shape == (1, 3, 4)


def test_defaults() -> None:
    anchor = popef.Anchor()
    assert (anchor.name(), anchor.handle(), anchor.programs()) == ("", "", [])
    assert anchor.type() is popef.TensorType.UNKNOWN
    assert anchor.tensorInfo() == popef.TensorInfo()
    assert popef.TensorInfo().shape() == []


@pytest.mark.parametrize("compress", [False, True])
def test_all_blobs_come_back_and_can_be_copied(tmp_path: Path, compress: bool) -> None:
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    feed = np.arange(12, dtype=np.float32).reshape(4, 3)
    tensor_info, feed_info = popef.TensorDataInfo(), popef.FeedDataInfo()
    tensor_info.setName("weights")
    tensor_info.setTensorInfo(info_of(tensor))
    feed_info.setName("data")
    feed_info.setTensorInfo(info_of(feed[0]))
    feed_info.setNumTensors(4)
    path = tmp_path / "first.popef"
    path.touch()  # as the one public client does
    writer = popef.Writer(str(path))
    blob = writer.createExecutable("executable", compress)
    blob.write(b"x" * 5000, 4000)
    blob.close()
    writer.createOpaqueBlob("opaque", "executable").write(b"some bytes", 10)
    writer.createTensorData(tensor_info).write(tensor.tobytes(), tensor.nbytes)
    blob = writer.createFeedData(feed_info)
    for row in feed:
        blob.write(row, row.nbytes)
    writer.writeMetadata(metadata_of("executable"))
    writer.close()

    source = path
    for target in ("second.popef", "third.popef"):
        reader = popef.Reader()
        reader.parseFile(str(source))
        source = tmp_path / target
        writer = popef.Writer(str(source))
        for executable in reader.executables():
            data = executable.executable()
            assert data == b"x" * 4000
            writer.createExecutable(executable.name, compress).write(data, len(data))
        for metadata in reader.metadata():
            writer.writeMetadata(metadata)
        for stored in reader.tensors():
            raw = stored.data().tobytes()
            assert len(raw) == stored.info.tensorInfo().sizeInBytes()
            assert stored.info.name() == "weights"
            writer.createTensorData(stored.info).write(raw, len(raw))
        for stored_feed in reader.feeds():
            np.testing.assert_array_equal(stored_feed.data(), feed)
            assert stored_feed.info.numTensors() == 4
            raw = stored_feed.data().tobytes()
            writer.createFeedData(stored_feed.info).write(raw, len(raw))
        for opaque in reader.opaqueBlobs():
            assert opaque.data() == b"some bytes"
            blob = writer.createOpaqueBlob(opaque.name, opaque.executable)
            blob.write(opaque.data(), len(opaque.data()))
        writer.close()
    reader = popef.Reader()
    reader.parseFile(str(source))
    np.testing.assert_array_equal(reader.tensors()[0].data(), tensor)
    assert reader.executables()[0].name == "executable"


def test_feeds_in_turns(tmp_path: Path) -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    infos = []
    for name in ("a", "b"):
        info = popef.FeedDataInfo()
        info.setName(name)
        info.setTensorInfo(info_of(rows[0]))
        info.setNumTensors(3)
        infos.append(info)
    writer = popef.Writer(str(tmp_path / "feeds.popef"))
    feeds = writer.createFeeds(infos)
    for row in rows:
        feeds.write("a", row, row.nbytes)
        feeds.write("b", -row)
    feeds.close()
    writer.close()
    reader = popef.Reader()
    reader.parseFile(str(tmp_path / "feeds.popef"))
    data = {feed.info.name(): feed.data() for feed in reader.feeds()}
    np.testing.assert_array_equal(data["a"], rows)
    np.testing.assert_array_equal(data["b"], -rows)


def test_appending(tmp_path: Path) -> None:
    path = str(tmp_path / "file.popef")
    writer = popef.Writer(path)
    writer.createOpaqueBlob("first", "").write(b"1", 1)
    writer.close()
    appender = popef.FileWriter(path, popef.FileWriter.Mode.APPEND)
    appender.createOpaqueBlob("second", "").write(b"2", 1)
    appender.close()
    reader = popef.Reader()
    reader.parseFile(path)
    found = {blob.name: blob.data() for blob in reader.opaqueBlobs()}
    assert found == {"first": b"1", "second": b"2"}


def test_a_forgotten_writer_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "file.popef"
    blob = popef.Writer(str(path)).createOpaqueBlob("name", "")
    gc.collect()
    blob.write(b"data", 4)  # the blob holds its writer
    assert not path.exists()
    del blob
    gc.collect()
    reader = popef.Reader()
    reader.parseFile(str(path))
    assert reader.opaqueBlobs()[0].data() == b"data"


def test_one_blob_at_a_time(tmp_path: Path) -> None:
    writer = popef.Writer(str(tmp_path / "file.popef"))
    first = writer.createOpaqueBlob("first", "")
    writer.createOpaqueBlob("second", "").write(b"2", 1)
    with pytest.raises(Exception, match="closed"):
        first.write(b"1", 1)
    with pytest.raises(ValueError, match="5"):
        writer.createOpaqueBlob("third", "").write(b"123", 5)
    writer.close()


def test_several_files_are_one_reader(tmp_path: Path, simple: str) -> None:
    path = tmp_path / "more.popef"
    writer = popef.Writer(str(path))
    writer.createOpaqueBlob("notes", "simple").write(b"text", 4)
    writer.close()
    reader = popef.Reader()
    reader.parseFile(simple)
    reader.parseStream(io.BytesIO(path.read_bytes()))
    model = popef.ModelBuilder(reader).createModel()
    assert model.executable.name == "simple"
    assert [blob.data() for blob in model.opaqueBlobs] == [b"text"]
    assert [tensor.info.name() for tensor in model.tensors] == ["weights"]
    names = [anchor.name() for anchor in model.metadata.anchors()]
    assert names == ["tensor_A", "tensor_B", "output", "weights"]


def test_what_is_no_container_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file.popef"
    path.write_text("This is not cache")
    with pytest.raises(Exception, match=r"file\.popef"):
        popef.Reader().parseFile(str(path))


@pytest.mark.parametrize("compress", [False, True])
def test_streams_are_independent(tmp_path: Path, compress: bool) -> None:
    path = str(tmp_path / "file.popef")
    tensor = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor_info, feed_info = popef.TensorDataInfo(), popef.FeedDataInfo()
    tensor_info.setName("weights")
    tensor_info.setTensorInfo(info_of(tensor))
    feed_info.setName("data")
    feed_info.setTensorInfo(info_of(tensor[0]))
    feed_info.setNumTensors(2)
    writer = popef.Writer(path)
    writer.createExecutable("executable", compress).stream.write(b"code", 4)
    writer.createTensorData(tensor_info).stream.write(tensor, tensor.nbytes)
    writer.createFeedData(feed_info).stream.write(tensor, tensor.nbytes)
    writer.createOpaqueBlob("opaque", "").stream.write(b"some bytes", 10)
    writer.close()
    reader = popef.Reader()
    reader.parseFile(path)
    (executable,) = reader.executables()
    first, second = (executable.getStandaloneExecutableStream() for _ in range(2))
    assert (first.read(3), second.read(), first.read()) == (b"cod", b"code", b"e")
    assert reader.tensors()[0].getStandaloneDataStream().read() == tensor.tobytes()
    assert reader.feeds()[0].getStandaloneDataStream().read() == tensor.tobytes()
    (opaque,) = reader.opaqueBlobs()
    stream = opaque.getStandaloneDataStream()
    assert stream.seek(0, io.SEEK_END) == opaque.getAvailableReadSize() == 10


def test_older_names(tmp_path: Path) -> None:
    metadata = popef.Metadata()
    metadata.setDeviceIteration(7)
    assert metadata.deviceIterations() == metadata.deviceIteration() == 7


def test_setters_take_copies() -> None:
    info, anchor, flow = popef.TensorInfo(), popef.Anchor(), popef.ProgramFlow()
    option, metadata = popef.Option("a", "b"), popef.Metadata()
    data = popef.TensorDataInfo()
    anchors = []
    for rows in (1, 2):  # one object is used for several, as is usual in C++
        info.setShape([rows])
        anchor.setTensorInfo(info)
        data.setTensorInfo(info)
        anchors.append(anchor)
        metadata.setAnchors(anchors[:1])
        anchor.setName(f"anchor {rows}")
    info.setShape([9])
    metadata.setProgramFlow(flow)
    metadata.setEngineOptions([option])
    flow.setMain([7])
    option.setName("c")
    assert anchor.tensorInfo().shape() == data.tensorInfo().shape() == [2]
    assert metadata.anchors()[0].name() == "anchor 1"
    assert metadata.programFlow().main() == []
    assert metadata.engineOptions() == [popef.Option("a", "b")]


@pytest.mark.parametrize(
    ("owner", "setter", "wrong"),
    [
        (popef.Anchor, "setName", 3),
        (popef.Anchor, "setHandle", None),
        (popef.Anchor, "setType", "INPUT"),
        (popef.Anchor, "setPrograms", ["main"]),
        (popef.Anchor, "setTensorInfo", [3, 4]),
        (popef.TensorInfo, "setDataType", np.float32),
        (popef.TensorInfo, "setShape", [2.5]),
        (popef.TensorDataInfo, "setName", ["x"]),
        (popef.Anchor, "setIsPerReplica", "yes"),
        (popef.Metadata, "setDeviceIterations", 1.5),
        (popef.Metadata, "setIsInference", "False"),
        (popef.Metadata, "setAnchors", popef.Anchor()),
        (popef.Metadata, "setProgramsMap", [0, 1]),
        (popef.TensorInfo, "setShape", "34"),
        (popef.TensorDataInfo, "setTensorInfo", popef.DataType.F32),
        (popef.FeedDataInfo, "setNumTensors", "2"),
        (popef.Option, "setValue", 1),
        (popef.ProgramFlow, "setMain", ["main"]),
        (popef.Metadata, "setExecutable", 1),
        (popef.Metadata, "setAnchors", ["input"]),
        (popef.Metadata, "setProgramFlow", [1]),
        (popef.Metadata, "setProgramsMap", {"main": 1}),
        (popef.Metadata, "setEngineOptions", ["a"]),
        (popef.Metadata, "setSeedHandle", 1),
    ],
)
def test_setters_refuse_other_types(owner: type, setter: str, wrong: object) -> None:
    value = owner()
    before = repr(value)
    with pytest.raises(TypeError):
        getattr(value, setter)(wrong)
    assert repr(value) == before


def test_descriptions_of_another_kind_are_refused(tmp_path: Path) -> None:
    writer = popef.Writer(str(tmp_path / "file.popef"))
    with pytest.raises(TypeError, match="expected FeedDataInfo, got TensorDataInfo"):
        writer.createFeedData(popef.TensorDataInfo())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected TensorDataInfo, got FeedDataInfo"):
        writer.createTensorData(popef.FeedDataInfo())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected Metadata, got dict"):
        writer.writeMetadata({})  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected Mode, got str"):
        popef.FileWriter(str(tmp_path / "other.popef"), "a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected Reader, got str"):
        popef.ModelBuilder("file.popef")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected DataType, got str"):
        popef.popefTypeToNumpyDType("F32")  # type: ignore[arg-type]
    writer.createOpaqueBlob("a")
    writer.close()


def test_a_size_is_of_the_bytes_that_are_given(tmp_path: Path) -> None:
    writer = popef.Writer(str(tmp_path / "file.popef"))
    blob = writer.createOpaqueBlob("a")
    with pytest.raises(ValueError, match="-1"):
        blob.write(b"1234", -1)
    turned = np.arange(6, dtype=np.float32).reshape(2, 3).T
    blob.write(turned, turned.nbytes)
    writer.close()
    reader = popef.Reader()
    reader.parseFile(str(tmp_path / "file.popef"))
    assert reader.opaqueBlobs()[0].data() == turned.tobytes()
