"""A repository of a hub that holds a text model: recognised, taken, served."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests.app.served import ServedGateway

pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")

from plugins.remote.tests.hub import TOKEN, Hub
from plugins.text.tests.folders import HIDDEN, embedding_folder

#: What such a repository has beside: weights that others read.
OTHERS = (
    "model.safetensors",
    "pytorch_model.bin",
    "tf_model.h5",
    "rust_model.ot",
    "flax_model.msgpack",
    "openvino/openvino_model.bin",
)
NEEDED = {
    "config.json", "modules.json", "tokenizer.json", "tokenizer_config.json",
    "1_Pooling/config.json", "onnx/model.onnx",
}  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[str]:
    """A hub with a folder as sentence-transformers writes it; gives its address."""
    folder = embedding_folder(tmp_path / "repository")
    (folder / "openvino").mkdir()
    for name in OTHERS:
        (folder / name).write_bytes(bytes(5000))

    class Mine(Hub):
        pass

    Mine.folder = folder
    with ThreadingHTTPServer(("127.0.0.1", 0), Mine) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_text_model_is_served_from_a_hub(hub: str, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    options = ("hf://me/digits", "--devices", "cpu:1", "--cache-dir", str(cache))
    settings = {"HF_ENDPOINT": hub, "HF_TOKEN": TOKEN, "HF_HUB_OFFLINE": "0"}
    with ServedGateway(None, *options, **settings) as gateway:
        gateway.wait_ready()
        body = {"model": "me/digits", "input": ["the cat sits", "a dog"]}
        answer = gateway.client.post("/openai/v1/embeddings", json=body)
        assert answer.status_code == 200, answer.text
        vectors = np.array([row["embedding"] for row in answer.json()["data"]])
        assert vectors.shape == (2, HIDDEN)
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
        info = gateway.client.get("/v1/models/digits/info").json()
        assert info["model_type"] == {"embedding": {"pooling": "mean"}}
    taken = next(cache.rglob("modules.json")).parent
    found = {str(p.relative_to(taken)) for p in taken.rglob("*") if p.is_file()}
    found.discard(".manifest.json")
    assert found == NEEDED
