"""Quantise an ONNX model's weights to 8-bit integers, and measure how outputs change.

ONNX Runtime finds the scales of activations while the model runs (dynamic
quantisation), so no data is needed. The model's answers change, so PopGate quantises
only on request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Self

import numpy as np

from engine.errors import InvalidModel
from engine.programs.onnx_session import OnnxSession
from engine.tensor import Array
from popgate_onnx.compiler.interface import Interface
from popgate_onnx.compiler.rows.samples import SIZES, RowSampler
from popgate_onnx.compiler.source import read_model

Feed = Mapping[str, Array]
#: The number of synthetic examples, the rows of each, and its number of timed runs.
_EXAMPLES, _ROWS, _RUNS = 8, 4, 5


@dataclass(frozen=True, slots=True)
class OutputChange:
    """The change of a float output: its largest absolute difference.

    For vectors, `cosine` is the smallest cosine similarity of a row before and after.
    `mean_cosine` is the mean of all rows.
    """

    name: str
    largest: float
    cosine: float | None = None
    mean_cosine: float | None = None


@dataclass(frozen=True, slots=True)
class QuantizeReport:
    """Bytes of the file and seconds of a run, before and after, and the changed
    outputs.
    """

    bytes_before: int
    bytes_after: int
    seconds_before: float
    seconds_after: float
    examples: int
    changes: tuple[OutputChange, ...]

    def to_message(self) -> dict[str, Any]:
        """Return the report as a value for JSON."""
        return asdict(self)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> Self:
        changes = tuple(OutputChange(**one) for one in message["changes"])
        return cls(**{**message, "changes": changes})


def quantize(source: Path, target: Path) -> None:
    """Write the model with 8-bit weights to `target`. Raises InvalidModel, OSError."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    read_model(source)  # raises an error that explains what is wrong
    level = logging.root.level
    logging.root.setLevel(logging.ERROR)  # ONNX Runtime logs advice that does not apply
    try:
        quantize_dynamic(source, target, weight_type=QuantType.QInt8)
    except OSError:
        raise
    except Exception as error:  # the library documents no errors
        raise InvalidModel(f"ONNX Runtime cannot quantise the model: {error}") from None
    finally:
        logging.root.setLevel(level)


def example_feeds(model: Any) -> list[Feed]:
    """Return examples for a model, of sizes that it accepts. Raises InvalidModel if it
    accepts none.
    """
    session = OnnxSession(model.SerializeToString())
    interface = Interface.of(model, session)
    for size in SIZES:
        feeds: list[Feed] = [
            RowSampler(interface.inputs, size, seed).rows(kind, _ROWS)
            for seed in range(_EXAMPLES // 2)
            for kind in ("normal", "unit")
        ]
        try:
            for feed in feeds:
                session.raw_run(list(session.outputs), dict(feed), None)
        except Exception:
            continue
        return feeds
    raise InvalidModel("the model fails on all synthetic examples")


def compare_models(before: Any, after: Any, feeds: Sequence[Feed]) -> QuantizeReport:
    """Run both models in turns, on one thread. Both are an `onnx.ModelProto`."""
    data = [model.SerializeToString() for model in (before, after)]
    sessions = [OnnxSession(one) for one in data]
    names = [value.name for value in before.graph.output]
    results = [[s.raw_run(names, dict(f), None) for f in feeds] for s in sessions]
    took: tuple[list[float], list[float]] = [], []
    for _ in range(_RUNS):
        for feed in feeds:
            for session, times in zip(sessions, took, strict=True):
                began = time.perf_counter()
                session.raw_run(names, dict(feed), None)
                times.append(time.perf_counter() - began)
    changes = []
    for number, name in enumerate(names):
        pairs = [(one[number], two[number]) for one, two in zip(*results, strict=True)]
        if pairs[0][0].dtype.kind == "f":
            changes.append(_change(name, pairs))
    bytes_before, bytes_after = map(len, data)
    seconds_before, seconds_after = map(median, took)
    return QuantizeReport(
        bytes_before,
        bytes_after,
        seconds_before,
        seconds_after,
        len(feeds),
        tuple(changes),
    )


def _change(name: str, pairs: Sequence[tuple[Array, Array]]) -> OutputChange:
    largest = max(float(np.abs(one - two).max(initial=0)) for one, two in pairs)
    if any(one.ndim < 2 or one.shape[-1] < 2 for one, _ in pairs):
        return OutputChange(name, largest)
    cosines = np.concatenate([_cosines(one, two) for one, two in pairs])
    return OutputChange(name, largest, float(cosines.min()), float(cosines.mean()))


def _cosines(one: Array, two: Array) -> Array:
    first = one.reshape(-1, one.shape[-1]).astype(np.float64)
    second = two.reshape(-1, two.shape[-1]).astype(np.float64)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    found: Array = (first * second).sum(1) / np.maximum(lengths, 1e-30)
    return found
