"""Vectors are sentence-transformers' own, and stock clients work unmodified.

Their packages (torch among them) are in environments of their own, which
`make test-text` makes; without them these tests are skipped.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

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


def test_stock_clients_work_unmodified(tmp_path: Path) -> None:
    python = python_of("POPGATE_TEXT_CLIENTS")
    root = tmp_path / "models"
    embedding_folder(root / "unit")
    classifier_folder(root / "rank", ["score"])
    classifier_folder(root / "classes", ["good", "bad"])
    options = ("--devices", "cpu:1", "--cache-dir", str(tmp_path / "cache"))
    with ServedGateway(root, *options, "--openai-root") as gateway:
        gateway.wait_ready()
        run(python, "call_clients.py", gateway.url)
