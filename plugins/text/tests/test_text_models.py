"""Folders of text models, served: vectors and scores are those of the graph itself.

Covers: plugins/text/src/popgate_text/format.py,
plugins/text/src/popgate_text/scheduler.py,
plugins/text/src/popgate_text/joining.py,
plugins/text/src/popgate_text/conversion.py,
plugins/text/src/popgate_text/tokenizer.py.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnxruntime
import pytest

from tests.app.served import ServedGateway, run_popgate

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from plugins.text.tests.folders import (
    HIDDEN,
    WORDS,
    classifier_folder,
    embedding_folder,
    splade_folder,
    write_tokenizer,
)

TEXTS = ["the cat sits on the mat", "a fast model", "dog", "what is a batch of text"]
MODES = ("cls", "mean", "max", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")

PAST_TOKENIZER = "a plugin converts its requests first"
CHAIN = """
[[ensemble.step]]
model = "unit"
"""


def tokens_of(folder: Path, text: str) -> np.ndarray[Any, Any]:
    """Token vectors of one text, by ONNX Runtime alone."""
    encoding = write_tokenizer(folder.parent / "tokenizer").encode(text)
    paths = (folder / "onnx" / "model.onnx", folder / "model.onnx")
    session = onnxruntime.InferenceSession(next(p for p in paths if p.is_file()))
    ids = np.array([encoding.ids], np.int64)
    feed = {
        "input_ids": ids,
        "attention_mask": np.ones_like(ids),
        "token_type_ids": np.array([encoding.type_ids], np.int64),
    }
    found: np.ndarray[Any, Any] = session.run(None, feed)[0][0]
    return found.astype(np.float64)


def pooled(mode: str, tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    count = len(tokens)
    places = np.arange(1, count + 1)[:, None]
    by_mode = {
        "cls": tokens[0],
        "mean": tokens.mean(0),
        "max": tokens.max(0),
        "mean_sqrt_len_tokens": tokens.sum(0) / np.sqrt(count),
        "weightedmean": (tokens * places).sum(0) / places.sum(),
        "lasttoken": tokens[-1],
    }
    found: np.ndarray[Any, Any] = by_mode[mode]
    return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    for mode in MODES:
        embedding_folder(root / mode, {"pooling_mode": mode}, names=("Pooling",))
    for name in ("unit", "lengths", "single"):
        embedding_folder(root / name)
    classifier_folder(root / "classes", ["good", "bad", "ugly"])
    classifier_folder(root / "rank", ["score"])
    splade_folder(root / "sparse")
    (root / "chain").mkdir()
    (root / "chain" / "config.toml").write_text(CHAIN)
    return root


@pytest.fixture(scope="module")
def served(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    cache = str(tmp_path_factory.mktemp("cache"))
    with ServedGateway(root, "--devices", "cpu:1", "--cache-dir", cache) as gateway:
        yield gateway.wait_ready()


def vectors(gateway: ServedGateway, name: str, texts: list[str], **options: Any) -> Any:
    body = {"inputs": {"text": texts}, "parameters": options}
    answer: httpx.Response = gateway.client.post(f"/v1/models/{name}/infer", json=body)
    assert answer.status_code == 200, answer.text
    (output,) = answer.json()["outputs"]
    return np.array(output["data"]).reshape(output["shape"])


@pytest.mark.parametrize("mode", MODES)
def test_vectors_are_pooled_as_the_folder_says(
    served: ServedGateway, root: Path, mode: str
) -> None:
    expected = [pooled(mode, tokens_of(root / mode, text)) for text in TEXTS]
    np.testing.assert_allclose(vectors(served, mode, TEXTS), expected, atol=1e-5)


def test_vectors_are_normalised_as_the_folder_or_the_request_says(
    served: ServedGateway, root: Path
) -> None:
    raw = np.array([pooled("mean", tokens_of(root / "unit", text)) for text in TEXTS])
    unit = raw / np.linalg.norm(raw, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(served, "unit", TEXTS), unit, atol=1e-5)
    found = vectors(served, "unit", TEXTS, normalize=False)
    np.testing.assert_allclose(found, raw, atol=1e-5)
    found = vectors(served, "unit", TEXTS, dimensions=4)
    short = raw[:, :4] / np.linalg.norm(raw[:, :4], axis=1, keepdims=True)
    np.testing.assert_allclose(found, short, atol=1e-5)


def test_many_texts_of_one_request_are_joined_in_order(served: ServedGateway) -> None:
    texts = [" ".join(TEXTS[: n % 4 + 1]) for n in range(300)]
    found = vectors(served, "mean", texts)
    assert found.shape == (300, HIDDEN)
    alone = [vectors(served, "mean", [text])[0] for text in texts[:4]]
    np.testing.assert_allclose(found[:4], alone, atol=1e-5)
    np.testing.assert_allclose(found[4:8], found[:4], atol=1e-5)


def test_a_request_of_many_texts_fails_as_a_whole_at_its_deadline(
    served: ServedGateway,
) -> None:
    """Its rows in the device's queue end one by one; each tells the request."""
    (device,) = served.client.get("/v1/devices").json()["devices"]
    body = {"model": "cls", "input": ["the cat"] * 1_000}
    os.kill(device["pid"], signal.SIGSTOP)
    try:
        for _ in range(2):  # the sweep of deadlines goes on
            answer = served.client.post(
                "/openai/v1/embeddings", json=body, headers={"x-request-timeout": "1"}
            )
            assert answer.status_code == 504, answer.text
    finally:
        os.kill(device["pid"], signal.SIGCONT)
    assert len(vectors(served, "cls", ["the cat"] * 600)) == 600


def test_texts_of_many_lengths_share_batches_and_give_the_same_as_alone(
    served: ServedGateway,
) -> None:
    words = np.random.default_rng(0).choice(WORDS, 60)
    texts = [" ".join(words[:count]) for count in range(1, 61)]
    alone = np.concatenate([vectors(served, "lengths", [text]) for text in texts])
    # Of one client no two texts have the same length.
    orders = [np.random.default_rng(n).permutation(60) for n in range(8)]
    with ThreadPoolExecutor(len(orders)) as clients:
        together = clients.map(
            lambda order: vectors(served, "lengths", [texts[n] for n in order]), orders
        )
        for order, found in zip(orders, together, strict=True):
            np.testing.assert_allclose(found, alone[order], atol=1e-5)
    found = vectors(served, "single", texts)
    np.testing.assert_allclose(found, alone, atol=1e-5)
    answer = served.client.get("/v2/models/single/stats").json()
    sizes = [one["batch_size"] for one in answer["model_stats"][0]["batch_stats"]]
    assert max(sizes) > 1  # of one request, so of several lengths


def test_all_tokens_have_a_vector_if_asked_for(
    served: ServedGateway, root: Path
) -> None:
    """Token vectors are the graph's own, beside requests that want whole vectors."""
    texts = [" ".join(WORDS[:count]) for count in (2, 30, 31, 30, 29, 2)]
    expected = [tokens_of(root / "unit", text) for text in texts]

    def tokens(_: int) -> Any:
        body = {"inputs": texts}
        answer = served.client.post("/v1/models/unit/embed_all", json=body)
        assert answer.status_code == 200, answer.text
        count = sum(map(len, expected))
        assert answer.headers["x-compute-tokens"] == str(count)
        return answer.json()

    whole = vectors(served, "unit", texts)
    with ThreadPoolExecutor(4) as clients:
        found = [clients.submit(tokens, n) for n in range(4)]
        others = [clients.submit(vectors, served, "unit", texts) for _ in range(4)]
        for one in found:
            for mine, right in zip(one.result(), expected, strict=True):
                np.testing.assert_allclose(mine, right, atol=1e-5)
        for other in others:
            np.testing.assert_allclose(other.result(), whole, atol=1e-5)
    (one,) = served.client.post(
        "/v1/models/unit/embed_all", json={"inputs": "dog " * 99}
    ).json()
    assert np.shape(one) == (64, HIDDEN)  # as long as texts are cut
    answer = served.client.post("/v1/models/rank/embed_all", json={"inputs": "a"})
    assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")


def test_a_sparse_encoder_weighs_words(served: ServedGateway, root: Path) -> None:
    logits = [tokens_of(root / "sparse", text) for text in TEXTS]
    expected = [np.log1p(np.maximum(one, 0)).max(0) for one in logits]
    np.testing.assert_allclose(vectors(served, "sparse", TEXTS), expected, atol=1e-5)
    path = "/v1/models/sparse/embed_sparse"
    answer = served.client.post(path, json={"inputs": TEXTS})
    for found, right in zip(answer.json(), expected, strict=True):
        (there,) = np.nonzero(right > 0)
        assert [pair["index"] for pair in found] == there.tolist()
        values = [pair["value"] for pair in found]
        np.testing.assert_allclose(values, right[there], atol=1e-5)


@pytest.mark.parametrize("name", [*MODES, "unit", "classes", "rank", "sparse"])
def test_padding_changes_no_text(served: ServedGateway, name: str) -> None:
    reason = served.client.get(f"/v1/models/{name}").json()["batching_reason"]
    assert "rows of different lengths run together" in reason


def test_a_classifier_gives_shares_and_a_reranker_scores(served: ServedGateway) -> None:
    shares = vectors(served, "classes", TEXTS)
    assert shares.shape == (4, 3)
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-5)
    body = {"inputs": {"text": ["a cat"], "text_pair": ["the cat runs"]}}
    raw = {**body, "parameters": {"raw_scores": True}}
    score, plain = (
        served.client.post("/v1/models/rank/infer", json=one).json()["outputs"][0][
            "data"
        ]
        for one in (body, raw)
    )
    np.testing.assert_allclose(score, 1 / (1 + np.exp(-np.array(plain))), atol=1e-5)


def test_validate_says_what_was_understood(root: Path, tmp_path: Path) -> None:
    result = run_popgate("validate", root, "--cache-dir", tmp_path)
    words = " ".join(result.stdout.split())
    assert "embedding of onnx/model.onnx, pooling mean, length 1, 64 tokens" in words
    assert "classifier of model.onnx, 64 tokens a text" in words
    assert "1_Pooling" not in words
    assert PAST_TOKENIZER in words


def test_an_ensemble_may_not_go_past_the_tokenizer(served: ServedGateway) -> None:
    index = served.client.post("/v2/repository/index").json()
    (chain,) = (model for model in index if model["name"] == "chain")
    assert chain["state"] == "UNAVAILABLE"
    assert PAST_TOKENIZER in chain["reason"]


@pytest.mark.parametrize(
    ("inputs", "parameters", "why"),
    [
        ({"text": []}, {}, "at least one text"),
        ({"text": ["a"]}, {"prompt_name": "query"}, "the model has no prompt 'query'"),
        ({"text": ["a"]}, {"dimensions": 17}, "dimensions must be 1 to 16"),
        ({"text": ["a"]}, {"truncate": "no"}, "must be true or false"),
        (
            {"text": ["a cat " * 99]},
            {"truncate": False},
            "has 200 tokens, but the model",
        ),
        ({"text": ["a"] * 3000}, {}, "2048"),
    ],
)
def test_bad_requests_say_what_was_expected(
    served: ServedGateway, inputs: Any, parameters: Any, why: str
) -> None:
    body = {"inputs": inputs, "parameters": parameters}
    answer = served.client.post("/v1/models/unit/infer", json=body)
    assert answer.status_code == 400, answer.text
    assert why in answer.json()["error"]
