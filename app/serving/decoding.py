"""Decoding and encoding of a request in a thread, because it takes long."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from app.codec.messages import Body, InferRequest, Response
from app.codec.model import DECODED_AT_ONCE, ModelCodec
from app.errors import ModelNotReady
from app.serving.forms import Form
from app.serving.service import Service
from app.serving.table import ModelEntry
from engine import Tensor


class Decoding:
    """The decoding of one request to the model at `path`.

    `follow` is called with the present version of the model if it was swapped
    meanwhile.
    """

    def __init__(
        self,
        service: Service,
        path: str,
        headers: Mapping[bytes, bytes],
        form: Form | None,
        follow: Callable[[ModelEntry], None],
    ) -> None:
        self._service = service
        self._path = path
        self._headers = headers
        self._form = form
        self._follow = follow

    async def run(self, entry: ModelEntry, body: Body, latest: float) -> InferRequest:
        """Return the request that a version of the model decodes.

        Raises `RequestError`, and DeadlineExceeded at `latest`, a `time.monotonic()`
        time.
        """
        decode = partial(self._decode, body)
        while True:
            if not entry.ready:
                raise ModelNotReady(entry.spec.name)
            if self._form is None:
                takes_long = entry.codec.takes_long(self._headers, body)
            else:
                takes_long = sum(map(len, body)) > DECODED_AT_ONCE
            if not takes_long:
                return decode(entry.codec)
            request = await self._service.decode(decode, entry.codec, latest)
            now = self._service.models.paths.get(self._path)
            if now is None or now.runner is entry.runner:
                return request
            self._follow(now)
            entry = now

    def _decode(self, body: Body, codec: ModelCodec) -> InferRequest:
        if self._form is not None:
            return self._form.decode(codec, body)
        get = self._headers.get
        return codec.decode(
            get(b"content-type"),
            get(b"inference-header-content-length"),
            get(b"accept"),
            body,
        )


def encoder_of(
    codec: ModelCodec,
    form: Form | None,
    request: InferRequest,
    outputs: Mapping[str, Tensor],
) -> Callable[[], Response]:
    """Return a function that encodes the outputs of a request."""
    if form is None:
        return partial(codec.encode, request, outputs)
    return partial(form.encode, codec, request, outputs)
