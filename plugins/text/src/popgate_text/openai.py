"""OpenAI's embeddings, and reranking in the forms of Jina and Cohere.

The body names the model. Errors are OpenAI's object, so that its clients raise their
own exceptions.
"""

from __future__ import annotations

import uuid
from abc import ABC, abstractmethod
from base64 import b64encode
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import orjson

from app.codec.messages import Body, InferRequest, Response, json_response
from app.codec.model import ModelCodec
from app.errors import ErrorResponse, InvalidRequest
from app.serving.table import ModelTable, infer_path
from engine import Tensor
from popgate_text.requests import (
    check_kind,
    field,
    given_options,
    query_of,
    read_document,
    strings,
    text_request,
    texts_or_ids,
)
from popgate_text.scheduler import TextOptions

#: Statuses for which a retry cannot succeed.
_FINAL: Final = frozenset({400, 401, 403, 404, 406, 413, 415, 422, 424, 501})
_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}


def refused(answer: ErrorResponse) -> ErrorResponse:
    """Return OpenAI's form of an error."""
    found = orjson.loads(answer.body)
    kind = "invalid_request_error" if answer.status < 500 else "server_error"
    code = found["code"]
    error = {
        "message": found["error"],
        "type": _TYPES.get(answer.status, kind),
        "param": None,
        "code": "model_not_found" if code == "unknown_model" else code,
    }
    headers = answer.headers[2:]
    if answer.status in _FINAL:
        headers = [*headers, (b"x-should-retry", b"false")]
    body = orjson.dumps({"error": error})
    return ErrorResponse(answer.status, body, tuple(headers))


class NamedForm(ABC):
    """A request whose body names the model (`app.serving.naming_form.NamingForm`)."""

    not_one = "the model does not give exactly 1 response"
    error_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "required": ["error"],
        "properties": {
            "error": {
                "type": "object",
                "required": ["message", "type", "param", "code"],
                "properties": {
                    "message": {"type": "string"},
                    "type": {"type": "string"},
                    "param": {"type": ["string", "null"]},
                    "code": {"type": ["string", "null"]},
                },
            }
        },
    }

    def __init__(self) -> None:
        self.document: dict[str, Any] = {}

    @abstractmethod
    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        """Return the request of a body. Raises `RequestError`."""

    @abstractmethod
    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        """Return the response. Raises `RequestError`."""

    def target(self, body: Body, models: ModelTable) -> str:
        if not self.document:  # a worker calls this before it relays the request
            self.document = read_document(body, models.limits)
        name = field(self.document, "model", str)
        if not name:
            raise InvalidRequest("'model' is missing; expected the name of a model")
        path = infer_path(name)
        if path not in models.paths and "/" in name:
            # Clients that know the model from a hub name it as ORGANISATION/NAME.
            path = infer_path(name.rpartition("/")[2])
        return path

    def refuse(self, answer: ErrorResponse) -> ErrorResponse:
        """Return OpenAI's form of an error."""
        return refused(answer)


class EmbeddingsForm(NamedForm):
    """POST /openai/v1/embeddings."""

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        check_kind(codec, "embedding")
        document = self.document
        if "input" not in document:
            raise InvalidRequest("'input' is missing; expected a string or a list")
        texts, ids = texts_or_ids(document["input"], "input")
        form = field(document, "encoding_format", str, "float")
        if form not in ("float", "base64"):
            msg = f"'encoding_format' must be 'float' or 'base64', got {form!r:.40}"
            raise InvalidRequest(msg)
        options = TextOptions(
            prompt_name=field(document, "prompt_name", str),
            dimensions=field(document, "dimensions", int),
            ids=ids,
        )
        return text_request(options, texts)

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        vectors = outputs["embedding"].numpy()
        rows: list[Any]
        if self.document.get("encoding_format") == "base64":
            plain = vectors.astype("<f4", copy=False)
            rows = [b64encode(row.tobytes()).decode() for row in plain]
        else:
            rows = list(vectors)
        tokens = sum(given_options(request).tokens)
        data = [
            {"object": "embedding", "index": n, "embedding": row}
            for n, row in enumerate(rows)
        ]
        answer = {
            "object": "list",
            "data": data,
            "model": codec.spec.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return json_response(orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY))


class JinaRerankForm(NamedForm):
    """POST /openai/v1/rerank: Jina's form, which other servers use too."""

    def __init__(self) -> None:
        super().__init__()
        self.documents: list[str] = []

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        check_kind(codec, "reranker")
        document = self.document
        query = query_of(document)
        given = document.get("documents")
        if type(given) is list:
            given = [_text_of(item) for item in given]
        self.documents = strings(given, "documents")
        top = field(document, "top_n", int)
        if top is not None and top < 1:
            raise InvalidRequest(f"'top_n' must be at least 1, got {top}")
        field(document, "return_documents", bool)
        options = TextOptions(raw_scores=field(document, "raw_scores", bool, False))
        return text_request(options, [query] * len(self.documents), self.documents)

    def document_of(self, number: int) -> Any:
        """Return a document as the answer has it."""
        return {"text": self.documents[number]}

    def ranked(self, outputs: Mapping[str, Tensor]) -> list[tuple[int, float]]:
        """Return index and score of the best documents, the best first."""
        scores = outputs["scores"].numpy().reshape(-1)
        order = np.argsort(-scores, kind="stable")
        top = self.document.get("top_n") or len(order)
        return [(int(n), float(scores[n])) for n in order[:top]]

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        results = []
        for number, score in self.ranked(outputs):
            result: dict[str, Any] = {"index": number, "relevance_score": score}
            if self.document.get("return_documents"):
                result["document"] = self.document_of(number)
            results.append(result)
        tokens = sum(given_options(request).tokens)
        answer = {
            "id": f"rerank-{uuid.uuid4().hex}",
            "object": "rerank",
            "model": codec.spec.name,
            "results": results,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }
        return json_response(orjson.dumps(answer))


class InfinityRerankForm(JinaRerankForm):
    """POST /infinity/rerank: like `/rerank` of Jina, with documents as strings."""

    def document_of(self, number: int) -> Any:
        return self.documents[number]


class CohereRerankForm(JinaRerankForm):
    """POST /v2/rerank: Cohere's form."""

    error_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "required": ["message", "code"],
        "properties": {"message": {"type": "string"}, "code": {"type": "string"}},
    }

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        tokens = sum(given_options(request).tokens)
        answer = {
            "id": str(uuid.uuid4()),
            "results": [
                {"index": number, "relevance_score": score}
                for number, score in self.ranked(outputs)
            ],
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"search_units": 1},
                "tokens": {"input_tokens": tokens},
            },
        }
        return json_response(orjson.dumps(answer))

    def refuse(self, answer: ErrorResponse) -> ErrorResponse:
        found = orjson.loads(answer.body)
        body = orjson.dumps({"message": found["error"], "code": found["code"]})
        return ErrorResponse(answer.status, body, tuple(answer.headers[2:]))


def _text_of(item: object) -> object:
    """Return the text of a document, which older clients send as an object."""
    if type(item) is dict and type(item.get("text")) is str:
        return item["text"]
    return item
