"""Requests: those that `execute` receives, and those to other models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from engine import Array, EngineError, InvalidInput
from triton_python_backend_utils.host import HOST
from triton_python_backend_utils.responses import (
    InferenceResponse,
    InferenceResponseSender,
    TritonError,
    TritonModelException,
)
from triton_python_backend_utils.tensors import Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 2

#: Parameters of a request that belong to the server.
_NOT_PARAMETERS = ("timeout", "priority", "binary_data_output")


class PreferredMemory:
    """Preferred memory for outputs. It has no effect: they are in processor memory."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0):
        self.memory_type = preferred_memory_type
        self.device_id = preferred_device_id


class InferenceRequest:
    """A request that `execute` receives, or one to another model."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory | None = None,
        trace: Any = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._request_id, self._correlation_id = request_id, correlation_id
        self._inputs = list(inputs)
        self._outputs = list(requested_output_names)
        self._model, self._version = model_name, model_version
        self._flags, self._timeout, self._trace = flags, timeout, trace
        self._parameters = dict(parameters or {})
        #: Set by the adapter: the sender of responses, and a function that fetches the
        #: request's own data at their first use.
        self.sender: InferenceResponseSender | None = None
        self.ask: Callable[[], Mapping[str, Any]] | None = None

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def _said(self) -> None:
        ask, self.ask = self.ask, None
        if ask is None:
            return
        said = ask()
        given = dict(said.get("parameters", {}))
        self._request_id = str(said.get("id", ""))
        self._timeout = int(said.get("timeout", 0))
        self._correlation_id = given.pop("sequence_id", 0)
        for name, flag in (
            ("sequence_start", TRITONSERVER_REQUEST_FLAG_SEQUENCE_START),
            ("sequence_end", TRITONSERVER_REQUEST_FLAG_SEQUENCE_END),
        ):
            if given.pop(name, False):
                self._flags |= flag
        for name in _NOT_PARAMETERS:
            given.pop(name, None)
        self._parameters = given

    def request_id(self) -> str:
        self._said()
        return self._request_id

    def correlation_id(self) -> int | str:
        self._said()
        return self._correlation_id

    def requested_output_names(self) -> list[str]:
        return self._outputs

    def model_name(self) -> str:
        return self._model

    def model_version(self) -> int:
        return self._version

    def flags(self) -> int:
        self._said()
        return self._flags

    def set_flags(self, flags: int) -> None:
        self._said()
        self._flags = flags

    def timeout(self) -> int:
        self._said()
        return self._timeout

    def parameters(self) -> str:
        self._said()
        return json.dumps(self._parameters)

    def trace(self) -> Any:
        return self._trace

    def is_cancelled(self) -> bool:
        return self.sender is not None and self.sender.is_cancelled()

    def get_response_sender(self) -> InferenceResponseSender:
        if self.sender is None:
            raise TritonModelException(
                "this request was not passed to execute; only those have a "
                "response sender"
            )
        return self.sender

    # -- to other models

    def exec(self, decoupled: bool = False) -> Any:
        """Return the response of the other model; with `decoupled` an iterator
        of several.
        """
        if decoupled:
            return self._exec_decoupled()
        try:
            found = _called(self).call(self._feed(), **self._options())
        except EngineError as error:
            return _failed(error)
        return _response(found)

    def _exec_decoupled(self) -> Iterator[InferenceResponse]:
        """Begin the call immediately, not at the first access to its responses."""
        try:
            found = _called(self).stream(self._feed(), **self._options())
        except EngineError as error:
            return iter([_failed(error)])
        return _responses(found)

    async def async_exec(self, decoupled: bool = False) -> Any:
        """Return the response of the other model, like `exec`, in a coroutine."""
        if decoupled:
            return self._exec_decoupled()
        try:
            found = await _called(self).begin_async(self._feed(), **self._options())
        except EngineError as error:
            return _failed(error)
        return _response(found)

    def _feed(self) -> dict[str, Array]:
        return {tensor.name(): tensor.as_numpy() for tensor in self._inputs}

    def _options(self) -> dict[str, Any]:
        parameters = dict(self._parameters)
        if self._correlation_id:
            parameters["sequence_id"] = self._correlation_id
            start = self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
            end = self._flags & TRITONSERVER_REQUEST_FLAG_SEQUENCE_END
            parameters |= {"sequence_start": bool(start), "sequence_end": bool(end)}
        return {
            "timeout": self._timeout / 1e6 if self._timeout else None,
            "outputs": self._outputs or None,
            "parameters": parameters,
        }


def _called(request: InferenceRequest) -> Any:
    version = request.model_version()
    name = request.model_name() + (f"/{version}" if version > 0 else "")
    if HOST.models is None:
        raise InvalidInput("models cannot be called before initialize")
    try:
        return HOST.models[name]
    except KeyError as error:
        raise InvalidInput(str(error)) from None


def _response(outputs: Mapping[str, Array]) -> InferenceResponse:
    return InferenceResponse([Tensor(name, a) for name, a in outputs.items()])


def _responses(found: Iterator[Mapping[str, Array]]) -> Iterator[InferenceResponse]:
    try:
        for outputs in found:
            yield _response(outputs)
    except EngineError as error:
        yield _failed(error)


def _failed(error: EngineError) -> InferenceResponse:
    return InferenceResponse([], TritonError(str(error)))


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return next((t for t in request.inputs() if t.name() == name), None)
