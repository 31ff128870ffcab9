"""Vectors are sentence-transformers' own, and stock clients work unmodified.

Their packages (torch among them) are in environments of their own, one for each
client, which `make test-text` makes. Without them only the clients run that the tests'
own environment has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.app.served import ServedGateway

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from plugins.text.tests.folders import (
    classifier_folder,
    embedding_folder,
    write_tokenizer,
)

PEERS = Path(__file__).parent / "peers"
#: Packages of the clients, which are the names of their environments.
CLIENTS = (
    "openai", "langchain-openai", "llama-index-embeddings-openai", "cohere",
    "huggingface_hub", "litellm",
)  # fmt: skip
#: What is imported, if its name is another one.
MODULES = {
    "langchain-openai": "langchain_openai",
    "llama-index-embeddings-openai": "llama_index",
}


def python_of(variable: str) -> str:
    found = os.environ.get(variable)
    if not found:
        pytest.skip(f"{variable} names no interpreter; run make test-text")
    return found


def run(python: str, script: str, *arguments: str) -> str:
    done = subprocess.run(
        [python, PEERS / script, *arguments],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        env={**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    assert done.returncode == 0, done.stdout + done.stderr[-4000:]
    return done.stdout


def test_vectors_are_those_of_sentence_transformers(tmp_path: Path) -> None:
    python = python_of("POPGATE_TEXT_FOLDERS")
    write_tokenizer(tmp_path / "tokenizer")
    tokenizer, root = tmp_path / "tokenizer" / "tokenizer.json", tmp_path / "models"
    printed = run(python, "write_folders.py", str(tokenizer), str(root))
    expected = json.loads(printed.splitlines()[-1])
    options = ("--devices", "cpu:1", "--cache-dir", str(tmp_path / "cache"))
    with ServedGateway(root, *options) as gateway:
        gateway.wait_ready()
        for name, vectors in expected["vectors"].items():
            body = {"model": name, "input": expected["texts"]}
            answer = gateway.client.post("/openai/v1/embeddings", json=body)
            assert answer.status_code == 200, f"{name}: {answer.text}"
            found = [row["embedding"] for row in answer.json()["data"]]
            np.testing.assert_allclose(found, vectors, atol=1e-5, err_msg=name)
        texts, query = expected["texts"], expected["query"]

        def asked(path: str, **body: Any) -> Any:
            answer = gateway.client.post(f"/v1/models/{path}", json=body)
            assert answer.status_code == 200, f"{path}: {answer.text}"
            return answer.json()

        for name, key in (("reranker", "scores"), ("typed", "typed")):
            ranked = asked(f"{name}/rerank", query=query, texts=texts)
            ranked.sort(key=lambda one: one["index"])
            scores = [one["score"] for one in ranked]
            np.testing.assert_allclose(scores, expected[key], atol=1e-6, err_msg=name)
        pairs = [[query, text] for text in texts]
        for found, right in zip(
            asked("classifier/predict", inputs=pairs), expected["classes"], strict=True
        ):
            by_label = {one["label"]: one["score"] for one in found}
            values = [by_label[f"LABEL_{n}"] for n in range(3)]
            np.testing.assert_allclose(values, right, atol=1e-5)
        for found, right in zip(
            asked("splade/embed_sparse", inputs=texts), expected["sparse"], strict=True
        ):
            dense = np.zeros(len(right))
            for one in found:
                dense[one["index"]] = one["value"]
            np.testing.assert_allclose(dense, right, atol=1e-5)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedGateway]:
    root = tmp_path_factory.mktemp("clients")
    embedding_folder(root / "unit")
    classifier_folder(root / "rank", ["score"])
    classifier_folder(root / "classes", ["good", "bad"])
    cache = str(tmp_path_factory.mktemp("cache"))
    options = ("--devices", "cpu:1", "--cache-dir", cache, "--openai-root")
    with ServedGateway(root, *options) as gateway:
        yield gateway.wait_ready()


@pytest.mark.parametrize("client", CLIENTS)
def test_stock_clients_work_unmodified(
    request: pytest.FixtureRequest, client: str
) -> None:
    """Each has an environment of its own, or is one of those that tests have anyway."""
    folder = os.environ.get("POPGATE_TEXT_CLIENTS")
    if folder:
        python = str(Path(folder) / client / "bin" / "python")
    elif find_spec(MODULES.get(client, client)):
        python = sys.executable
    else:
        pytest.skip(f"{client} is not here; run make test-text")
    served = request.getfixturevalue("served")
    printed = run(python, "call_clients.py", client, served.url)
    assert printed.count(": ok") >= 1
    assert "FAILED" not in printed
