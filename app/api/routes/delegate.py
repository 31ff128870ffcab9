"""Operations whose bodies the front reads: tensors do not go through FastAPI."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from fastapi import Response
from starlette.types import Receive, Scope, Send

from app.codec.messages import Body
from app.codec.messages import Response as CodecResponse
from app.codec.model import DECODED_AT_ONCE, ModelCodec
from app.http.front import InferFront
from app.serving.infer_call import InferCall

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request whose body has been read, and is no longer compressed."""

    headers: Mapping[bytes, bytes]
    body: Body
    receive: Receive
    send: Send


class FrontResponse(Response):
    """A response that is made when the front has read the body.

    `infer_path` says for which model. Subclasses answer.
    """

    def __init__(self, front: InferFront, infer_path: str) -> None:
        super().__init__()
        self.front = front
        self._path = infer_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers: dict[bytes, bytes] = dict(scope["headers"])

        async def answer(call: InferCall, body: Body) -> CodecResponse | None:
            return await self.answer(call, Asked(headers, body, receive, send))

        await self.front.run_call(self._path, headers, receive, send, answer)

    async def decode(
        self, call: InferCall, asked: Asked, decode: Callable[[ModelCodec], T]
    ) -> T:
        """What `decode` makes of the body; in a thread, if that may take long."""
        if sum(map(len, asked.body)) > DECODED_AT_ONCE:
            return await self.front.in_thread(self._path, call, decode)
        return decode(call.entry.codec(self.front.limits))

    async def answer(self, call: InferCall, asked: Asked) -> CodecResponse | None:
        """The response, or None where it has been sent; raises what to answer else."""
        raise NotImplementedError


def json_response(text: bytes) -> CodecResponse:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(text)),
    ]
    return CodecResponse(200, headers, [text])
