"""KServe's first protocol: `POST /v1/models/{name}:predict`."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from app.api.dependencies import ModelName, Version
from app.api.kserve_v1 import decode_predict, encode_predict
from app.api.routes.delegate import Asked, FrontResponse, json_response
from app.api.routes.infer import ERROR_RESPONSES
from app.api.schemas import PredictResponse
from app.codec.messages import Response as CodecResponse
from app.errors import InvalidRequest
from app.http.streaming import ResponseStream
from app.serving.infer_call import InferCall

router = APIRouter(tags=["kserve v1"])

_SCHEMA = {"$ref": "#/components/schemas/PredictRequest"}
_EXTRA: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": _SCHEMA}},
    }
}
_TEXT = """`instances` in, `predictions` out, one for each; or `inputs` in columns, and
`outputs`. Values are nested lists; a model with several inputs takes objects by name.
Bytes that are no text are `{"b64": "…"}`.
"""


class _Predict(FrontResponse):
    async def answer(self, call: InferCall, asked: Asked) -> CodecResponse | None:
        predict = await self.decode(
            call, asked, lambda codec: decode_predict(codec, asked.body)
        )
        codec = call.entry.codec(self.front.limits)
        call.accept(predict.request, asked.headers, self.front.timeout)
        text = b""
        async with ResponseStream(call, predict.request, asked.receive) as responses:
            async for outputs in responses:
                if text:
                    break
                text = encode_predict(codec, predict, outputs)
            else:
                if text:
                    responses.succeed()
                    return json_response(text)
        msg = f"model '{codec.spec.name}' does not give exactly 1 response"
        raise InvalidRequest(msg)


def _front_of(request: Request) -> Any:
    return request.app.state.front


async def _predict(request: Request, name: ModelName) -> Response:
    return _Predict(_front_of(request), f"/v1/models/{name}/infer")


async def _predict_version(
    request: Request, name: ModelName, version: Version
) -> Response:
    path = f"/v1/models/{name}/versions/{version}/infer"
    return _Predict(_front_of(request), path)


for _path, _handler, _what in (
    ("/v1/models/{name}:predict", _predict, "a model"),
    ("/v1/models/{name}/versions/{version}:predict", _predict_version, "a version"),
):
    router.add_api_route(
        _path,
        _handler,
        methods=["POST"],
        summary=f"Run {_what} on instances",
        description=_TEXT,
        response_class=Response,
        responses={200: {"model": PredictResponse}, **ERROR_RESPONSES},
        openapi_extra=_EXTRA,
    )
