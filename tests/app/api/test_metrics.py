"""`/metrics` of a real server, and those that name what is in it: the documentation,
the dashboard for Grafana and the manifest that scales by it.

Covers: app/api/routes/metrics.py.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as read_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as read_text

from tests.app.served import ROOT, ServedGateway
from tests.support import until

#: What Prometheus itself sends, of its versions 2.50 and 3.
ACCEPT = (
    "application/openmetrics-text;version=1.0.0;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3"
)
ROW = [[1.0, 2.0, 3.0, 4.0]]
#: What Prometheus adds to every sample; `pod` is of Kubernetes.
TARGET_LABELS = {"instance", "job", "pod"}
#: Words of PromQL in our queries that are no metrics.
WORDS = {"sum", "avg", "min", "count", "rate", "increase", "histogram_quantile"}
WORDS |= {"changes", "time", "max", "or", "on", "group_left", "bool"}
#: Not every server has these; plugins/workers/tests, plugins/text/tests and
#: tests/app/http/test_tls.py see them.
ELSEWHERE = {
    "popgate_tokens_total": set[str](),
    "popgate_padded_tokens_total": set[str](),
    "popgate_batch_tokens": set[str](),
    "popgate_tokenizing_duration_seconds": set[str](),
    "popgate_worker_up": {"worker"},
    "popgate_worker_restarts_total": {"worker"},
    "popgate_certificate_expiry_timestamp_seconds": set[str](),
    "popgate_repository_poll_failures_total": set[str](),
    "popgate_repository_last_poll_timestamp_seconds": set[str](),
    "popgate_remote_failures_total": {"model"},
    "popgate_remote_last_success_timestamp_seconds": {"model"},
}

#: Labels that a legend may show where the query keeps all.
SHOWN = {"instance", "device", "process"}
#: Labels that not every server has.
OPTIONAL = {"popgate_http_responses_total": {"key"}}


def series(text: str) -> dict[str, set[str]]:
    """The names of all samples, and their labels; of the text format, whose names are
    those that Prometheus stores."""
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name = re.match(r"\w+", line)
            assert name is not None
            (family,) = read_text(line + "\n")
            (sample,) = family.samples
            found.setdefault(name[0], set()).update(sample.labels)
    return found


@pytest.fixture(scope="module")
def known(gateway: ServedGateway) -> dict[str, set[str]]:
    gateway.infer("affine", input=ROW)
    assert gateway.client.post("/v1/models/affine/infer", content="{").is_error
    response = gateway.client.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
    return series(response.text)


def test_documentation_has_every_name(known: dict[str, set[str]]) -> None:
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    tables = re.findall(r"^\| name \|.*\n((?:\|.*\n)+)", text, re.MULTILINE)
    cells = [row.split("|")[1] for table in tables for row in table.splitlines()]
    told: dict[str, set[str]] = {}
    for name, labels in re.findall(r"`(\w+)(?:\{([\w,]+)\})?`", "".join(cells)):
        told[name] = set(labels.split(",")) - {""}
    served: dict[str, set[str]] = {}
    for name, labels in known.items():
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        base = base if f"{base}_bucket" in known else name
        served.setdefault(base, set()).update(labels - {"le"})
    assert set(told) - set(ELSEWHERE) == set(served)
    for name, labels in served.items():
        # Those of models are told once, for all of them.
        labels |= OPTIONAL.get(name, set())
        assert labels == told[name] or labels == told[name] | {"model", "version"}, name


def dashboard() -> dict[str, Any]:
    found = json.loads((ROOT / "deploy/grafana/popgate.json").read_text())
    assert isinstance(found, dict)
    return found


def queries() -> Iterator[str]:
    """Every expression of the dashboard, of the alerts, and that of KEDA."""
    board = dashboard()
    for panel in board["panels"]:
        for target in panel["targets"]:
            yield target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]
    rules = yaml.safe_load((ROOT / "deploy/prometheus/popgate.rules.yaml").read_text())
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["expr"]
    path = ROOT / "deploy/kubernetes/keda/scaledobject.yaml"
    for trigger in yaml.safe_load(path.read_text())["spec"]["triggers"]:
        yield trigger["metadata"]["query"]


@pytest.mark.parametrize("query", sorted(set(queries())))
def test_queries_name_what_is_there(query: str, known: dict[str, set[str]]) -> None:
    grouped = set(re.findall(r"by \(([\w, ]+)\)", query))
    labels = {word.strip() for group in grouped for word in group.split(",")}
    shown = re.match(r"label_values\((\w+).*, (\w+)\)", query)
    bare = re.sub(r"(?:by|on) \([\w, ]+\)|\{[^}]*\}|\[[^]]*\]", "", query)
    if shown is not None:
        labels, bare = {shown[2]}, shown[1]
    known = known | ELSEWHERE | {"up": set()}
    names = set(re.findall(r"\b[a-z]\w+", bare)) - WORDS
    assert names
    assert names <= set(known)
    there = set().union(*(known[name] for name in names)) | TARGET_LABELS
    there = there.union(*(OPTIONAL.get(name, set()) for name in names))
    assert labels <= there
    for name, matchers in re.findall(r"(\w+)\{([^}]*)\}", query):
        asked = set(re.findall(r"(\w+)=~?\"", matchers))
        assert asked <= known[name] | TARGET_LABELS, name


def test_the_dashboard_hangs_together() -> None:
    board = dashboard()
    panels = board["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        shown = [t["legendFormat"] for t in panel["targets"]]
        labels = {word for text in shown for word in re.findall(r"\{\{(\w+)", text)}
        asked = " ".join(t["expr"] for t in panel["targets"])
        assert labels <= set(re.findall(r"\w+", asked)) | {
            "instance",
            "device",
            "process",
        }
    variables = {v["name"] for v in board["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels)))
    assert used - {"__rate_interval"} == variables


def test_openmetrics_has_exemplars_and_the_same_names(
    gateway: ServedGateway, known: dict[str, set[str]]
) -> None:
    headers = {"x-request-id": "one-that-is-looked-for"}
    path = "/v1/models/affine/infer"
    gateway.client.post(path, json={"inputs": {"input": ROW}}, headers=headers)
    response = gateway.client.get("/metrics", headers={"accept": ACCEPT})
    kind = "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert response.headers["content-type"] == kind
    families = list(read_openmetrics(response.text))  # type: ignore[no-untyped-call]
    samples = [sample for family in families for sample in family.samples]
    assert {sample.name for sample in samples} == set(known)
    ids = {
        sample.exemplar.labels["request_id"]
        for sample in samples
        if sample.exemplar is not None and sample.labels["model"] == "affine"
    }
    assert "one-that-is-looked-for" in ids


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", "text/plain"),
        ("text/plain", "text/plain"),
        ("application/openmetrics-text;q=0, text/plain", "text/plain"),
        ("APPLICATION/OpenMetrics-Text; q=0.1", "application/openmetrics-text"),
    ],
)
def test_who_gets_openmetrics(gateway: ServedGateway, accept: str, kind: str) -> None:
    response = gateway.client.get("/metrics", headers={"accept": accept})
    assert response.headers["content-type"].startswith(kind)
    assert response.text.endswith("# EOF\n") == (kind != "text/plain")


def test_devices_are_busy(gateway: ServedGateway) -> None:
    """Counted by the device, whatever became of the requests, and shown as a share."""

    def value(name: str) -> float:
        text = gateway.client.get("/metrics").text
        found = re.search(rf"^{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)
        assert found is not None
        return float(found[1])

    before = value("popgate_device_busy_seconds_total")

    def ask_until_it_shows() -> bool:
        gateway.infer("affine", input=ROW)
        return 0 < value("popgate_device_utilization") <= 1

    until(ask_until_it_shows)
    assert value("popgate_device_busy_seconds_total") > before
