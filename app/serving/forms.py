"""Forms of requests and answers that the codec does not know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol, runtime_checkable

from app.codec.messages import Body, InferRequest, Refusal, Response, lines_of
from app.codec.model import ModelCodec
from app.errors import ErrorResponse, row_of
from engine import Tensor


class Form(Protocol):
    """Form of one request and its answer.

    `not_one` is the client's error if the model does not give exactly one response.
    """

    not_one: str

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        """Raise `RequestError`."""

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        """Raise `RequestError`."""


@runtime_checkable
class ErrorForm(Protocol):
    """A form with a body of its own for errors."""

    def refuse(self, answer: ErrorResponse) -> ErrorResponse:
        """Return the answer in this form."""


@runtime_checkable
class TypedForm(Protocol):
    """A form that reads only some content types."""

    def check_type(self, media_type: bytes) -> None:
        """Check the type of the body, in lower case and without parameters.

        The server calls this before it reads the body. Raises `UnsupportedMediaType`.
        """


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


def refusal_of(error: Exception, request_id: bytes, form: Form | None) -> Refusal:
    """Return the answer to a request that failed."""
    answer = ErrorResponse.of(error, request_id)
    if form is not None and isinstance(form, ErrorForm):
        answer = form.refuse(answer)
    lines, code = lines_of(answer.headers), row_of(error).code
    return Refusal(answer.status, lines, answer.body, code)
