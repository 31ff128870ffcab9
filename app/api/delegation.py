"""Operations that are declared here and run by the front (`app/http/front.py`)."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request, Response
from starlette.types import Receive, Scope, Send

from app.api.schemas import error_response
from app.errors import HttpError

ModelName = Annotated[str, Path(description="Name of a model of the repository.")]
Version = Annotated[str, Path(description="One of the model's versions, a number.")]

_MARK = "popgate.delegated"

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
