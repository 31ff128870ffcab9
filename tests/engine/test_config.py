"""Options are checked when they are made, with the range in the message."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from engine import InvalidConfig, ModelRunnerConfig


@pytest.mark.parametrize(
    ("option", "good", "bad"),
    [
        ("replication_factor", [1, 1024], [0, 1025]),
        ("ring_buffer_size_multiplier", [1], [0]),
        ("max_batch_size", [0, 65536], [-1, 65537]),
        ("max_queue_delay", [0, 60], [-0.1, 61]),
        ("max_queue_size", [1], [0]),
        ("channel_memory", [1 << 16], [(1 << 16) - 1]),
        ("batching_dim", [0, 0xFFFFFFFF], [-1]),
    ],
)
def test_ranges(option: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert getattr(ModelRunnerConfig(**{option: value}), option) == value
    for value in bad:
        with pytest.raises(InvalidConfig, match=option):
            ModelRunnerConfig(**{option: value})


def test_replicas_and_frozen_inputs_are_checked() -> None:
    with pytest.raises(InvalidConfig, match="replicas from 0 to 0"):
        ModelRunnerConfig(replica_to_device={1: object()})  # type: ignore[dict-item]
    with pytest.raises(InvalidConfig, match="got list"):
        ModelRunnerConfig(frozen_inputs={"x": [1]})  # type: ignore[dict-item]
    assert ModelRunnerConfig(frozen_inputs={"x": np.ones(1)})


@pytest.mark.parametrize(
    ("option", "wrong"),
    [
        ("replication_factor", None),
        ("max_queue_delay", "1"),
        ("load_timeout", None),
        ("run_timeout", 10**400),
        ("preferred_batch_sizes", 4),
        ("preferred_batch_sizes", (1.5,)),
        ("preferred_batch_sizes", ("4",)),
        ("auto_reset", "no"),
        ("priority_queue_sizes", {"1": 3}),
        ("priority_queue_sizes", {1: 3.5}),
        ("priority_queue_sizes", [3]),
        ("replica_to_device", {"0": None}),
        ("replica_to_device", [None]),
        ("replica_to_save_programs_outputs", {0: 5}),
        ("frozen_inputs", None),
        ("device_wait_config", 5),
        ("optional_outputs", "y"),
        ("optional_outputs", (5,)),
    ],
)
def test_values_of_another_type_are_refused(option: str, wrong: object) -> None:
    with pytest.raises(InvalidConfig, match=f"^{option} must be .*, got "):
        ModelRunnerConfig(**{option: wrong})  # type: ignore[arg-type]


def test_numbers_may_be_numpys() -> None:
    """A device process receives plain numbers only."""
    config = ModelRunnerConfig(
        max_queue_delay=np.float32(0.5),  # type: ignore[arg-type]
        preferred_batch_sizes=[np.int64(4)],  # type: ignore[arg-type]
        batching=np.True_,  # type: ignore[arg-type]
    )
    assert type(config.max_queue_delay) is float
    assert config.preferred_batch_sizes == (4,)
    assert type(config.preferred_batch_sizes[0]) is int
    assert config.batching is True
