"""Responses to a request, and their errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from triton_python_backend_utils.tensors import Tensor

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1


class TritonModelException(Exception):
    """Error of a model that cannot continue."""


class TritonError:
    """Error of a request: a message, and one of the codes."""

    UNKNOWN, INTERNAL, NOT_FOUND, INVALID_ARG = range(4)
    UNAVAILABLE, UNSUPPORTED, ALREADY_EXISTS, CANCELLED = range(4, 8)

    def __init__(self, message: str, code: int = INTERNAL) -> None:
        self._message, self._code = str(message), code

    def message(self) -> str:
        return self._message

    def code(self) -> int:
        return self._code

    def __str__(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"<TritonError {self._code} {self._message!r}>"


class InferenceResponse:
    """The outputs of a request, or an error."""

    def __init__(
        self,
        output_tensors: Iterable[Tensor] | None = None,
        error: TritonError | Exception | str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._tensors = list(output_tensors or ())
        if error is not None and not isinstance(error, TritonError):
            error = TritonError(str(error))
        self._error = error
        self._parameters = dict(parameters or {})

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        return json.dumps(self._parameters)


class InferenceResponseSender:
    """Sender of the responses to one request. Thread-safe."""

    def __init__(
        self, give: Callable[[Any], object], is_cancelled: Callable[[], bool]
    ) -> None:
        self._give, self._is_cancelled = give, is_cancelled
        self._is_closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send `response`; with TRITONSERVER_RESPONSE_COMPLETE_FINAL it is the last."""
        if self._is_closed:
            raise TritonModelException(
                "no response may be sent after the one with "
                "TRITONSERVER_RESPONSE_COMPLETE_FINAL"
            )
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(
                f"unknown response flags {flags}; expected 0 or "
                "TRITONSERVER_RESPONSE_COMPLETE_FINAL"
            )
        if response is None and not flags:
            raise TritonModelException(
                "send() needs a response or the flag "
                "TRITONSERVER_RESPONSE_COMPLETE_FINAL"
            )
        if response is not None:
            self._give(response)
        if flags:
            self._is_closed = True
            self._give(None)

    def is_cancelled(self) -> bool:
        return self._is_cancelled()


def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
    return next((t for t in response.output_tensors() if t.name() == name), None)
