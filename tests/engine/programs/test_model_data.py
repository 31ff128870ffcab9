"""Data of the file: feeds advance and wrap, frozen values win over all else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from build_popef import FEED_LENGTH, SHAPE, build_feed

from engine import Device, InvalidModel, ModelRunner, ModelRunnerConfig
from engine.programs.model_data import ModelData
from popef_io import load_model
from tests.engine import models

ZEROS = np.zeros(SHAPE, np.float32)


@pytest.fixture(scope="module")
def feed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_feed(tmp_path_factory.mktemp("feed"))


def test_a_feed_gives_its_next_tensor_at_each_read_and_begins_again(feed: Path) -> None:
    data = ModelData(load_model(feed), {})
    first = [float(data.read("h2d_offset")[0, 0]) for _ in range(FEED_LENGTH)]
    assert len(set(first)) == FEED_LENGTH
    again = [float(data.read("h2d_offset")[0, 0]) for _ in range(FEED_LENGTH)]
    assert again == first


def test_a_twin_goes_on_alone_from_the_same_place(feed: Path) -> None:
    data = ModelData(load_model(feed), {})
    data.read("h2d_offset")
    clone = data.clone()
    assert np.array_equal(data.read("h2d_offset"), clone.read("h2d_offset"))
    second = data.read("h2d_offset")
    data.read("h2d_offset")
    assert np.array_equal(clone.read("h2d_offset"), second)


def test_what_has_no_data_is_named(feed: Path) -> None:
    data = ModelData(load_model(feed), {})
    with pytest.raises(InvalidModel, match="'tensor_A' has no data"):
        data.check("h2d_tensor_A")


def test_each_request_sees_the_next_tensor_of_a_feed(
    feed: Path, shared_device: Device
) -> None:
    config = ModelRunnerConfig(
        replication_factor=2, replica_to_device={0: shared_device, 1: shared_device}
    )
    with ModelRunner(feed, config) as runner:
        assert [d.name for d in runner.execute_inputs] == ["tensor_A"]
        for replica in (0, 1):  # each with a place of its own
            got = [
                float(
                    runner.execute({"tensor_A": ZEROS}, replica_id=replica)["output"][
                        0, 0
                    ]
                )
                for _ in range(2 * FEED_LENGTH)
            ]
            one_round = [100.0 * n for n in range(FEED_LENGTH)]
            assert got == one_round + one_round


@pytest.mark.parametrize("name", ["offset", "tensor_A"])
def test_frozen_over_a_feed_and_over_a_stream(
    feed: Path, shared_device: Device, name: str
) -> None:
    frozen = np.full(SHAPE, 7, np.float32)
    config = ModelRunnerConfig(
        replica_to_device={0: shared_device}, frozen_inputs={name: frozen}
    )
    with ModelRunner(feed, config) as runner:
        given = {} if name == "tensor_A" else {"tensor_A": ZEROS}
        assert {d.name for d in runner.execute_inputs} == set(given)
        got = [float(runner.execute(given)["output"][0, 0]) for _ in range(3)]
        assert got == ([7, 107, 207] if name == "tensor_A" else [7, 7, 7])


def test_frozen_over_tensor_data(tmp_path: Path, shared_device: Device) -> None:
    weights = np.arange(4, dtype=np.float32)
    config = ModelRunnerConfig(
        replica_to_device={0: shared_device}, frozen_inputs={"weights": weights}
    )
    with ModelRunner(models.simple(tmp_path), config) as runner:
        ones = np.ones(SHAPE, np.float32)
        got = runner.execute({"tensor_A": ones, "tensor_B": ones})["output"]
        assert np.array_equal(got, ones * weights + 1)
