"""Forms of requests and answers that the codec does not know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from app.codec.messages import Body, InferRequest, Response
from app.codec.model import ModelCodec
from app.errors import ErrorResponse
from app.serving.table import ModelTable
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


class NamingForm(Form, Protocol):
    """A form whose body names the model."""

    def target(self, body: Body, models: ModelTable) -> str:
        """Return the infer path of the model that a body names. Raises `RequestError`.

        Large bodies are read in a thread. A worker may call it twice for one body.
        """
