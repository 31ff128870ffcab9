"""Inference, declared: the requests themselves never come here.

`app.http.front.InferFront` stands before this application and handles the infer URLs.
These routes add the operation to the documentation. They pass a request that reaches
them (if the application is used without its front) to the same code.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response
from starlette.types import Receive, Scope, Send

from app.api.dependencies import ModelName, Version
from app.api.schemas import InferenceResponse, error_response
from app.errors import HttpError

router = APIRouter()

_MARK = "popgate.delegated"

_BINARY = {"schema": {"type": "string", "format": "binary"}}
# Encodings of a body beside JSON, the same in both directions.
OTHER_ENCODINGS: dict[str, dict[str, Any]] = {
    "application/msgpack": _BINARY,
    "application/octet-stream": _BINARY,
    "application/x-npy": _BINARY,
}
_ERRORS = {
    400: "The request is malformed or does not fit the model.",
    404: "The model or version does not exist.",
    406: "The server supports none of the types in Accept.",
    408: "The body stopped before its end.",
    413: "The body is larger than allowed.",
    415: "The content type or encoding is not supported.",
    422: "The result cannot be written in the requested encoding.",
    429: "The queue is full, or the answer would miss the deadline. Retry-After (and "
    "Retry-After-Ms) says when to retry.",
    500: "The model or the server failed.",
    503: "The model or its device is not available now.",
    504: "The deadline passed.",
}
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: error_response(text) for status, text in _ERRORS.items()
}
_EVENTS = {"text/event-stream": {"schema": {"type": "string"}}}
INFER_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"model": InferenceResponse, "content": OTHER_ENCODINGS | _EVENTS},
    **ERROR_RESPONSES,
}
_EXTRA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/InferenceRequest"}
            },
            **OTHER_ENCODINGS,
        },
    }
}
_TEXT = """Send tensors to a model, and receive tensors.

`Content-Type` names the encoding of the body. If it is missing, the server recognises
the encoding:

- JSON
- msgpack: the same document, with `data` as bytes
- the protocol's binary form, with the header `Inference-Header-Content-Length`
- `.npy`: one array
- `multipart/form-data`: a form with a part for each input
- any other type: a file, which becomes the element of a BYTES input

`Accept` names the encoding of the response. The default is the encoding of the request;
files and forms are answered in JSON. With `text/event-stream` each response is an
event, for models that return several.
"""


class _Delegate(Response):
    """A response that is the front's answer."""

    def __init__(self, front: Any) -> None:
        super().__init__()
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._front({**scope, _MARK: True}, receive, send)


def to_front(request: Request) -> Response:
    """Hand a request to the front, which runs inference."""
    if request.scope.get(_MARK):
        # The front has handed it back: not a URL that it knows.
        raise HttpError(404, f"Not Found: {request.url.path:.300}", "not_found")
    return _Delegate(request.app.state.front)


def declare(router: APIRouter, path: str, name: str, **options: Any) -> None:
    """Declare an operation on tensors called `name`, which the front runs."""

    async def run(request: Request, name: ModelName) -> Response:
        return to_front(request)

    async def run_version(
        request: Request, name: ModelName, version: Version
    ) -> Response:
        return to_front(request)

    has_version = "{version}" in path
    router.add_api_route(
        path,
        run_version if has_version else run,
        methods=["POST"],
        name=f"{name}_version" if has_version else name,
        response_class=Response,
        **options,
    )


for _path, _summary, _tag in (
    ("/v1/models/{name}/infer", "Run a model", "inference"),
    ("/v1/models/{name}/versions/{version}/infer", "Run a version", "inference"),
    ("/v2/models/{name}/infer", "Run a model", "open inference protocol"),
    (
        "/v2/models/{name}/versions/{version}/infer",
        "Run a version",
        "open inference protocol",
    ),
):
    declare(
        router,
        _path,
        "infer",
        summary=_summary,
        description=_TEXT,
        responses=INFER_RESPONSES,
        openapi_extra=_EXTRA,
        tags=[_tag],
    )
