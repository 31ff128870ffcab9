"""One inference: what is counted of it, whatever happens to it."""

from __future__ import annotations

from app.observe.metrics import ModelMetrics
from app.serving.infer_call import InferCall
from app.serving.table import ModelEntry
from engine import Cancelled
from tests.app.serving.test_sequences import SPEC, Summer


def test_an_end_is_counted_once() -> None:
    stats = ModelMetrics("m", "1")
    call = InferCall(ModelEntry(SPEC, Summer(), stats))
    assert stats.pending == 1
    call.fail(MemoryError())
    call.fail(Cancelled("its task was cancelled then"))
    call.forget()
    assert (stats.pending, stats.failure_count) == (0, 1)
