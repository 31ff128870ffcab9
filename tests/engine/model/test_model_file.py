"""A model reaches the device as the bytes it was read from, not as a path."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np
import pytest
from build_popef import SHAPE, build_split

from engine import Device, InvalidModel, ModelRunner, ModelRunnerConfig
from engine.model.model_file import handed_over, open_model
from popef_io import Model, ModelBuilder, Reader, load_model
from tests.engine import models

ONES = np.ones(SHAPE, np.float32)


def on(device: Device) -> ModelRunnerConfig:
    return ModelRunnerConfig(replica_to_device={0: device}, auto_reset=True)


def from_streams(*paths: Path) -> Model:
    reader = Reader()
    for path in paths:
        reader.parse_stream(io.BytesIO(path.read_bytes()))
    return ModelBuilder(reader).create_model()


def test_a_model_from_streams_can_be_run(tmp_path: Path, shared_device: Device) -> None:
    paths = build_split(tmp_path)
    expected = ModelRunner(list(paths), on(shared_device))
    model = from_streams(*paths)
    assert model.paths == ("<stream>", "<stream>")
    for path in paths:
        path.unlink()
    with expected, ModelRunner(model, on(shared_device)) as runner:
        given = {"tensor_A": ONES}
        want = expected.execute(given)["output"]
        assert np.array_equal(runner.execute(given)["output"], want)


def test_a_file_that_is_deleted_after_it_was_read(
    tmp_path: Path, own_device: Device
) -> None:
    path = models.simple(tmp_path)
    model = load_model(path)
    path.unlink()
    given = {"tensor_A": ONES, "tensor_B": ONES}
    with ModelRunner(model, on(own_device)) as runner:
        before = runner.execute(given)["output"]
        own_device.kill("a test does this")
        assert np.array_equal(runner.execute(given)["output"], before)
        assert own_device.restarts == 1


def test_a_file_that_was_replaced_is_loaded_as_it_was_read(
    tmp_path: Path, shared_device: Device
) -> None:
    path = models.simple(tmp_path)
    model = load_model(path)
    other = tmp_path / "other"
    other.write_bytes(b"This is not cache")
    os.replace(other, path)
    with ModelRunner(model, on(shared_device)) as runner:
        runner.execute({"tensor_A": ONES, "tensor_B": ONES})


def test_a_file_is_not_copied_and_no_descriptor_stays_open(tmp_path: Path) -> None:
    path = models.simple(tmp_path)
    model = open_model(path)
    before = os.listdir("/proc/self/fd")
    with handed_over(model) as (names, fds):
        assert names == [str(path)]
        assert os.path.samestat(os.fstat(fds[0]), path.stat())
    assert os.listdir("/proc/self/fd") == before


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    model = open_model(models.simple(tmp_path))
    many = Model(
        model.metadata, model.executable, {}, {}, {}, tuple(model.sources * 253)
    )
    with (
        pytest.raises(InvalidModel, match="at most 252 files, got 253"),
        handed_over(many),
    ):
        pass
