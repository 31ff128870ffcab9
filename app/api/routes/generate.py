"""The generate extension: flat JSON in, flat JSON or server-sent events out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from fastapi import APIRouter, Request, Response
from starlette.types import Send

from app.api.dependencies import ModelName, Version
from app.api.generate import NOT_ONE_RESPONSE, decode_generate, encode_generate
from app.api.routes.delegate import Asked, FrontResponse, json_response
from app.api.routes.infer import ERROR_RESPONSES
from app.api.schemas import GenerateResponse
from app.codec.messages import Response as CodecResponse
from app.errors import InvalidRequest
from app.http.streaming import ResponseStream, send_events
from app.serving.infer_call import InferCall
from engine import Tensor

Encode: TypeAlias = Callable[[Mapping[str, Tensor]], bytes]

router = APIRouter(tags=["open inference protocol"])

_EXTRA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {"$ref": "#/components/schemas/GenerateRequest"}
            }
        },
    }
}
_TEXT = """Fields that are named like inputs of the model are tensors, all others are
parameters of the request. A single value needs no brackets.
"""
_EVENTS = """Every response of the model is an event `data: {…}`. An error that comes
after the first event is an event, too: `data: {"error": …}`.
"""


class _Generate(FrontResponse):
    """One response."""

    in_events = False

    async def answer(self, call: InferCall, asked: Asked) -> CodecResponse | None:
        request = await self.decode(
            call, asked, lambda codec: decode_generate(codec, asked.body)
        )
        codec = call.entry.codec(self.front.limits)
        call.accept(request, asked.headers, self.front.timeout)

        def encode(outputs: Mapping[str, Tensor]) -> bytes:
            return encode_generate(codec, request, outputs)

        async with ResponseStream(
            call, request, asked.receive, in_iterations=self.in_events
        ) as responses:
            return await self._take(responses, encode, asked.send)

    async def _take(
        self, responses: ResponseStream, encode: Encode, send: Send
    ) -> CodecResponse | None:
        text = b""
        async for outputs in responses:
            if text:
                raise InvalidRequest(NOT_ONE_RESPONSE)
            text = encode(outputs)
        if not text:
            raise InvalidRequest(NOT_ONE_RESPONSE)
        responses.succeed()
        return json_response(text)


class _GenerateStream(_Generate):
    """Any number of responses, each an event."""

    in_events = True

    async def _take(
        self, responses: ResponseStream, encode: Encode, send: Send
    ) -> None:
        await send_events(responses, encode, send)


def _declare(path: str, summary: str, kind: type[_Generate]) -> None:
    """One operation, with and without a version."""

    async def generate(request: Request, name: ModelName) -> Response:
        return kind(request.app.state.front, f"/v2/models/{name}/infer")

    async def generate_version(
        request: Request, name: ModelName, version: Version
    ) -> Response:
        infer = f"/v2/models/{name}/versions/{version}/infer"
        return kind(request.app.state.front, infer)

    is_stream = kind is _GenerateStream
    success: dict[str, Any] = {"model": GenerateResponse}
    if is_stream:
        success = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
    for prefix, handler in (
        ("/v2/models/{name}", generate),
        ("/v2/models/{name}/versions/{version}", generate_version),
    ):
        router.add_api_route(
            f"{prefix}/{path}",
            handler,
            methods=["POST"],
            summary=summary,
            description=_TEXT + (_EVENTS if is_stream else ""),
            response_class=Response,
            responses={200: success, **ERROR_RESPONSES},
            openapi_extra=_EXTRA,
        )


_declare("generate", "Run a model on flat JSON", _Generate)
_declare("generate_stream", "Run a model on flat JSON, in events", _GenerateStream)
