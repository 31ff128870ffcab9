"""Inference, declared: the requests themselves never come here.

`app.http.front.InferFront` stands before this application and handles the infer URLs.
These routes add the operation to the documentation. They pass a request that reaches
them (if the application is used without its front) to the same code.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from app.api.delegation import ERROR_RESPONSES, declare
from app.api.schemas import InferenceResponse

router = APIRouter()

_BINARY = {"schema": {"type": "string", "format": "binary"}}
# Encodings of a body beside JSON, the same in both directions.
OTHER_ENCODINGS: dict[str, dict[str, Any]] = {
    "application/msgpack": _BINARY,
    "application/octet-stream": _BINARY,
    "application/x-npy": _BINARY,
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
