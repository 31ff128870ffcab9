"""Exemplars: requests that stand for a bucket, in OpenMetrics as its own parser reads
it."""

from __future__ import annotations

import time

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.samples import Exemplar

from app.observe.exemplars import JournalExemplars
from app.observe.exposition import END, Family, render_families, render_models
from app.observe.histogram import LATENCY_BUCKETS
from app.observe.journal import Answered, Asked, Journal
from app.observe.metrics import ModelMetrics

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MS = 1_000_000


def answered(
    journal: Journal, model: ModelMetrics, request_id: bytes, total_ms: int, trace: str
) -> None:
    """A request as the request path leaves it."""
    ended = time.monotonic_ns()
    began = ended - total_ms * MS
    request = Answered(
        request_id, model, began, began, began, 2 * MS, 3 * MS, ended, ended, 1, 4, "c"
    )
    journal.last.append(request)
    model.begin()
    model.success(request.total_ns, request.queue_ns, request.compute_ns, batch_rows=4)
    parent = f"00-{trace}-00f067aa0ba902b7-01".encode() if trace else b""
    asked = Asked(request_id, "POST", "/", traceparent=parent)
    journal.log_answered(asked, request)


def exemplars(journal: Journal, model: ModelMetrics) -> dict[str, dict[str, Exemplar]]:
    """By histogram and bound."""
    shown = JournalExemplars(journal)
    text = "".join(render_models([model], lambda m: 0, {id(model): 0.25}, shown))
    families = [
        Family("a_total", "counter", "A", [({"l": 'x"\\\n'}, 1)]),
        Family("b", "counter", "B", [({}, 2.5)]),
    ]
    text += "".join(render_families(families, openmetrics=True)) + END
    found: dict[str, dict[str, Exemplar]] = {}
    for family in text_string_to_metric_families(text):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            if sample.exemplar is not None:
                by_bound = found.setdefault(family.name, {})
                by_bound[sample.labels["le"]] = sample.exemplar
    return found


def test_the_last_request_of_each_bucket() -> None:
    journal, model = Journal(), ModelMetrics('m"\\', "1")
    answered(journal, model, b"first", 40, TRACE)
    answered(journal, model, b"later", 45, "")
    answered(journal, model, b"slow", 70_000, TRACE)
    found = exemplars(journal, model)
    total = found["popgate_request_duration_seconds"]
    assert set(total) == {"0.05", "+Inf"}
    assert total["0.05"].labels == {"request_id": "later"}
    assert total["0.05"].value == 0.045
    assert abs(float(total["0.05"].timestamp or 0) - time.time()) < 60
    assert total["+Inf"].labels == {"trace_id": TRACE, "request_id": "slow"}
    (queue,) = found["popgate_queue_duration_seconds"].items()
    assert queue[0] == str(LATENCY_BUCKETS[4])
    assert queue[1].labels["request_id"] == "slow"


def test_what_is_too_long_is_left_out() -> None:
    """OpenMetrics has room for 128 characters."""
    journal, model = Journal(), ModelMetrics("m", "1")
    answered(journal, model, b"y" * 118, 1, "")
    answered(journal, model, b"x" * 119, 40, TRACE)
    answered(journal, model, b"z" * 119, 400, "")
    total = exemplars(journal, model)["popgate_request_duration_seconds"]
    assert total["0.001"].labels == {"request_id": "y" * 118}
    assert total["0.05"].labels == {"trace_id": TRACE}
    assert total["0.5"].labels == {}


def test_another_model_has_others() -> None:
    journal, one, other = Journal(), ModelMetrics("one", "1"), ModelMetrics("two", "1")
    answered(journal, one, b"mine", 40, "")
    other.begin()
    other.success(40 * MS)
    assert exemplars(journal, other) == {}
    assert exemplars(journal, one)
