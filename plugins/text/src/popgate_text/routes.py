"""The routes of text models: OpenAI's, Jina's and Cohere's, TEI's."""

from __future__ import annotations

from functools import cache, partial
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.api.delegation import ModelName, declare, to_front
from app.api.dependencies import GatewayOf, ViewerOf
from app.api.plugin_routes import PluginRoutes
from app.errors import UnknownModel
from app.http.application import NamingOperation, Operation
from app.repository.records import ModelRecord, ready_version
from app.settings import Settings
from app.spec import ModelSpec
from popgate_text import openai, tei
from popgate_text.bodies import (
    OPENAI_TAG,
    STRINGS,
    TEI_TAG,
    TEXTS,
    body_of,
    error_responses,
)
from popgate_text.requests import kind_of
from popgate_text.token_routes import refusing, token_routes

_EMBEDDINGS: Final = {
    "model": {"type": "string"},
    "input": TEXTS,
    "encoding_format": {"type": "string", "enum": ["float", "base64"]},
    "dimensions": {"type": "integer", "minimum": 1},
    "user": {"type": "string"},
    "prompt_name": {"type": "string"},
}
_RERANK: Final = {
    "model": {"type": "string"},
    "query": {"type": "string"},
    "documents": STRINGS,
    "top_n": {"type": "integer", "minimum": 1},
    "return_documents": {"type": "boolean"},
}
_TEI_TEXTS: Final = {
    "inputs": TEXTS,
    "truncate": {"type": "boolean"},
    "truncation_direction": {"type": "string", "enum": ["left", "right"]},
    "prompt_name": {"type": "string"},
}
#: Suffix, form, fields of the request, required fields, description.
_TEI: Final[tuple[tuple[str, type[tei.TeiForm], dict[str, Any], str, str], ...]] = (
    (
        "embed",
        tei.EmbedForm,
        {**_TEI_TEXTS, "normalize": {"type": "boolean"},
         "dimensions": {"type": "integer"}},
        "inputs",
        "Embed texts",
    ),
    (
        "embed_all",
        tei.EmbedAllForm,
        _TEI_TEXTS,
        "inputs",
        "Embed each token of texts, without pooling",
    ),
    ("embed_sparse", tei.EmbedSparseForm, _TEI_TEXTS, "inputs", "Embed texts by words"),
    (
        "rerank",
        tei.TeiRerankForm,
        {"query": {"type": "string"}, "texts": STRINGS,
         "raw_scores": {"type": "boolean"}, "return_text": {"type": "boolean"}},
        "query texts",
        "Order texts by how well they answer a query",
    ),
    (
        "predict",
        tei.TeiPredictForm,
        {"inputs": {}, "raw_scores": {"type": "boolean"}},
        "inputs",
        "Classify texts, or pairs of texts",
    ),
    (
        "similarity",
        tei.SimilarityForm,
        {"inputs": {"type": "object"}, "parameters": {"type": "object"}},
        "inputs",
        "Compare texts with one text",
    ),
)  # fmt: skip

_RERANKS, _EMBEDS = "model query documents", "model input"
#: Path, form, fields of the request, required fields, description.
_OPENAI: Final[list[tuple[str, type[openai.NamedForm], dict[str, Any], str, str]]] = [
    ("/openai/v1/embeddings", openai.EmbeddingsForm, _EMBEDDINGS, _EMBEDS,
     "Embed texts, in the form of OpenAI's clients"),
    ("/openai/v1/rerank", openai.JinaRerankForm, _RERANK, _RERANKS,
     "Order documents by how well they answer a query, in the form of Jina's clients"),
    ("/v2/rerank", openai.CohereRerankForm, _RERANK, _RERANKS,
     "Order documents, in the form of Cohere's clients"),
    ("/infinity/embeddings", openai.EmbeddingsForm, _EMBEDDINGS, _EMBEDS,
     "Embed texts, in the form of Infinity's clients"),
    ("/infinity/rerank", openai.InfinityRerankForm, _RERANK, _RERANKS,
     "Order documents, in the form of Infinity's clients"),
]  # fmt: skip


def routes(settings: Settings) -> PluginRoutes:
    """Return the routes of a server with these settings."""
    router, operations, naming = _routes(settings.openai_root, settings.tei)
    return PluginRoutes(router, operations, naming, partial(_examples, settings))


@cache
def _routes(
    openai_root: bool, named: str
) -> tuple[APIRouter, list[Operation], list[NamingOperation]]:
    """Return the routes and their operations; they hold nothing of a server.

    The model `named`, if any, also has routes at the root.
    """
    router = APIRouter()
    naming = _openai_routes(router, openai_root)
    operations = []
    for suffix, form, fields, needed, summary in _TEI:
        operations.append(Operation("/v1/models/", f"/{suffix}", form))
        declare(
            router,
            f"/v1/models/{{name}}/{suffix}",
            f"tei_{suffix}",
            summary=summary,
            tags=[TEI_TAG],
            responses=_responses(form),
            openapi_extra=body_of(fields, needed),
        )
        if named:
            path = f"/{suffix}"
            naming.append(NamingOperation(path, partial(form, named)))
            _declare(router, path, summary, TEI_TAG, fields, needed, form)
    if named:
        native = partial(tei.NativeForm, named)
        naming += [NamingOperation(path, native) for path in ("/", "/invocations")]
    token_routes(router, named)
    return router, operations, naming


def _examples(settings: Settings, spec: ModelSpec) -> dict[str, Any]:
    """Return request bodies by path, which the model answers unchanged."""
    kind = kind_of(spec)
    if not kind:
        return {}
    texts = ["The cat sits on the mat.", "A fast model answers."]
    query = "What is on the mat?"
    of_tei: dict[str, Any] = {"tokenize": {"inputs": texts}, "decode": {"ids": [1, 2]}}
    found: dict[str, Any] = {}
    if kind == "embedding":
        of_tei["embed"] = of_tei["embed_all"] = {"inputs": texts}
        compared = {"source_sentence": query, "sentences": texts}
        of_tei["similarity"] = {"inputs": compared}
        for path in ("/openai/v1/embeddings", "/infinity/embeddings"):
            found[path] = {"model": spec.name, "input": texts}
    elif kind == "splade":
        of_tei["embed_sparse"] = {"inputs": texts}
    elif kind == "reranker":
        of_tei["rerank"] = {"query": query, "texts": texts}
        of_tei["predict"] = {"inputs": [query, texts[0]]}
        for path in ("/openai/v1/rerank", "/v2/rerank", "/infinity/rerank"):
            found[path] = {"model": spec.name, "query": query, "documents": texts}
    else:
        of_tei["predict"] = {"inputs": texts[0]}
    if settings.openai_root:
        for path in [path for path in found if path.startswith("/openai/")]:
            found[path.removeprefix("/openai")] = found[path]
    for suffix, body in of_tei.items():
        found[f"/v1/models/{{name}}/{suffix}"] = body
        if settings.tei == spec.name:
            found[f"/{suffix}"] = body
    return found


def _openai_routes(router: APIRouter, at_root: bool) -> list[NamingOperation]:
    ways = [*_OPENAI]
    if at_root:
        ways += [
            (path.removeprefix("/openai"), form, fields, needed, summary)
            for path, form, fields, needed, summary in _OPENAI
            if path.startswith("/openai/")
        ]
    naming = []
    for path, form, fields, needed, summary in ways:
        naming.append(NamingOperation(path, form))
        _declare(router, path, summary, OPENAI_TAG, fields, needed, form)

    @router.get("/openai/v1/models", summary="List the text models", tags=[OPENAI_TAG])
    async def list_text_models(gateway: GatewayOf, viewer: ViewerOf) -> JSONResponse:
        """Return the text models that answer requests, in OpenAI's form."""
        found = [
            _openai_model(record)
            for record in gateway.records.all()
            if viewer.sees(record.name) and _answers(record)
        ]
        return JSONResponse({"object": "list", "data": found})

    async def get_text_model(
        gateway: GatewayOf, viewer: ViewerOf, name: ModelName
    ) -> JSONResponse:
        """Return one text model, in OpenAI's form."""
        record = gateway.records.get(name)
        if record is None or not viewer.sees(name) or not _answers(record):
            raise UnknownModel(name)
        return JSONResponse(_openai_model(record))

    path, summary = "/openai/v1/models/{name}", "A text model"
    responses = error_responses(openai.NamedForm.error_schema, {})
    router.add_api_route(
        path,
        refusing(get_text_model, openai.refused),
        summary=summary,
        tags=[OPENAI_TAG],
        responses={404: responses[404]},
    )
    return naming


def _answers(record: ModelRecord) -> bool:
    """Return whether the record has a text model that is in memory or that the next
    request loads.
    """
    entry = ready_version(record, None)
    source = None if entry is None else (entry.loaded or entry).source
    return source is not None and source.format == "text"


def _openai_model(record: ModelRecord) -> dict[str, Any]:
    loaded = record.default
    created = 0 if loaded is None else int(loaded.loaded_at)
    about = {"object": "model", "created": created, "owned_by": "popgate"}
    return {"id": record.name, **about}


def _declare(
    router: APIRouter,
    path: str,
    summary: str,
    tag: str,
    fields: dict[str, Any],
    needed: str,
    form: type[Any],
) -> None:
    async def run(request: Request) -> Response:
        return to_front(request)

    router.add_api_route(
        path,
        run,
        methods=["POST"],
        name=path.strip("/").replace("/", "_"),
        summary=summary,
        tags=[tag],
        response_class=Response,
        responses=_responses(form),
        openapi_extra=body_of(fields, needed),
    )


def _responses(form: type[Any]) -> dict[int | str, dict[str, Any]]:
    """Return the answer of a form, with errors in its style."""
    found: dict[int | str, dict[str, Any]] = {
        200: {"content": {"application/json": {"schema": {}}}}
    }
    texts: dict[int | str, str] = {
        401: "The API key is missing or wrong.",
        403: "The API key does not allow this call.",
        424: "The model is of another kind.",
    }
    found.update(error_responses(form.error_schema, texts))
    return found
