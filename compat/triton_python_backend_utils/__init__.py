"""The names that ``model.py`` files for Triton's Python backend import.

    import triton_python_backend_utils as pb_utils

Other spellings of `popgate.Model` and its context; `adapter` makes one of a
``TritonPythonModel``. docs/triton-python.md says what differs.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from engine import (
    Array,
    CalledModels,
    EngineError,
    InvalidInput,
    MetricSeries,
    OwnMetrics,
)

TRITONSERVER_RESPONSE_COMPLETE_FINAL = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_MEMORY_CPU = 0
TRITONSERVER_MEMORY_GPU = 2

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_BOOL": np.bool_,
    "TYPE_UINT8": np.uint8,
    "TYPE_UINT16": np.uint16,
    "TYPE_UINT32": np.uint32,
    "TYPE_UINT64": np.uint64,
    "TYPE_INT8": np.int8,
    "TYPE_INT16": np.int16,
    "TYPE_INT32": np.int32,
    "TYPE_INT64": np.int64,
    "TYPE_FP16": np.float16,
    "TYPE_FP32": np.float32,
    "TYPE_FP64": np.float64,
    "TYPE_STRING": np.object_,
}
#: By the numbers of Triton's data types, from 1.
TRITON_TO_NUMPY_TYPE = dict(enumerate(TRITON_STRING_TO_NUMPY.values(), 1))
NUMPY_TO_TRITON_TYPE = {kind: n for n, kind in TRITON_TO_NUMPY_TYPE.items()}

#: Parameters of a request that are the server's.
_NOT_PARAMETERS = ("timeout", "priority", "binary_data_output")

_log = logging.getLogger("model")


class TritonModelException(Exception):
    """What a model raises that cannot go on."""


class TritonError:
    """What went wrong with a request: a text, and one of the codes."""

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


class Tensor:
    """A name and an array. Those of inputs cannot be written."""

    def __init__(self, name: str, array: Array) -> None:
        if not isinstance(array, np.ndarray):
            kind = type(array).__name__
            raise TypeError(f"tensor {name!r} takes a NumPy array, got {kind}")
        self._name, self._array = name, array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        return self._array

    def triton_dtype(self) -> int:
        return numpy_to_triton_type(self._array.dtype.type)

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        """Always: devices of Python models have the tensors in memory."""
        return True

    def to_dlpack(self) -> Any:
        # A consumer wants to write what it is lent.
        return self._array.copy().__dlpack__()

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.copy().__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        if not hasattr(tensor, "__dlpack__"):
            tensor = _Capsule(tensor)
        return Tensor(name, np.from_dlpack(tensor))

    def __repr__(self) -> str:
        return f"<Tensor {self._name!r} {self._array.dtype}{self.shape()}>"


class _Capsule:
    """A tensor that has been packed already."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0  # the processor's memory


class InferenceResponse:
    """The outputs of a request, or an error."""

    def __init__(
        self,
        output_tensors: Iterable[Tensor] | None = None,
        error: TritonError | str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._tensors = list(output_tensors or ())
        self._error = TritonError(error) if isinstance(error, str) else error
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
    """Takes the responses to one request, from any thread."""

    def __init__(
        self, give: Callable[[Any], object], is_cancelled: Callable[[], bool]
    ) -> None:
        self._give, self._is_cancelled = give, is_cancelled
        self._is_closed = False

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """`response`, and with TRITONSERVER_RESPONSE_COMPLETE_FINAL none after it."""
        if self._is_closed:
            raise TritonModelException(
                "a response was sent after the one with "
                "TRITONSERVER_RESPONSE_COMPLETE_FINAL"
            )
        if flags not in (0, TRITONSERVER_RESPONSE_COMPLETE_FINAL):
            raise TritonModelException(f"there are no response flags {flags}")
        if response is None and not flags:
            raise TritonModelException("a response or the final flag must be sent")
        if response is not None:
            self._give(response)
        if flags:
            self._is_closed = True
            self._give(None)

    def is_cancelled(self) -> bool:
        return self._is_cancelled()


class PreferredMemory:
    """Where outputs are wanted; they are in the processor's memory anyway."""

    def __init__(self, preferred_memory_type: int, preferred_device_id: int = 0):
        self.memory_type = preferred_memory_type
        self.device_id = preferred_device_id


class InferenceRequest:
    """A request that `execute` gets, or one to another model."""

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
        #: Set by the adapter: who takes the responses, and what the request says of
        #: itself, which is asked for when it is looked at.
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
            raise TritonModelException("this request is not one of execute")
        return self.sender

    # -- to other models

    def exec(self, decoupled: bool = False) -> Any:
        """The response of the other model; with `decoupled` an iterator of several."""
        if decoupled:
            return self._exec_decoupled()
        try:
            found = _called(self).call(self._feed(), **self._options())
        except EngineError as error:
            return _failed(error)
        return _response(found)

    def _exec_decoupled(self) -> Iterator[InferenceResponse]:
        """The call begins now, not with the first look."""
        try:
            found = _called(self).stream(self._feed(), **self._options())
        except EngineError as error:
            return iter([_failed(error)])
        return _responses(found)

    async def async_exec(self, decoupled: bool = False) -> Any:
        """`exec` for coroutines."""
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


#: What `MetricFamily.Metric` makes: `increment`, `set`, `observe` and `value`.
Metric = MetricSeries


class _Host:
    """What the adapter knows of where it runs."""

    models: CalledModels | None = None
    metrics: OwnMetrics | None = None
    folder: Path = Path()


HOST = _Host()


def _called(request: InferenceRequest) -> Any:
    version = request.model_version()
    name = request.model_name() + (f"/{version}" if version > 0 else "")
    if HOST.models is None:
        raise InvalidInput("no models can be called before initialize")
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


class Logger:
    """Goes to the server's log, with the model's name."""

    INFO, WARNING, ERROR, VERBOSE = range(4)
    _LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)

    @staticmethod
    def log(message: str, level: int = INFO) -> None:
        _log.log(Logger._LEVELS[level], "%s", message)

    @staticmethod
    def log_info(message: str) -> None:
        _log.info("%s", message)

    @staticmethod
    def log_warn(message: str) -> None:
        _log.warning("%s", message)

    @staticmethod
    def log_error(message: str) -> None:
        _log.error("%s", message)

    @staticmethod
    def log_verbose(message: str) -> None:
        _log.debug("%s", message)


class ModelConfig:
    """What `auto_complete_config` completes."""

    _TENSOR = frozenset({"name", "data_type", "dims", "optional"})

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = dict(config)
        self._config.setdefault("input", [])
        self._config.setdefault("output", [])

    def as_dict(self) -> dict[str, Any]:
        return self._config

    def add_input(self, tensor: Mapping[str, Any]) -> None:
        self._add("input", tensor)

    def add_output(self, tensor: Mapping[str, Any]) -> None:
        self._add("output", tensor)

    def _add(self, kind: str, tensor: Mapping[str, Any]) -> None:
        allowed = self._TENSOR - ({"optional"} if kind == "output" else set())
        missing = {"name", "data_type", "dims"} - tensor.keys()
        if missing or tensor.keys() - allowed:
            raise ValueError(
                f"{kind} must have name, data_type and dims, got {sorted(tensor)}"
            )
        tensors: list[dict[str, Any]] = self._config[kind]
        found = next((t for t in tensors if t["name"] == tensor["name"]), None)
        if found is None:
            self._config[kind] = [*self._config[kind], dict(tensor)]
            return
        for key in ("data_type", "dims"):
            given = list(tensor[key]) if key == "dims" else tensor[key]
            if found.get(key) and found[key] != given:
                raise ValueError(
                    f"{kind} {tensor['name']!r} has {key} {found[key]} in the "
                    f"configuration, and {given} in auto_complete_config"
                )
            found[key] = given

    def set_max_batch_size(self, max_batch_size: int) -> None:
        before = self._config.get("max_batch_size") or 0
        if before > max_batch_size:
            raise ValueError(
                f"max_batch_size is {before} in the configuration, and "
                f"{max_batch_size} in auto_complete_config"
            )
        if not before:
            self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        if not self._config.get("sequence_batching"):
            self._config.setdefault("dynamic_batching", {})

    def set_model_transaction_policy(self, policy: Mapping[str, Any]) -> None:
        if policy.keys() != {"decoupled"}:
            raise ValueError("a transaction policy has 'decoupled', and nothing else")
        self._config["model_transaction_policy"] = dict(policy)


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return next((t for t in request.inputs() if t.name() == name), None)


def get_output_tensor_by_name(response: InferenceResponse, name: str) -> Tensor | None:
    return next((t for t in response.output_tensors() if t.name() == name), None)


def get_input_config_by_name(config: Mapping[str, Any], name: str) -> Any:
    return next((t for t in config.get("input", ()) if t["name"] == name), None)


def get_output_config_by_name(config: Mapping[str, Any], name: str) -> Any:
    return next((t for t in config.get("output", ()) if t["name"] == name), None)


def using_decoupled_model_transaction_policy(config: Mapping[str, Any]) -> bool:
    return bool(config.get("model_transaction_policy", {}).get("decoupled"))


def triton_to_numpy_type(data_type: int) -> Any:
    return TRITON_TO_NUMPY_TYPE[data_type]


def numpy_to_triton_type(data_type: Any) -> int:
    if np.dtype(data_type).kind in "OSU":
        return NUMPY_TO_TRITON_TYPE[np.object_]
    return NUMPY_TO_TRITON_TYPE[np.dtype(data_type).type]


def triton_string_to_numpy(triton_type_string: str) -> Any:
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def get_model_dir() -> str:
    """The folder of the version."""
    return str(HOST.folder)


def serialize_byte_tensor(tensor: Array) -> Array:
    """The strings of an array as bytes: each after its length, in four bytes."""
    parts = []
    for each in tensor.ravel().tolist():
        raw = each if isinstance(each, bytes) else str(each).encode()
        parts.append(len(raw).to_bytes(4, "little") + raw)
    return np.array(b"".join(parts), dtype=object)


def deserialize_bytes_tensor(encoded: bytes) -> Array:
    """What `serialize_byte_tensor` was given, in one dimension."""
    found: list[bytes] = []
    at = 0
    while at < len(encoded):
        end = at + 4 + int.from_bytes(encoded[at : at + 4], "little")
        found.append(encoded[at + 4 : end])
        at = end
    return np.array(found, dtype=object)


class MetricFamily:
    """Metrics of one name, on the server's ``/metrics``; to be made from `initialize`
    on. Raises ValueError for names and labels that cannot be."""

    COUNTER, GAUGE, HISTOGRAM = range(3)
    _KINDS = ("counter", "gauge", "histogram")

    def __init__(self, name: str, description: str, kind: int) -> None:
        if HOST.metrics is None:
            raise TritonModelException("there are no metrics before initialize")
        if kind not in range(3):
            raise ValueError(f"metric {name} has no kind {kind!r}")
        self._family = HOST.metrics.family(name, description, self._KINDS[kind])

    def Metric(  # noqa: N802
        self,
        labels: Mapping[str, str] | None = None,
        buckets: Sequence[float] | None = None,
    ) -> Metric:
        """The one with these labels; a histogram needs the upper bounds of buckets."""
        return self._family.series(labels, buckets or ())


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Whether a model of the server takes requests now. Raises TritonModelException for
    one that this model may not call."""
    if HOST.models is None:
        raise TritonModelException("there are no models before initialize")
    try:
        return HOST.models.is_ready("/".join(filter(None, (model_name, model_version))))
    except KeyError as error:
        raise TritonModelException(str(error)) from None


def load_model(model_name: str, files: Mapping[str, str] | None = None) -> NoReturn:
    """Raises TritonModelException: loading is not a model's business."""
    _refuse("load", model_name)


def unload_model(model_name: str, unload_dependents: bool = False) -> NoReturn:
    """Raises TritonModelException, as `load_model`."""
    _refuse("unload", model_name)


def _refuse(what: str, name: str) -> NoReturn:
    raise TritonModelException(
        f"a model cannot {what} others here: run `popgate {what} {name}`, or POST "
        f"/v2/repository/models/{name}/{what}; what a model calls can be named in "
        "`models` of its config.toml, and is loaded before it then"
    )
