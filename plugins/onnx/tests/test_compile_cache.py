"""ONNX files are compiled once, and again when anything about them changes."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from engine import InvalidModel
from popef_io import load_model
from popgate_onnx.compile_cache import OnnxCompileCache, external_files
from tests.app.served import ServedGateway


def save(path: Path, *, factor: float = 2.0, external: bool = False) -> Path:
    """An ONNX file for y = x * factor (a weight of 2,000 equal numbers)."""
    weight = numpy_helper.from_array(np.full(2000, factor, np.float32), "factor")
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 2000])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 2000])],
        [weight],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    model.ir_version = 10
    onnx.save(model, path, save_as_external_data=external, location=f"{path.stem}.data")
    return path


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[OnnxCompileCache]:
    with contextlib.closing(OnnxCompileCache(tmp_path / "cache")) as cache:
        yield cache


def test_compiled_once(cache: OnnxCompileCache, tmp_path: Path) -> None:
    source = save(tmp_path / "m.onnx")
    first = cache.popef_for(source)
    written = first.stat().st_ino
    assert load_model(first).metadata.anchors
    assert cache.popef_for(source) == first
    copy = save(tmp_path / "copy.onnx")
    assert cache.popef_for(copy) == first  # the same bytes under another name
    assert first.stat().st_ino == written


def test_a_changed_model_is_another(cache: OnnxCompileCache, tmp_path: Path) -> None:
    first = cache.popef_for(save(tmp_path / "m.onnx"))
    assert cache.popef_for(save(tmp_path / "m.onnx", factor=3.0)) != first


def test_external_data_counts(cache: OnnxCompileCache, tmp_path: Path) -> None:
    source = save(tmp_path / "m.onnx", external=True)
    data = tmp_path / "m.data"
    assert external_files(source) == [data]
    first = cache.popef_for(source)
    document = source.read_bytes()
    data.unlink()  # onnx.save would append to it
    save(source, factor=3.0, external=True)
    assert source.read_bytes() == document  # only the data file has changed
    assert cache.popef_for(source) != first


def test_external_data_of_functions_counts(
    cache: OnnxCompileCache, tmp_path: Path
) -> None:
    data = tmp_path / "w.data"
    data.write_bytes(np.full(4, 2, np.float32).tobytes())
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4])
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.data")
    opset = helper.make_opsetid("", 20)
    nodes = [
        helper.make_node("Constant", [], ["w"], value=weight),
        helper.make_node("Add", ["x", "w"], ["y"]),
    ]
    function = helper.make_function("own", "AddW", ["x"], ["y"], nodes, [opset])
    graph = helper.make_graph(
        [helper.make_node("AddW", ["x"], ["y"], domain="own")],
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 4])],
    )
    opsets = [opset, helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets)
    model.ir_version = 10
    source = tmp_path / "m.onnx"
    source.write_bytes(model.SerializeToString())
    assert external_files(source) == [data]
    first = cache.popef_for(source)
    data.write_bytes(np.full(4, 3, np.float32).tobytes())
    assert cache.popef_for(source) != first


def test_a_data_file_that_no_file_can_be_is_told(
    cache: OnnxCompileCache, tmp_path: Path
) -> None:
    source = save(tmp_path / "m.onnx", external=True)
    document = onnx.load(source, load_external_data=False)
    document.graph.initializer[0].external_data[0].value = "\0m.data"
    source.write_bytes(document.SerializeToString())
    with pytest.raises(InvalidModel, match=r"tensor 'factor': its data file .*must be"):
        cache.popef_for(source)


def test_external_files_elsewhere_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    source = save(folder / "m.onnx", external=True)
    (folder / "m.data").rename(tmp_path / "m.data")
    assert external_files(source) == []
    (folder / "m.data").symlink_to(tmp_path / "m.data")
    assert external_files(source) == []


def test_what_cannot_be_compiled_leaves_nothing(
    cache: OnnxCompileCache, tmp_path: Path
) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(b"\x08\x0a")
    with pytest.raises(InvalidModel):
        cache.popef_for(source)
    assert [p for p in (tmp_path / "cache").rglob("*") if p.is_file()] == []


@pytest.fixture
def unwritable(tmp_path: Path) -> Path:
    # A file where the folder should be: refused for root, too.
    path = tmp_path / "cache"
    path.write_text("in the way")
    return path / "deeper"


def test_a_folder_that_cannot_be_written(unwritable: Path, tmp_path: Path) -> None:
    cache = OnnxCompileCache(unwritable)
    made = cache.popef_for(save(tmp_path / "m.onnx"))
    assert made.is_file()
    cache.close()
    del cache
    gc.collect()
    assert not made.parent.parent.exists()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB, which has room for one file of `save`."""
    path = tmp_path / "disk"
    path.mkdir()
    options = ["-t", "tmpfs", "-o", "size=64k", "tmpfs", str(path)]
    if subprocess.run(["mount", *options], capture_output=True).returncode:
        pytest.skip("this user may not mount a disk")
    yield path
    subprocess.run(["umount", path], check=True)


def test_a_full_disk_keeps_no_model_away(small_disk: Path, tmp_path: Path) -> None:
    cache = OnnxCompileCache(small_disk)
    first, second = save(tmp_path / "m.onnx"), save(tmp_path / "n.onnx", factor=3.0)
    kept = cache.popef_for(first)
    assert kept.is_relative_to(small_disk)
    filler = small_disk / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
        while stream.write(bytes(512)):
            pass
    made = cache.popef_for(second)
    assert load_model(made).metadata.anchors
    assert not made.is_relative_to(small_disk)
    assert cache.popef_for(second) == made
    assert cache.popef_for(first) == kept  # what it had is still there
    names = {path.name for path in small_disk.rglob("*") if path.is_file()}
    assert names == {"filler", kept.name}  # nothing by half
    cache.close()
    del cache
    gc.collect()
    assert not made.exists()


def test_a_gateway_serves_onnx(tmp_path: Path) -> None:
    root = tmp_path / "models"
    (root / "deep" / "3").mkdir(parents=True)
    save(root / "flat.onnx")
    save(root / "deep" / "3" / "model.onnx", factor=5.0, external=True)
    (root / "broken.onnx").write_bytes(b"\xff" * 100)
    cache = tmp_path / "cache"
    with contextlib.closing(OnnxCompileCache(cache)) as beforehand:
        compiled = beforehand.popef_for(root / "flat.onnx")
    written = compiled.stat().st_ino
    with ServedGateway(root, "--cache-dir", str(cache)) as gateway:
        gateway.wait_ready()
        ones = [[1.0] * 2000]
        assert gateway.infer("flat", x=ones)["y"] == [2.0] * 2000
        assert gateway.infer("deep", x=ones)["y"] == [5.0] * 2000
        details = gateway.client.get("/v1/models/deep").json()
        assert (details["version"], details["batching"]) == ("3", True)
        failed = gateway.client.get("/v1/health/ready").json()["failed"]
        assert list(failed) == ["broken"]
    assert compiled.stat().st_ino == written
    assert len(list(cache.rglob("*.popef"))) == 2


def test_what_is_no_model(cache: OnnxCompileCache, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    source.write_bytes(b"garbage")
    with pytest.raises(
        ValueError, match=r"m\.onnx is not a valid ONNX model, or is truncated"
    ):
        cache.popef_for(source)


def test_a_pipe_is_not_waited_for(cache: OnnxCompileCache, tmp_path: Path) -> None:
    source = tmp_path / "m.onnx"
    os.mkfifo(source)
    with pytest.raises(InvalidModel, match=r"m\.onnx is not a regular file"):
        cache.popef_for(source)


@pytest.mark.parametrize("workers", ["1", "2"])
def test_requests_wait_for_the_models_of_a_server_that_starts(
    tmp_path: Path, workers: str
) -> None:
    save(tmp_path / "first.onnx")
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    options = "--workers", workers, "--cache-dir", str(tmp_path / ".cache")
    with ServedGateway(tmp_path, *options) as gateway:
        # The port is open, and nothing has been compiled yet.
        assert gateway.infer("first", x=[[1.0] * 2000])["y"] == [2.0] * 2000
        body = {"inputs": {"x": [[1.0]]}}
        for name, status in (("broken", 503), ("none", 404)):
            answer = gateway.client.post(f"/v1/models/{name}/infer", json=body)
            assert answer.status_code == status
        assert gateway.wait_ready().client.get("/v1/health/ready").status_code == 200
