"""Text models asked as clients of OpenAI, Jina, Cohere and TEI ask.

Covers: plugins/text/src/popgate_text/routes.py,
plugins/text/src/popgate_text/openai.py, plugins/text/src/popgate_text/tei.py,
plugins/text/src/popgate_text/requests.py.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from app.settings import Settings
from tests.app.served import ServedGateway
from tests.engine import models

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from plugins.text.tests.folders import HIDDEN, classifier_folder, embedding_folder
from popgate_text.routes import routes

TEXTS = ["the cat sits on the mat", "a fast model"]
EMBEDDINGS = "/openai/v1/embeddings"
RANKING = {"model": "rank", "query": "cat", "documents": ["cat", "mat"]}
KEYS = f"""
[[key]]
name = "shop"
sha256 = "{hashlib.sha256(b"shop-key").hexdigest()}"
models = ["unit"]
groups = ["infer", "metadata"]

[[key]]
name = "ranks"
sha256 = "{hashlib.sha256(b"rank-key").hexdigest()}"
models = ["rank"]
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    embedding_folder(root / "unit")
    classifier_folder(root / "classes", ["good", "bad", "ugly"])
    classifier_folder(root / "rank", ["score"])
    models.affine(root / "plain.popef")
    return root


@pytest.fixture(scope="module")
def served(
    root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServedGateway]:
    cache = str(tmp_path_factory.mktemp("cache"))
    options = ("--devices", "cpu:1", "--cache-dir", cache, "--tei", "unit")
    with ServedGateway(root, *options, "--openai-root") as gateway:
        yield gateway.wait_ready()


def post(gateway: ServedGateway, path: str, **body: Any) -> httpx.Response:
    return gateway.client.post(path, json=body)


def test_vectors_come_as_floats_and_as_base64(served: ServedGateway) -> None:
    found = post(served, EMBEDDINGS, model="unit", input=TEXTS).json()
    assert (found["object"], found["model"]) == ("list", "unit")
    assert found["usage"] == {"prompt_tokens": 13, "total_tokens": 13}
    floats = [row["embedding"] for row in found["data"]]
    assert [row["index"] for row in found["data"]] == [0, 1]
    coded = post(
        served, "/v1/embeddings", model="unit", input=TEXTS, encoding_format="base64"
    ).json()
    raw = [base64.b64decode(row["embedding"]) for row in coded["data"]]
    vectors = [np.frombuffer(one, "<f4") for one in raw]
    np.testing.assert_allclose(vectors, floats, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)


def test_a_model_may_be_named_as_a_hub_names_it(served: ServedGateway) -> None:
    found = post(served, EMBEDDINGS, model="org/unit", input="a cat", dimensions=4)
    assert len(found.json()["data"][0]["embedding"]) == 4


def test_a_large_or_compressed_body_names_its_model(served: ServedGateway) -> None:
    texts = ["the cat sits on the mat " * 9] * 2000
    found = post(served, EMBEDDINGS, model="unit", input=texts)
    assert len(found.json()["data"]) == 2000
    body = gzip.compress(json.dumps({"model": "unit", "input": "a"}).encode())
    headers = {"content-encoding": "gzip"}
    answer = served.client.post(EMBEDDINGS, content=body, headers=headers)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    ("body", "status", "code", "why"),
    [
        ({"input": "a"}, 400, "invalid_request", "'model' is missing"),
        ({"model": "nix", "input": "a"}, 404, "model_not_found", "nix"),
        ({"model": "unit"}, 400, "invalid_request", "'input' is missing"),
        ({"model": "unit", "input": ""}, 400, "empty_input", "empty string"),
        ({"model": "unit", "input": []}, 400, "empty_input", "empty"),
        ({"model": "unit", "input": [[1, 2]]}, 400, "invalid_request", "takes texts"),
        ({"model": "unit", "input": 3}, 400, "invalid_request", "must be a string"),
        ({"model": "unit", "input": "a", "encoding_format": "x"}, 400, "", "base64"),
        ({"model": "unit", "input": "\ud800"}, 400, "", ""),
        ({"model": "plain", "input": "a"}, 424, "wrong_model_kind", "not a text model"),
        ({"model": "rank", "input": "a"}, 424, "wrong_model_kind", "reranker"),
        ({"model": "unit", "input": ["a"] * 2049}, 400, "", "2048"),
        ({"model": "unit", "input": ["a"] * 65537}, 400, "invalid_input", "65536"),
    ],
)
def test_errors_are_openais(
    served: ServedGateway, body: Any, status: int, code: str, why: str
) -> None:
    content = json.dumps(body)
    answer = served.client.post(EMBEDDINGS, content=content)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert error["type"] == "invalid_request_error"
    assert why in error["message"]
    assert error["code"] == code or not code
    assert answer.headers["x-should-retry"] == "false"


def test_the_list_has_text_models_only(served: ServedGateway) -> None:
    found = served.client.get("/openai/v1/models").json()
    assert [one["id"] for one in found["data"]] == ["classes", "rank", "unit"]
    assert served.client.get("/openai/v1/models/unit").json()["object"] == "model"
    unknown = served.client.get("/openai/v1/models/plain")
    assert unknown.status_code == 404
    assert unknown.json()["error"]["code"] == "model_not_found"  # clients print it


def test_documents_are_ranked_in_each_form(served: ServedGateway) -> None:
    query, documents = "a cat", ["dog runs", "the cat sits", "what is a model"]
    body = {"model": "rank", "query": query, "documents": documents}
    jina = post(served, "/openai/v1/rerank", **body, return_documents=True).json()
    order = [one["index"] for one in jina["results"]]
    scores = [one["relevance_score"] for one in jina["results"]]
    assert sorted(order) == [0, 1, 2]
    assert scores == sorted(scores, reverse=True)
    assert jina["results"][0]["document"] == {"text": documents[order[0]]}
    cohere = post(served, "/v2/rerank", **body, top_n=2).json()
    assert [one["index"] for one in cohere["results"]] == order[:2]
    path = "/v1/models/rank/rerank"
    tei = post(served, path, query=query, texts=documents, return_text=True).json()
    assert [one["index"] for one in tei] == order
    np.testing.assert_allclose([one["score"] for one in tei], scores, atol=1e-6)
    assert tei[0]["text"] == documents[order[0]]


def test_infinitys_documents_are_strings_and_tritons_input_has_an_alias(
    served: ServedGateway,
) -> None:
    body = {"model": "rank", "query": "a cat", "documents": ["dog", "the cat"]}
    found = post(served, "/infinity/rerank", **body, return_documents=True).json()
    assert {one["document"] for one in found["results"]} == {"dog", "the cat"}
    tensor = {"name": "input_text", "shape": [2], "datatype": "BYTES", "data": TEXTS}
    answer = post(served, "/v1/models/unit/infer", inputs=[tensor])
    assert answer.json()["outputs"][0]["shape"] == [2, HIDDEN]


def test_tei_embeds_for_the_model_that_was_named(served: ServedGateway) -> None:
    answer = post(served, "/embed", inputs=TEXTS[0])
    (vector,) = answer.json()
    assert len(vector) == HIDDEN
    assert answer.headers["x-compute-tokens"] == "8"
    assert answer.headers["x-compute-characters"] == str(len(TEXTS[0]))
    raw = post(served, "/v1/models/unit/embed", inputs=TEXTS, normalize=False).json()
    length = np.linalg.norm(raw[0])
    np.testing.assert_allclose(np.array(raw[0]) / length, vector, atol=1e-5)
    assert post(served, "/", inputs="a cat").status_code == 200


def test_tei_predicts_and_compares(served: ServedGateway) -> None:
    path = "/v1/models/classes/predict"
    one = post(served, path, inputs="a cat").json()
    assert {pair["label"] for pair in one} == {"good", "bad", "ugly"}
    assert sum(pair["score"] for pair in one) == pytest.approx(1, abs=1e-5)
    many = post(served, path, inputs=[["a cat", "a dog"], ["a", "dog"]]).json()
    assert len(many) == 2
    sentences = {"source_sentence": "a cat", "sentences": ["a cat", "dog"]}
    same, other = post(served, "/similarity", inputs=sentences).json()
    assert same == pytest.approx(1, abs=1e-5)
    assert other < 1


def test_tei_tokenizes_and_tells_what_it_is(served: ServedGateway) -> None:
    (tokens,) = post(served, "/tokenize", inputs="the cat").json()
    assert [token["text"] for token in tokens] == ["[CLS]", "the", "cat", "[SEP]"]
    assert (tokens[0]["start"], tokens[1]["start"], tokens[2]["stop"]) == (None, 0, 7)
    ids = [token["id"] for token in tokens]
    assert post(served, "/decode", ids=ids).json() == ["the cat"]
    for path, field in (("/tokenize", "inputs"), ("/decode", "ids")):
        rows: list[Any] = ["cat"] * 2049 if field == "inputs" else [[5]] * 2049
        answer = post(served, path, **{field: rows})
        assert (answer.status_code, "2048" in answer.text) == (422, True)
    info = served.client.get("/info").json()
    assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    assert info["max_input_length"] == 64


@pytest.mark.parametrize(
    ("path", "body", "status", "kind"),
    [
        ("/embed", {"inputs": ""}, 400, "Empty"),
        ("/embed", {"inputs": {"a": 1}}, 422, "Validation"),
        ("/embed", {"inputs": "cat " * 99, "truncate": False}, 422, "Validation"),
        ("/rerank", {"query": "a", "texts": ["b"]}, 424, "Backend"),
        ("/rerank", {"query": "", "texts": ["b"]}, 400, "Empty"),
        ("/rerank", {"texts": ["b"]}, 422, "Validation"),
        ("/embed_sparse", {"inputs": "a"}, 424, "Backend"),
    ],
)
def test_errors_are_teis(
    served: ServedGateway, path: str, body: Any, status: int, kind: str
) -> None:
    answer = post(served, path, **body)
    assert answer.status_code == status, answer.text
    assert answer.json()["error_type"] == kind


@pytest.mark.parametrize(
    ("path", "body", "code"),
    [
        (EMBEDDINGS, {"model": "unit", "input": []}, "empty_input"),
        ("/v2/rerank", RANKING | {"top_n": 0}, "invalid_request"),
        ("/v1/models/unit/tokenize", {"inputs": 5}, "Validation"),
    ],
)
def test_errors_are_counted_and_logged_with_the_codes_of_their_forms(
    served: ServedGateway, path: str, body: dict[str, Any], code: str
) -> None:
    answer = served.client.post(path, json=body)
    assert answer.status_code in (400, 422)
    counted = f'popgate_http_responses_total{{code="{code}",'
    assert counted in served.client.get("/metrics").text
    line = served.wait_line(f" id={answer.headers['x-request-id']} ")
    assert f" code={code} error=" in line


def test_an_alias_is_no_missing_input(served: ServedGateway) -> None:
    answer = post(served, "/v1/models/rank/infer", inputs={"text": ["a"]})
    assert answer.status_code == 400
    assert "missing required input(s) ['text_pair']." in answer.text


def test_the_same_settings_have_the_same_routes() -> None:
    first, again, named = map(routes, (Settings(), Settings(), Settings(tei="small")))
    assert first.router is again.router
    assert len(named.router.routes) > len(first.router.routes)


def test_the_document_has_the_routes(served: ServedGateway) -> None:
    paths = served.client.get("/openapi.json").json()["paths"]
    wanted = {EMBEDDINGS, "/v2/rerank", "/v1/models/{name}/embed", "/embed"}
    assert wanted <= paths.keys()


def test_examples_of_the_document_work_as_they_stand(served: ServedGateway) -> None:
    paths = served.client.get("/openapi.json").json()["paths"]
    asked: dict[str, set[str]] = {}
    for path, operations in paths.items():
        operation = operations.get("post", {})
        if not any(tag.startswith("text:") for tag in operation.get("tags", ())):
            continue
        content = operation["requestBody"]["content"]["application/json"]
        examples = content.get("examples", {})
        if "{name}" in path and examples:
            # The others are headers, which all operations have.
            (parameter,) = (p for p in operation["parameters"] if "$ref" not in p)
            assert parameter["examples"].keys() == examples.keys()
        for name, example in examples.items():
            answer = post(served, path.format(name=name), **example["value"])
            assert answer.status_code == 200, (path, name, answer.text)
            asked.setdefault(path.rpartition("/")[2], set()).add(name)
    text = {"unit", "rank", "classes"}
    assert asked == {
        "embeddings": {"unit"}, "embed": {"unit"}, "embed_all": {"unit"},
        "similarity": {"unit"},
        "rerank": {"rank"}, "predict": {"rank", "classes"},
        "tokenize": text, "decode": text,
    }  # fmt: skip


def test_a_key_opens_its_models_only(root: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    options = ("--devices", "cpu:1", "--keys", str(keys), "--cache-dir", str(tmp_path))
    with ServedGateway(root, *options, "--tei", "unit") as gateway:
        gateway.until("/v1/health/ready", 200)
        client, body = gateway.client, {"model": "unit", "input": "a cat"}
        refused = client.post(EMBEDDINGS, json=body)
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "authentication_error"
        client.headers["authorization"] = "Bearer shop-key"
        assert client.post(EMBEDDINGS, json=body).status_code == 200
        ranked = {"model": "rank", "query": "a", "documents": ["b"]}
        assert client.post("/openai/v1/rerank", json=ranked).status_code == 403
        path = "/v1/models/rank/rerank"
        answer = client.post(path, json={"query": "a", "texts": ["b"]})
        assert answer.status_code == 403
        listed = client.get("/openai/v1/models").json()["data"]
        assert [one["id"] for one in listed] == ["unit"]
        assert client.get("/openai/v1/models/unit").json() == listed[0]
        hidden = client.get("/openai/v1/models/rank")
        assert hidden.status_code == 404
        assert hidden.json()["error"]["code"] == "model_not_found"
        for path in ("/tokenize", "/v1/models/unit/tokenize"):
            assert client.post(path, json={"inputs": "a cat"}).status_code == 200
        assert client.post("/decode", json={"ids": [4]}).json() == ["the"]
        # The page is no inference, which POST to the same path is.
        page = client.get("/")
        assert (page.status_code, "the pages" in page.text) == (403, True)
        assert client.post("/", json={"inputs": "a cat"}).status_code == 200
        client.headers["authorization"] = "Bearer rank-key"
        bodies: dict[str, Any] = {"tokenize": {"inputs": "a"}, "decode": {"ids": [4]}}
        answers = [client.post(f"/{path}", json=bodies[path]) for path in bodies]
        for answer in (*answers, client.get("/info")):
            assert answer.status_code == 403
            why = "key 'ranks' does not allow model 'unit'"
            assert answer.json() == {"error": why, "error_type": "Backend"}


def test_token_routes_wait_for_the_model_and_say_when_it_is_not_there(
    root: Path, tmp_path: Path
) -> None:
    """Before, the server answered 424 for a text model that it had not loaded yet."""
    options = ("--devices", "cpu:1", "--cache-dir", str(tmp_path), "--lazy")
    with ServedGateway(root, *options) as gateway:
        gateway.wait_ready()
        listed = gateway.client.get("/openai/v1/models").json()["data"]
        assert [one["id"] for one in listed] == ["classes", "rank", "unit"]
        assert gateway.client.get("/openai/v1/models/rank").json() in listed
        assert gateway.client.get("/openai/v1/models/plain").status_code == 404
        found = post(gateway, "/v1/models/unit/decode", ids=[5, 15])
        assert (found.status_code, found.json()) == (200, ["a cat"])
        gateway.client.post("/v1/models/unit/unload").raise_for_status()
        for path, body in (("tokenize", {"inputs": "a"}), ("decode", {"ids": [5]})):
            found = post(gateway, f"/v1/models/unit/{path}", **body)
            assert found.status_code == 503, found.text
            assert found.json()["error_type"] == "Unhealthy"
            assert found.headers["retry-after"] == "1"
        assert gateway.client.get("/v1/models/unit/info").status_code == 503
        found = post(gateway, "/v1/models/plain/tokenize", inputs="a")
        assert found.status_code == 424
