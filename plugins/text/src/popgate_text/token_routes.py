"""TEI's routes that run no model: its description, and the tokens of texts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable
from functools import wraps
from typing import Any, Final

import orjson
from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from app.about import VERSION
from app.api.delegation import ModelName
from app.api.dependencies import GatewayOf, ViewerOf, find_served, read_object
from app.errors import ErrorResponse, InvalidRequest, RequestError
from app.gateway import Gateway
from engine import EngineError
from popgate_text import tei
from popgate_text.bodies import (
    IDS,
    MANY_IDS,
    STRINGS,
    TEI_TAG,
    body_of,
    error_responses,
)
from popgate_text.requests import check_kind_of, field
from popgate_text.scheduler import TextScheduler
from popgate_text.turns import TOKENIZING_THREADS, in_turns

_TOKENIZE: Final = {
    "inputs": {"oneOf": [{"type": "string"}, STRINGS]},
    "add_special_tokens": {"type": "boolean"},
}
_DECODE: Final = {
    "ids": {"oneOf": [IDS, MANY_IDS]},
    "skip_special_tokens": {"type": "boolean"},
}


def token_routes(router: APIRouter, named: str) -> None:
    """Declare the routes. The model `named`, if any, also has routes at the root."""
    ways: tuple[tuple[str, str, Callable[..., Any], dict[str, Any]], ...] = (
        ("info", "GET", _info, {}),
        ("tokenize", "POST", _tokenize, body_of(_TOKENIZE, "inputs")),
        ("decode", "POST", _decode, body_of(_DECODE, "ids")),
    )
    for suffix, method, run, body in ways:
        named_by_path = refusing(run, tei.refused)
        paths = [(f"/v1/models/{{name}}/{suffix}", f"tei_{suffix}", named_by_path)]
        if named:
            at_root = refusing(_for_model(run, named), tei.refused)
            paths.append((f"/{suffix}", f"tei_root_{suffix}", at_root))
        for path, operation, answer in paths:
            router.add_api_route(
                path,
                answer,
                methods=[method],
                name=operation,
                summary=f"TEI's /{suffix}",
                tags=[TEI_TAG],
                responses=_responses(),
                openapi_extra=body,
            )


def _responses() -> dict[int | str, dict[str, Any]]:
    texts: dict[int | str, str] = {
        400: "The input is empty.",
        413: "The body is too large.",
        422: "The request is malformed, or above a limit of the model.",
        424: "The model is not a text model.",
    }
    return error_responses(tei.TeiForm.error_schema, texts)


def refusing(
    run: Callable[..., Any], form: Callable[[ErrorResponse], ErrorResponse]
) -> Callable[..., Any]:
    """Return the operation with errors in another form."""

    @wraps(run)
    async def answer(**given: Any) -> Response:
        try:
            found: Response = await run(**given)
        except (RequestError, EngineError) as error:
            refused = form(ErrorResponse.of(error))
            headers = {name.decode(): value.decode() for name, value in refused.headers}
            return Response(refused.body, refused.status, headers)
        return found

    return answer


def _for_model(run: Callable[..., Any], name: str) -> Callable[..., Any]:
    async def run_named(
        gateway: GatewayOf, viewer: ViewerOf, request: Request
    ) -> Response:
        viewer.check(name)  # which the path does not name
        given = {"request": request} if "request" in run.__annotations__ else {}
        answer: Response = await run(gateway=gateway, name=name, **given)
        return answer

    run_named.__doc__ = run.__doc__
    return run_named


async def _info(gateway: GatewayOf, name: ModelName) -> Response:
    """Return the kind of the model and the limits of requests to it."""
    scheduler = await _found(gateway, name)
    model, config = scheduler.model, scheduler.config
    labels = {str(n): label for n, label in enumerate(model.labels)}
    kinds: dict[str, dict[str, Any]] = {
        "embedding": {"embedding": {"pooling": "+".join(model.pooling) or "none"}},
        "splade": {"embedding": {"pooling": "splade"}},
    }
    named = {"id2label": labels, "label2id": {v: int(k) for k, v in labels.items()}}
    return JSONResponse(
        {
            "model_id": name,
            "model_sha": None,
            "model_dtype": "float32",
            "served_model_name": name,
            "model_type": kinds.get(model.kind, {model.kind: named}),
            "max_concurrent_requests": config.max_concurrent_texts,
            "max_input_length": model.max_length,
            "max_batch_tokens": config.max_request_tokens,
            "max_batch_requests": None,
            "max_client_batch_size": config.most_texts,
            "auto_truncate": config.truncate,
            "tokenization_workers": TOKENIZING_THREADS,
            "version": VERSION,
            "sha": None,
            "docker_label": None,
        }
    )


async def _tokenize(gateway: GatewayOf, request: Request, name: ModelName) -> Response:
    """Return the tokens of texts: id, text, whether special, first and last
    character.
    """
    document = await read_object(request)
    scheduler = await _found(gateway, name)
    given = document.get("inputs")
    texts = [given] if isinstance(given, str) else given
    if type(texts) is list:
        _check_count(scheduler, len(texts))
    if type(texts) is not list or not all(type(one) is str for one in texts):
        raise InvalidRequest("'inputs' must be a string or a list of strings")
    special = field(document, "add_special_tokens", bool, True)
    response, _ = await in_turns(_tokens_of(scheduler, texts, special))
    return response


async def _decode(gateway: GatewayOf, request: Request, name: ModelName) -> Response:
    """Return the texts of token ids."""
    document = await read_object(request)
    scheduler = await _found(gateway, name)
    given = document.get("ids")
    rows = [given] if _are_ids(given) else given
    if type(rows) is list:
        _check_count(scheduler, len(rows))
    if type(rows) is not list or not all(map(_are_ids, rows)):
        raise InvalidRequest("'ids' must be a list of token ids, or of such lists")
    skip = field(document, "skip_special_tokens", bool, True)
    response, _ = await in_turns(_texts_of(scheduler, rows, skip))
    return response


def _are_ids(value: object) -> bool:
    return type(value) is list and all(type(one) is int for one in value)


def _check_count(scheduler: TextScheduler, count: int) -> None:
    most = scheduler.config.most_texts
    if count > most:
        msg = f"expected at most {most} texts, got {count}"
        raise InvalidRequest(f"{msg} (max_texts and max_concurrent_texts in [text])")


def _texts_of(
    scheduler: TextScheduler, rows: list[list[int]], skip: bool
) -> Generator[None, None, Response]:
    """Return the texts of token ids, in steps."""
    decode = scheduler.tokenizer.decode
    return _joined(orjson.dumps(decode(row, skip_special=skip)) for row in rows)


def _tokens_of(
    scheduler: TextScheduler, texts: list[str], special: bool
) -> Generator[None, None, Response]:
    """Return the tokens of texts, in steps."""
    tokens = scheduler.tokenizer.tokens
    return _joined(orjson.dumps(tokens(text, special=special)) for text in texts)


def _joined(rows: Iterable[bytes]) -> Generator[None, None, Response]:
    """Return a JSON list, in steps of one row."""
    found = []
    for row in rows:
        found.append(row)
        yield
    body = b"[" + b",".join(found) + b"]"
    return Response(body, media_type="application/json")


async def _found(gateway: Gateway, name: str) -> TextScheduler:
    """Return the scheduler of a text model. Load the model first if the server loads
    models on demand.
    """
    _, loaded = await find_served(gateway, name)
    found = loaded.scheduler
    if not isinstance(found, TextScheduler):
        check_kind_of(name, "", "a text model")
    assert isinstance(found, TextScheduler)
    return found
