"""Sampling, inheritance of settings, and files that are complete at any time."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from app.observe.journal import Answered
from app.observe.metrics import ModelMetrics
from app.settings import Settings
from engine import InvalidConfig, Tensor
from popgate_triton import traces
from popgate_triton.traces import (
    MAX_TENSOR_BYTES,
    MAX_TENSOR_ELEMENTS,
    TraceSettings,
    TritonTracing,
    tracing_of,
)

ON = TraceSettings(("TIMESTAMPS",), rate=1)


def record(tracing: TritonTracing, model: str = "m", **tensors: Tensor) -> bool:
    """One request; whether it was traced."""
    tracer = tracing.tracer(model)
    if tracer is None or not tracer.wants():
        return False
    metrics = ModelMetrics(model, "1")
    # It arrived at 1, began at 2, was decoded at 3; encoding began at 5, ended at 6.
    answered = Answered(b"id", metrics, 1, 2, 3, 1, 1, 5, 6, 1, 1, "cpu:0")
    tracer.record("id", answered, 7, tensors, {})
    return True


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_a_file_is_valid_after_every_trace(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text("of a run before")
    tracing = TritonTracing(path, ON, clock_offset=100)
    for number in (1, 2, 3):
        assert record(tracing)
        entries = read(path)
        assert [e["id"] for e in entries] == [
            n for n in range(1, number + 1) for _ in "ab"
        ]
    head, body = entries[:2]
    assert head == {"id": 1, "model_name": "m", "model_version": 1, "request_id": "id"}
    stamps = {stamp["name"]: stamp["ns"] for stamp in body["timestamps"]}
    assert stamps["HTTP_RECV_START"] == 101
    assert stamps["REQUEST_START"] == 102
    assert stamps["COMPUTE_END"] == 105
    assert stamps["HTTP_SEND_END"] == 107
    assert list(stamps.values()) == sorted(stamps.values())
    tracing.close()
    assert tracing.tracer("m") is None


def test_tensors_are_written_as_texts(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    tracing = TritonTracing(path, TraceSettings(("TENSORS",), rate=1))
    record(
        tracing,
        x=Tensor.from_numpy(np.array([[1, -2]], np.int32)),
        h=Tensor.from_numpy(np.array([0.5], np.float16)),
        b=Tensor.from_numpy(np.array([True, False])),
        s=Tensor.from_numpy(np.array([b"a", b"\xff"], object)),
    )
    _, x, h, b, s = (e.get("tensor") for e in read(path))
    assert x == {"name": "x", "data": "1,-2", "shape": "1,2", "dtype": "INT32"}
    assert (h["data"], h["dtype"]) == ("0.5", "FP16")
    assert (b["data"], b["dtype"]) == ("1,0", "BOOL")
    assert (s["data"], s["dtype"]) == ("a,\\xff", "BYTES")
    tracing.close()


@pytest.mark.parametrize(
    "other",
    [
        np.zeros(0, np.uint8),
        np.zeros(MAX_TENSOR_ELEMENTS + 1, np.uint8),
        np.array([b"\xff" * (MAX_TENSOR_BYTES + 1)], object),
    ],
    ids=["none", "elements", "bytes"],
)
def test_tensors_whose_data_is_not_written_are_left_out(
    tmp_path: Path, other: np.ndarray[Any, Any]
) -> None:
    path = tmp_path / "t.json"
    tracing = TritonTracing(path, TraceSettings(("TENSORS",), rate=1))
    record(
        tracing,
        other=Tensor.from_numpy(other),
        x=Tensor.from_numpy(np.zeros(MAX_TENSOR_ELEMENTS, np.float64)),
    )
    assert [e["tensor"]["name"] for e in read(path)[1:]] == ["x"]
    tracing.close()


def test_traces_that_wait_for_a_file_of_their_own_have_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "MOST_WAITING", 100_000)
    settings = TraceSettings(("TENSORS",), rate=1, log_frequency=1 << 30)
    tracing = TritonTracing(tmp_path / "t", settings)
    x = Tensor.from_numpy(np.zeros(MAX_TENSOR_ELEMENTS // 4, np.uint8))
    for _ in range(7):
        assert record(tracing, x=x)
    written = sorted(tmp_path.iterdir())
    assert [path.name for path in written] == ["t.0", "t.1"]
    assert [e["id"] for e in read(written[1])] == [4, 4, 5, 5, 6, 6]
    tracing.close()
    assert [e["id"] for e in read(tmp_path / "t.2")] == [7, 7]


def test_rate_and_count(tmp_path: Path) -> None:
    tracing = TritonTracing(
        tmp_path / "t", TraceSettings(("TIMESTAMPS",), rate=3, count=2)
    )
    assert [record(tracing) for _ in range(12)] == [
        *(False, False, True),
        *(False, False, True),
        *[False] * 6,
    ]
    assert tracing.settings().count == 0
    tracing.update(None, {"count": 1})
    assert [record(tracing) for _ in range(4)] == [False, False, True, False]
    tracing.close()


def test_models_follow_the_server_where_they_say_nothing(tmp_path: Path) -> None:
    changes: list[None] = []
    tracing = TritonTracing(tmp_path / "t")
    tracing.subscribe(lambda: changes.append(None))
    assert tracing.tracer("m") is None
    tracing.update("m", {"level": ("TIMESTAMPS",), "rate": 7})
    assert tracing.tracer("m") is not None
    assert tracing.tracer("other") is None
    tracing.update(None, {"rate": 5, "log_frequency": 2, "level": ("TENSORS",)})
    assert tracing.settings("other") == TraceSettings(("TENSORS",), 5, -1, 2)
    assert tracing.settings("m") == TraceSettings(("TIMESTAMPS",), 7, -1, 2)
    tracing.update("m", {"rate": None})
    assert tracing.settings("m").rate == 5
    tracing.update("m", {"level": None})
    assert list(tracing) == []
    tracing.update(None, dict.fromkeys(("rate", "log_frequency", "level")))
    assert tracing.settings("m") == tracing.initial
    assert len(changes) == 5
    tracing.close()


def test_a_change_elsewhere_does_not_start_a_sample_again(tmp_path: Path) -> None:
    tracing = TritonTracing(
        tmp_path / "t", TraceSettings(("TIMESTAMPS",), rate=1, count=3)
    )
    assert record(tracing)
    tracing.update("other", {"rate": 9})
    assert tracing.settings().count == 2
    tracing.close()


def test_a_file_for_every_so_many_traces(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    tracing = TritonTracing(
        path, TraceSettings(("TIMESTAMPS",), rate=1, log_frequency=2)
    )
    for _ in range(5):
        record(tracing)
    assert [e["id"] for e in read(tmp_path / "t.json.0")] == [1, 1, 2, 2]
    assert [e["id"] for e in read(tmp_path / "t.json.1")] == [3, 3, 4, 4]
    assert not (tmp_path / "t.json.2").exists()
    tracing.close()
    assert [e["id"] for e in read(tmp_path / "t.json.2")] == [5, 5]


@pytest.mark.parametrize("frequency", [0, 1])
def test_a_file_that_cannot_be_written_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, frequency: int
) -> None:
    settings = replace(ON, log_frequency=frequency)
    tracing = TritonTracing(tmp_path / "none" / "t.json", settings)
    record(tracing)
    record(tracing)
    assert [r.levelname for r in caplog.records] == ["ERROR"]
    tracing.close()


def test_nothing_is_traced_without_a_file() -> None:
    assert TritonTracing(None, ON).tracer("m") is None


def test_a_file_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    old = tmp_path / "old.json"
    old.write_text("[]")
    for good in (old, tmp_path / "new.json"):
        tracing_of(Settings(trace_file=good), 0).close()
    assert [old] == list(tmp_path.iterdir())
    assert old.read_text() == "[]"
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for bad in (tmp_path, tmp_path / "none" / "t.json", old / "t.json", pipe):
        with pytest.raises(InvalidConfig, match="--trace-file: cannot write"):
            tracing_of(Settings(trace_file=bad), 0)
