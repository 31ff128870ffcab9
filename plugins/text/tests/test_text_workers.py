"""Text models in HTTP workers: each worker tokenizes and submits what it is asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from plugins.workers.tests.conftest import connect, prefix
from tests.app.served import ServedGateway
from tests.engine import models
from tests.support import until

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from app.spec import ModelSpec, TensorSpec
from plugins.text.tests.folders import classifier_folder, embedding_folder
from popgate_text.config import TextConfig
from popgate_text.folder import understand
from popgate_text.scheduler import TextScheduler
from popgate_text.tokenizer import TextTokenizer

EMBEDDINGS = "/openai/v1/embeddings"
ONE: dict[str, Any] = {"model": "unit", "input": "the cat sits"}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    embedding_folder(root / "unit")
    embedding_folder(root / "counted")
    classifier_folder(root / "rank", ["score"])
    models.affine(root / "plain.popef")
    return root


@pytest.fixture(scope="module")
def served(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    cache = str(tmp_path_factory.mktemp("cache"))
    options = ("--devices", "cpu:1", "--cache-dir", cache, "--workers", "2")
    with ServedGateway(root, *options, "--trust-loopback") as gateway:
        yield gateway.wait_ready()


@pytest.fixture
def worker(served: ServedGateway) -> Iterator[httpx.Client]:
    """A connection to a worker that runs the text model itself."""
    supervisor = prefix(served.client.get("/v1/health/live"))
    with connect(served) as client:
        until(lambda: prefix(client.post(EMBEDDINGS, json=ONE)) != supervisor)
        yield client


def test_a_worker_answers_every_form_itself(
    served: ServedGateway, worker: httpx.Client
) -> None:
    mine = prefix(worker.post(EMBEDDINGS, json=ONE))
    vector = worker.post(EMBEDDINGS, json=ONE).json()["data"][0]["embedding"]
    body = {"inputs": {"text": ["the cat sits"]}}
    ranked = {"query": "a cat", "texts": ["dog", "the cat sits"]}
    for path, document in (
        ("/v1/models/unit/infer", body),
        ("/v1/models/unit/embed", {"inputs": "the cat sits"}),
        ("/v1/models/unit/embed_all", {"inputs": "the cat sits"}),
        ("/v1/models/rank/rerank", ranked),
        ("/v2/rerank", {"model": "rank", "query": "a", "documents": ["a cat"]}),
    ):
        answer = worker.post(path, json=document)
        assert answer.status_code == 200, answer.text
        assert prefix(answer) == mine, path
    found = worker.post("/v1/models/unit/infer", json=body).json()["outputs"][0]
    assert found["data"] == pytest.approx(vector, abs=1e-6)
    alias = {"name": "input_text", "shape": [1], "datatype": "BYTES", "data": ["a"]}
    answer = worker.post("/v1/models/unit/infer", json={"inputs": [alias]})
    assert (answer.status_code, prefix(answer)) == (200, mine)


def test_the_supervisor_answers_what_a_worker_cannot(
    served: ServedGateway, worker: httpx.Client
) -> None:
    for path, body, status in (
        ("/v1/models/unit/tokenize", {"inputs": "the cat"}, 200),
        (EMBEDDINGS, {**ONE, "model": "nix"}, 404),
        (EMBEDDINGS, {"input": "a"}, 400),
        (EMBEDDINGS, {**ONE, "input": ["the cat sits on the mat " * 20] * 600}, 200),
    ):
        answer = worker.post(path, json=body)
        assert answer.status_code == status, answer.text
        assert len(answer.headers.get_list("x-request-id")) == 1
    answer = worker.post(EMBEDDINGS, content=b'{"model": "unit", "input": ')
    assert answer.status_code == 400
    assert answer.json()["error"]["type"] == "invalid_request_error"


def figures(served: ServedGateway) -> dict[str, float]:
    """The metrics of tokens of the model `counted`."""
    text = served.client.get("/metrics").text
    lines = [line.rpartition(" ") for line in text.splitlines() if "token" in line]
    return {
        name.partition("{")[0] + name.partition("le=")[2].rstrip("}"): float(value)
        for name, _, value in lines
        if 'model="counted"' in name
    }


def test_tokens_are_summed_over_all_processes(
    served: ServedGateway, worker: httpx.Client
) -> None:
    """Requests of a worker and of the supervisor count together, each once."""
    one = {"model": "counted", "input": "the cat sits"}  # 5 tokens
    prefixes = {prefix(worker.post(EMBEDDINGS, json=one)) for _ in range(4)}
    # A worker hands a large one on to the supervisor: 60 texts of 64 tokens.
    large = {"model": "counted", "input": ["the cat sits on the mat " * 400] * 60}
    answer = worker.post(EMBEDDINGS, json=large)
    prefixes.add(prefix(answer))
    assert len(prefixes) == 2
    tokens = 4 * 5 + 60 * 64
    assert answer.json()["usage"]["prompt_tokens"] == 60 * 64
    found = figures(served)
    assert found["popgate_tokens_total"] == tokens
    assert found["popgate_padded_tokens_total"] == tokens  # all of one length
    assert found["popgate_batch_tokens_sum"] == tokens
    assert found['popgate_batch_tokens_bucket"8.0"'] == 4
    assert found["popgate_batch_tokens_count"] >= 4 + 60 * 64 // 256
    assert found["popgate_tokenizing_duration_seconds_count"] == 5


def test_padding_is_counted_as_it_ran(served: ServedGateway) -> None:
    before = figures(served)
    # 18 and 20 tokens run as one batch of two rows: one tenth may be padding.
    texts = ["the " * 16, "the " * 18]
    body = {"model": "counted", "input": texts}
    while True:
        served.client.post(EMBEDDINGS, json=body).raise_for_status()
        now = figures(served)
        tokens, padded = (
            now[name] - before[name]
            for name in ("popgate_tokens_total", "popgate_padded_tokens_total")
        )
        assert tokens <= padded <= tokens / 38 * 40
        if padded > tokens:  # one time or another they have run together
            break


def test_what_is_unloaded_is_so_in_workers(
    served: ServedGateway, worker: httpx.Client
) -> None:
    worker.post("/v1/models/unit/unload").raise_for_status()
    assert worker.post(EMBEDDINGS, json=ONE).status_code in (404, 503)
    worker.post("/v1/models/unit/load").raise_for_status()
    assert worker.post(EMBEDDINGS, json=ONE).status_code == 200


def test_a_worker_refuses_a_tokenizer_that_has_changed(tmp_path: Path) -> None:
    folder = embedding_folder(tmp_path / "unit")
    options = TextConfig()
    model = understand(folder, options)
    spec = ModelSpec(
        "unit",
        "1",
        (TensorSpec.make("input_ids", "INT64", (-1, -1)),),
        (TensorSpec.make("embedding", "FP32", (-1, 16)),),
    )
    runner: Any = None
    tokenizer = TextTokenizer(folder, model)
    first = TextScheduler(spec, runner, model, tokenizer, options)
    shared = first.shared
    again = TextScheduler.from_shared(shared.spec, runner, shared.description)
    assert (again.model, again.config) == (first.model, first.config)
    assert again.visible.inputs == first.visible.inputs
    assert again.visible.outputs == first.visible.outputs
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace('"cat"', '"cow"'))
    with pytest.raises(ValueError, match=r"tokenizer.json has changed"):
        TextScheduler.from_shared(shared.spec, runner, shared.description)
