"""Search over the documentation: models made in seconds, index, query, rerank.

Covers: examples/search/make_models.py, examples/search/search.py.
"""

from __future__ import annotations

import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from popgate import Client
from tests.app.served import ServedGateway

pytest.importorskip("tokenizers")

ROOT = Path(__file__).resolve().parents[2]
DOCS, SEARCH = ROOT / "docs", ROOT / "examples" / "search"
#: A sentence, one that says nearly the same, and one that does not.
NEAR = (
    ("the server answers 429 when its queue is full",
     "requests beyond the queue's limit get 429",
     "a tokenizer cuts words into pieces"),
    ("keys limit requests a second",
     "an API key has a rate of requests",
     "the graph is compiled to ONNX"),
    ("a device process dies and is started again",
     "the device is restarted after its process ended",
     "vectors are normalised to length 1"),
    ("rows of several requests run in one batch",
     "requests are batched together by the device",
     "certificates are rotated without a restart"),
    ("send tensors as binary data",
     "binary tensors travel in the request body",
     "the log has one line a request"),
    ("gradients of a PopXL program",
     "popxl computes gradients with autodiff",
     "a worker takes connections"),
)  # fmt: skip
QUERIES = {
    "which metrics does Prometheus scrape": ("observe.md", "metrics.md"),
    "load models from S3 buckets": ("load-from-buckets.md",),
    "TLS certificates and keys": ("secure.md", "configuration.md"),
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    make = runpy.run_path(str(SEARCH / "make_models.py"))["make"]
    folder = tmp_path_factory.mktemp("search")
    make(DOCS, folder / "models")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    assert size < 4_000_000
    options = ("--devices", "cpu:1", "--cache-dir", str(folder / "cache"))
    with ServedGateway(folder / "models", *options) as gateway:
        gateway.wait_ready()
        with Client(gateway.url) as client:
            yield client


@pytest.fixture(scope="module")
def index(client: Client) -> Any:
    found = runpy.run_path(str(SEARCH / "search.py"))
    return found["Index"](client, found["sections"](DOCS))


@pytest.mark.parametrize("texts", NEAR)
def test_near_sentences_have_near_vectors(
    client: Client, texts: tuple[str, str, str]
) -> None:
    one, near, far = client.embed("encoder", texts)
    assert np.linalg.norm(one) == pytest.approx(1, abs=1e-5)
    assert one @ near > one @ far + 0.1
    best, last = client.rerank("reranker", texts[0], texts[1:])
    assert (best.text, last.text) == (texts[1], texts[2])
    assert 0 <= last.score < best.score <= 1


@pytest.mark.parametrize("query", QUERIES)
def test_a_query_finds_the_page_it_is_about(index: Any, query: str) -> None:
    found = index.search(query)
    assert len(found) == 5
    scores = [score for score, _ in found]
    assert scores == sorted(scores, reverse=True)
    pages = {Path(one.page).name for _, one in found}
    assert pages & set(QUERIES[query]), pages
