"""Servers of others for the encoder of bench.text, each in an environment of its own:

    python bench/text/peer_servers.py fastapi|litserve FOLDER PORT

They import nothing of PopGate. Each answers `POST /predict` for `{"text": "…"}`.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.util import find_spec
from typing import Any

WIDTH = 384
_litserve: Any = import_module("litserve") if find_spec("litserve") else None
_LitAPI: Any = _litserve.LitAPI if _litserve else object


def embedding(folder: str) -> Any:
    """Return fastembed's model of a local folder."""
    fastembed = import_module("fastembed")
    kinds = import_module("fastembed.common.model_description")
    fastembed.TextEmbedding.add_custom_model(
        model="bench/encoder",
        pooling=kinds.PoolingType.MEAN,
        normalization=False,
        sources=kinds.ModelSource(hf="bench/encoder"),
        dim=WIDTH,
        model_file="model.onnx",
    )
    return fastembed.TextEmbedding(
        "bench/encoder", specific_model_path=folder, threads=2
    )


def fastapi(folder: str, port: int) -> None:
    """Serve one text per request, as the documentation of fastembed and FastAPI shows
    it.
    """
    import uvicorn
    from fastapi import FastAPI
    from pydantic import BaseModel

    class Asked(BaseModel):
        text: str

    globals()["Asked"] = Asked
    model, app = embedding(folder), FastAPI()

    def predict(asked: Asked) -> dict[str, Any]:
        (vector,) = model.embed([asked.text])
        return {"embedding": vector.tolist()}

    predict.__annotations__["asked"] = Asked
    app.post("/predict")(predict)
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


class Embeds(_LitAPI):  # type: ignore[misc]
    """Batches of up to 32 texts, as LitServe's guide shows it. Pickled by LitServe."""

    def setup(self, device: Any) -> None:
        self.model = embedding(os.environ["BENCH_FOLDER"])

    def decode_request(self, request: Any) -> Any:
        return request["text"]

    def predict(self, texts: Any) -> Any:
        return list(self.model.embed(list(texts)))

    def encode_response(self, vector: Any) -> Any:
        return {"embedding": vector.tolist()}


# LitServe would treat an annotation as the type of a query parameter.
Embeds.decode_request.__annotations__.clear()


def litserve(folder: str, port: int) -> None:
    """Serve texts in batches."""
    os.environ["BENCH_FOLDER"] = folder
    api = Embeds(max_batch_size=32, batch_timeout=0.005)
    server = _litserve.LitServer(api, accelerator="cpu")
    server.run(
        port=port, host="127.0.0.1", log_level="warning", generate_client_file=False
    )


if __name__ == "__main__":
    kind, folder, port = sys.argv[1:]
    {"fastapi": fastapi, "litserve": litserve}[kind](folder, int(port))
