"""What is told of a model arrives as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from app.settings import Settings
from app.spec import ModelSpec, TensorSpec
from bench.fuzzers.messages import harness
from engine import ObjectField, RunnerDescription, Tensor
from engine.model.batch_plan import AnchorRows, BatchPlan
from engine.tensor import DataDesc
from engine.transport.channel import ChannelLayout
from engine.transport.messages import encode
from popef_io import DataType
from popgate_workers.messages import TO_WORKER, ModelChanged, SharedEntry, SharedModel
from popgate_workers.supervisor import settings_message


def arrived(entry: SharedEntry) -> SharedEntry:
    message = TO_WORKER.decode(encode(ModelChanged(1, "m", "2", (entry,), ())))
    assert isinstance(message, ModelChanged)
    return message.entries[0]


def test_a_version_arrives_as_it_was() -> None:
    labels = TensorSpec("y", "FP32", DataType.F32, (-1, 3), ("a", "b", "c"), 2)
    default = Tensor.from_numpy(np.array([[1, 2]], np.float32))
    spec = ModelSpec(
        "m",
        "2",
        (TensorSpec.make("x", "FP32", (-1, 2)), TensorSpec.make("t", "BYTES")),
        (labels,),
        max_batch_size=8,
        max_rows=4,
        optional_inputs=True,
        defaults={"x": default},
    )
    runner = RunnerDescription(
        "m/2",
        (DataDesc("x", (-1, 2), DataType.F32),),
        (DataDesc("y", None, DataType.F32),),
        BatchPlan(0, 0, 1, 8, (AnchorRows("x"),), (AnchorRows("y"),)),
        ChannelLayout(4, (4096,), (4096,), (4096, 4096)),
        64,
        replicas=(("cpu:0#7", 3),),
    )
    shared = SharedModel(ObjectField(runner))
    entry = SharedEntry(5, 1, ObjectField(spec), shared, 1.5, None, {0: None, 1: 2.0})
    found = arrived(entry)
    assert (found.key, found.block, found.runner) == (5, 1, shared)
    assert (found.timeout, found.max_timeout) == (1.5, None)
    assert found.level_timeouts == {0: None, 1: 2.0}
    same = "name version inputs outputs max_batch_size max_rows optional_inputs"
    for attribute in same.split():
        assert getattr(found.spec.value, attribute) == getattr(spec, attribute)
    assert found.spec.value.defaults["x"].tobytes() == default.tobytes()
    assert found.spec.value.defaults["x"].shape == default.shape


def test_damaged_messages_are_refused_and_leak_nothing() -> None:
    """`python -m bench.fuzzers.messages` does this at length."""
    with harness() as fuzzer:
        found = {seed: fuzzer.check(seed) for seed in range(1500)}
    assert {seed: why for seed, (_, why) in found.items() if why} == {}
    assert {"message", "MalformedMessage"} <= {outcome for outcome, _ in found.values()}


@pytest.mark.parametrize(
    ("defaults", "aliases"),
    [([], None), ([], {"a": 1}), ([], b"ab"), ([["x", "F32", [1], {}]], {})],
)
def test_a_spec_with_fields_of_other_types_is_refused(
    defaults: Any, aliases: Any
) -> None:
    document = ["m", "1", [], [], [0, 0, False], defaults, aliases]
    with pytest.raises(msgspec.ValidationError, match="Expected"):
        ModelSpec.from_message(document)


def test_a_worker_starts_while_the_log_settings_are_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The supervisor keeps the former ones, and so does the next worker."""
    path = tmp_path / "log.toml"
    path.write_text('log_level = "error"')
    monkeypatch.setenv("POPGATE_LOG_CONFIG", str(path))
    settings = Settings(port=1234)
    path.write_text('log_level = "loud"')
    assert Settings(**settings_message(settings)).port == 1234
