"""The text that Prometheus reads, by Prometheus' own parser."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from app.observe.exposition import Family, escape_label, render_families, render_models
from app.observe.metrics import ModelMetrics
from app.observe.token_metrics import TokenCounts
from tests.app.observe.test_metrics import used_metrics

TRITON_NAMES = {
    "nv_inference_request_success",
    "nv_inference_request_failure",
    "nv_inference_count",
    "nv_inference_exec_count",
    "nv_inference_request_duration_us",
    "nv_inference_queue_duration_us",
    "nv_inference_compute_input_duration_us",
    "nv_inference_compute_infer_duration_us",
    "nv_inference_compute_output_duration_us",
    "nv_inference_pending_request_count",
}
HISTOGRAMS = {
    "popgate_request_duration_seconds",
    "popgate_queue_duration_seconds",
    "popgate_compute_duration_seconds",
}


def parse(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Sample name to labels to value, by Prometheus' own parser.

    It shows counters with `_total` behind their names, whatever they are called.
    """
    samples: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name
            if family.type == "counter" and not name.startswith("popgate_"):
                name = name.removesuffix("_total")
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in samples.setdefault(name, {})
            samples[name][labels] = sample.value
    return samples


def model_labels(**more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"model": "digits", "version": "3", **more}.items()))


def test_text_has_tritons_names_and_our_histograms() -> None:
    text = "".join(render_models([used_metrics()], lambda m: 7))
    assert "nv_inference_count_total" not in text
    samples = parse(text)
    assert set(samples) >= TRITON_NAMES
    assert samples["nv_inference_count"][model_labels()] == 8
    failure = samples["nv_inference_request_failure"]
    assert failure[model_labels(reason="BACKEND")] == 1
    assert failure[model_labels(reason="REJECTED")] == 0
    assert samples["nv_inference_request_duration_us"][model_labels()] == 7000
    assert samples["nv_inference_compute_input_duration_us"][model_labels()] == 40
    assert samples["nv_inference_pending_request_count"][model_labels()] == 7
    assert samples["popgate_requests_in_flight"][model_labels()] == 1
    # Readers that compare text rely on the order.
    labels = '{model="digits",reason="BACKEND",version="3"}'
    assert f"nv_inference_request_failure{labels} 1\n" in text
    for name in HISTOGRAMS:
        assert samples[f"{name}_count"][model_labels()] == 2
        assert samples[f"{name}_bucket"][model_labels(le="+Inf")] == 2
    batches = samples["popgate_batch_rows_bucket"]
    assert batches[model_labels(le="4.0")] == 0
    assert batches[model_labels(le="8.0")] == batches[model_labels(le="+Inf")] == 1
    assert samples["popgate_batch_rows_sum"][model_labels()] == 8
    # A quarter of the first batch and three quarters of the second.
    assert samples["popgate_model_busy_seconds_total"][model_labels()] == 0.003375
    bucket = samples["popgate_request_duration_seconds_bucket"]
    assert bucket[model_labels(le="0.001")] == 0
    assert bucket[model_labels(le="0.0025")] == 1
    assert bucket[model_labels(le="0.005")] == 2
    total = samples["popgate_request_duration_seconds_sum"][model_labels()]
    assert total == 0.007


def awaits_none(metrics: ModelMetrics) -> int:
    return 0


def test_idle_models_write_no_histograms() -> None:
    text = "".join(render_models([ModelMetrics("idle", "1")], awaits_none))
    assert "_bucket" not in text
    assert parse(text)["nv_inference_request_success"]


def test_tokens_are_written_with_the_padding_that_ran() -> None:
    metrics = used_metrics()
    assert "token" not in "".join(render_models([metrics], awaits_none))
    counts = TokenCounts()
    # Two rows of 20 and 30 tokens that ran together, and one that ran alone.
    counts.add(20, 2, 30)
    counts.add(30, 2, 30)
    counts.add(300, 1, 0)
    counts.tokenizing_ns = 300_000
    metrics.count_tokens(counts)
    samples = parse("".join(render_models([metrics], awaits_none)))
    assert samples["popgate_tokens_total"][model_labels()] == 350
    assert samples["popgate_padded_tokens_total"][model_labels()] == 360
    batches = samples["popgate_batch_tokens_bucket"]
    bounds = {"32.0": 0, "64.0": 1, "256.0": 1, "512.0": 2, "+Inf": 2}
    assert {le: batches[model_labels(le=le)] for le in bounds} == bounds
    assert samples["popgate_batch_tokens_sum"][model_labels()] == 360
    took = samples["popgate_tokenizing_duration_seconds_sum"]
    assert took[model_labels()] == 0.0003


def test_no_models_is_valid_text() -> None:
    assert parse("".join(render_models([], awaits_none))) == {}


def test_labels_are_escaped() -> None:
    hostile = 'a"b\\c\nd'
    assert escape_label(hostile) == 'a\\"b\\\\c\\nd'
    text = "".join(render_models([ModelMetrics(hostile, "1")], awaits_none))
    text += "".join(render_families([Family("x", "gauge", "X", [({"l": hostile}, 1)])]))
    samples = parse(text)
    assert (("l", hostile),) in samples["x"]
    assert (("model", hostile), ("version", "1")) in samples["nv_inference_count"]
