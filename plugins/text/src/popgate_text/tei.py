"""The routes of text-embeddings-inference.

The path names the model, or `--tei` does.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import numpy as np
import orjson

from app.codec.messages import Body, InferRequest, Response, lines_of
from app.codec.model import ModelCodec
from app.errors import ErrorResponse, InvalidRequest
from app.give_way import give_way
from app.serving.table import ModelTable, infer_path
from engine import Tensor
from popgate_text.folder import TOKENS
from popgate_text.requests import (
    EMPTY,
    check_kind,
    field,
    given_options,
    kind_of,
    query_of,
    read_document,
    strings,
    text_request,
    texts_or_ids,
)
from popgate_text.scheduler import TextOptions, direction

_TYPES: Final = {
    400: "Validation", 413: "Validation", 422: "Validation", 424: "Backend",
    429: "Overloaded", 503: "Unhealthy",
}  # fmt: skip
_NS_A_MS: Final = 1_000_000
#: Rows after which a thread that writes large answers gives way to others.
_GIVES_WAY: Final = 16


def refused(answer: ErrorResponse) -> ErrorResponse:
    """Return TEI's form of an error, with its statuses."""
    found = orjson.loads(answer.body)
    status, kind = answer.status, _TYPES.get(answer.status, "Backend")
    if found["code"] == EMPTY:
        kind = "Empty"
    elif status == 400:
        status = 422
    body = orjson.dumps({"error": found["error"], "error_type": kind})
    return ErrorResponse(status, body, tuple(answer.headers[2:]))


class TeiForm(ABC):
    """One request in TEI's form; `model` comes from its path, or is empty."""

    not_one = "the model does not give exactly 1 response"
    error_schema: ClassVar[dict[str, Any]] = {
        "type": "object",
        "required": ["error", "error_type"],
        "properties": {"error": {"type": "string"}, "error_type": {"type": "string"}},
    }

    def __init__(self, model: str = "") -> None:
        self.model = model
        self.document: dict[str, Any] = {}
        self.began = time.monotonic_ns()

    def target(self, body: Body, models: ModelTable) -> str:
        return infer_path(self.model)

    def refuse(self, answer: ErrorResponse) -> ErrorResponse:
        """Return TEI's form of an error, with its statuses."""
        return refused(answer)

    @abstractmethod
    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        """Return the request of a body. Raises `RequestError`."""

    @abstractmethod
    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        """Return the response. Raises `RequestError`."""

    def options(self, **more: Any) -> TextOptions:
        """Return the options that are common to all requests with texts."""
        document = self.document
        side = field(document, "truncation_direction", str, "right")
        return TextOptions(
            prompt_name=field(document, "prompt_name", str),
            truncate=field(document, "truncate", bool),
            side=direction(side),
            **more,
        )

    def answer(
        self, request: InferRequest, document: object, characters: int
    ) -> Response:
        """Return the response, with TEI's headers for tokens and durations."""
        options = given_options(request)
        text = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        took = {
            b"x-compute-type": b"cpu",
            b"x-compute-time": b"%d" % ((time.monotonic_ns() - self.began) // _NS_A_MS),
            b"x-compute-characters": b"%d" % characters,
            b"x-compute-tokens": b"%d" % sum(options.tokens),
            b"x-total-time": b"%d" % ((time.monotonic_ns() - self.began) // _NS_A_MS),
            b"x-tokenization-time": b"%d" % (options.tokenizing_ns // _NS_A_MS),
            b"x-queue-time": b"%d" % (options.queue_ns // _NS_A_MS),
            b"x-inference-time": b"%d" % (options.compute_ns // _NS_A_MS),
            b"content-type": b"application/json",
            b"content-length": b"%d" % len(text),
        }
        return Response(200, lines_of(took.items()), [text])


class EmbedForm(TeiForm):
    """POST …/embed."""

    kind = "embedding"
    characters = 0

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        self.document = read_document(body, codec.limits)
        texts, ids = texts_or_ids(self.document.get("inputs"), "inputs")
        self.characters = sum(map(len, texts))
        more: dict[str, Any] = {"ids": ids}
        if self.kind == "embedding":
            more["normalize"] = field(self.document, "normalize", bool, True)
            more["dimensions"] = field(self.document, "dimensions", int)
        check_kind(codec, self.kind)
        return text_request(self.options(**more), texts)

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        vectors = list(outputs["embedding"].numpy())
        return self.answer(request, vectors, self.characters)


class EmbedAllForm(TeiForm):
    """POST …/embed_all: a vector of each token, including special ones, not pooled."""

    characters = 0

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        self.document = read_document(body, codec.limits)
        texts, ids = texts_or_ids(self.document.get("inputs"), "inputs")
        self.characters = sum(map(len, texts))
        check_kind(codec, "embedding")
        return text_request(self.options(ids=ids, all_tokens=True), texts)

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        vectors = outputs[TOKENS].numpy()
        ends = np.cumsum(given_options(request).tokens)[:-1]
        return self.answer(request, np.split(vectors, ends), self.characters)


class EmbedSparseForm(EmbedForm):
    """POST …/embed_sparse."""

    kind = "splade"

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        found = []
        for row in outputs["weights"].numpy():
            (there,) = np.nonzero(row > 0)
            found.append([{"index": int(n), "value": float(row[n])} for n in there])
            if len(found) % _GIVES_WAY == 0:
                give_way()
        return self.answer(request, found, self.characters)


class TeiRerankForm(TeiForm):
    """POST …/rerank."""

    def __init__(self, model: str = "") -> None:
        super().__init__(model)
        self.texts: list[str] = []

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        self.document = read_document(body, codec.limits)
        query = query_of(self.document)
        self.texts = strings(self.document.get("texts"), "texts")
        field(self.document, "return_text", bool)
        raw = field(self.document, "raw_scores", bool, False)
        options = self.options(raw_scores=raw)
        check_kind(codec, "reranker")
        return text_request(options, [query] * len(self.texts), self.texts)

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        scores = outputs["scores"].numpy().reshape(-1)
        found = []
        for number in np.argsort(-scores, kind="stable").tolist():
            one: dict[str, Any] = {"index": number, "score": float(scores[number])}
            if self.document.get("return_text"):
                one["text"] = self.texts[number]
            found.append(one)
        return self.answer(request, found, sum(map(len, self.texts)))


class TeiPredictForm(TeiForm):
    """POST …/predict: a text, a pair of texts, or a list of lists of one or two."""

    is_many = False
    characters = 0

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        self.document = read_document(body, codec.limits)
        given = self.document.get("inputs")
        if type(given) is str:
            given = [[given]]
        elif type(given) is list and given and type(given[0]) is list:
            self.is_many = True
        elif type(given) is list:
            given = [given]
        else:
            raise InvalidRequest("'inputs' must be a string, or a list of strings")
        rows = [strings(row, "inputs") for row in given]
        sizes = {len(row) for row in rows}
        if not sizes <= {1, 2} or len(sizes) != 1:
            raise InvalidRequest("'inputs' must be texts, or pairs of texts, not both")
        pairs = [row[1] for row in rows] if sizes == {2} else None
        self.characters = sum(map(len, (text for row in rows for text in row)))
        options = self.options(
            raw_scores=field(self.document, "raw_scores", bool, False)
        )
        check_kind(codec, "classifier", "reranker")
        return text_request(options, [row[0] for row in rows], pairs)

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        labels = codec.spec.outputs[0].labels
        found = []
        for row in outputs["scores"].numpy():
            names = labels or [str(n) for n in range(len(row))]
            pairs = [
                {"score": float(score), "label": name}
                for score, name in zip(row, names, strict=True)
            ]
            found.append(sorted(pairs, key=lambda pair: -float(str(pair["score"]))))
            if len(found) % _GIVES_WAY == 0:
                give_way()
        document = found if self.is_many else found[0]
        return self.answer(request, document, self.characters)


class SimilarityForm(TeiForm):
    """POST …/similarity."""

    characters = 0

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        document = read_document(body, codec.limits)
        inputs = document.get("inputs")
        if type(inputs) is not dict or type(inputs.get("source_sentence")) is not str:
            msg = "'inputs' must be an object with source_sentence and sentences"
            raise InvalidRequest(msg)
        parameters = document.get("parameters")
        self.document = parameters if type(parameters) is dict else {}
        source = strings([inputs["source_sentence"]], "source_sentence")
        texts = source + strings(inputs.get("sentences"), "sentences")
        self.characters = sum(map(len, texts))
        check_kind(codec, "embedding")
        return text_request(self.options(normalize=True), texts)

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        vectors = outputs["embedding"].numpy()
        scores = (vectors[1:] @ vectors[0]).tolist()
        return self.answer(request, scores, self.characters)


class NativeForm(TeiForm):
    """POST / and /invocations: the operation depends on the kind of the model."""

    inner: TeiForm

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        forms: dict[str, type[TeiForm]] = {
            "embedding": EmbedForm,
            "splade": EmbedSparseForm,
            "reranker": TeiRerankForm,
            "classifier": TeiPredictForm,
        }
        form = forms.get(kind_of(codec.spec))
        if form is None:
            check_kind(codec, *forms)
        assert form is not None
        self.inner = form(self.model)
        return self.inner.decode(codec, body)

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        return self.inner.encode(codec, request, outputs)
