"""Adapters from a `TritonPythonModel` to the models that PopGate runs."""

from __future__ import annotations

import asyncio
import inspect
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import triton_python_backend_utils as pb_utils
from engine import (
    AlreadyExists,
    Array,
    CancelledByModel,
    EngineError,
    ExecutionFailed,
    InvalidInput,
    InvalidModel,
    NotFound,
    Refused,
    Unsupported,
)
from popgate_python_interface import Context

#: Name of the class in a file for Triton.
CLASS = "TritonPythonModel"
#: Exceptions by error code; other codes mean ExecutionFailed.
_KINDS: dict[int, type[EngineError]] = {
    pb_utils.TritonError.UNKNOWN: InvalidInput,
    pb_utils.TritonError.INVALID_ARG: InvalidInput,
    pb_utils.TritonError.UNAVAILABLE: Refused,
    pb_utils.TritonError.NOT_FOUND: NotFound,
    pb_utils.TritonError.UNSUPPORTED: Unsupported,
    pb_utils.TritonError.ALREADY_EXISTS: AlreadyExists,
    pb_utils.TritonError.CANCELLED: CancelledByModel,
}
#: Defaults of Triton's model configuration.
_DEFAULTS: dict[str, Any] = {
    "platform": "",
    "max_batch_size": 0,
    "batch_input": [],
    "batch_output": [],
    "default_model_filename": "model.py",
    "metric_tags": {},
    "parameters": {},
    "model_warmup": [],
}
#: Seconds between checks for cancellation, while a response from a thread is awaited.
LOOK = 0.05
#: Responses to a request of a decoupled model that may wait for its client.
MOST_WAITING = 16


def adapt(module: ModuleType, config: Mapping[str, Any]) -> type[Any] | None:
    """Return the model in a module; None if the module is not for Triton.

    `config` is the model configuration, as Triton has it in JSON. Raises InvalidModel.
    """
    theirs = getattr(module, CLASS, None)
    if not inspect.isclass(theirs):
        return None
    if not callable(getattr(theirs, "execute", None)):
        raise InvalidModel(f"{CLASS} has no method execute")
    complete = dict(config)
    auto_complete = getattr(theirs, "auto_complete_config", None)
    if auto_complete is not None:
        made = auto_complete(pb_utils.ModelConfig(config))
        if not isinstance(made, pb_utils.ModelConfig):
            raise InvalidModel(
                "auto_complete_config must return the configuration that it received"
            )
        complete = made.as_dict()
    inputs, outputs = _tensors(complete, "input"), _tensors(complete, "output")
    inputs |= _controls(complete)
    if not inputs or not outputs:
        raise InvalidModel(
            "config.pbtxt names no input and output; name them there, or in "
            f"auto_complete_config of {CLASS}"
        )
    decoupled = pb_utils.using_decoupled_model_transaction_policy(complete)
    batches = "dynamic_batching" in complete or "sequence_batching" in complete
    rows = int(complete.get("max_batch_size") or 0)
    members = {
        "__module__": module.__name__,
        "inputs": inputs,
        "outputs": outputs,
        "batching": bool(rows and batches and not decoupled),
        "theirs": theirs,
        "model_config": complete,
    }
    return type("Triton", (_Decoupled if decoupled else _Ordinary,), members)


def _tensors(config: Mapping[str, Any], kind: str) -> dict[str, str]:
    found = {t["name"]: _written(config, t) for t in config.get(kind, ())}
    states = config.get("sequence_batching", {}).get("state", ())
    return found | {s[f"{kind}_name"]: _written(config, s) for s in states}


def _controls(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for item in config.get("sequence_batching", {}).get("control_input", ()):
        for control in item.get("control", ()):
            kind = control.get("data_type", "TYPE_INVALID")
            for values, name in (
                ("int32_false_true", "TYPE_INT32"),
                ("fp32_false_true", "TYPE_FP32"),
                ("bool_false_true", "TYPE_BOOL"),
            ):
                kind = name if control.get(values) else kind
            tensor = {"data_type": kind, "dims": [1]}
            found[item["name"]] = _written(config, tensor)
    return found


def _written(config: Mapping[str, Any], tensor: Mapping[str, Any]) -> str:
    """Return a tensor in the form of `popgate.Model`."""
    kind = str(tensor["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES")
    rows = [-1] if config.get("max_batch_size") else []
    dims = ",".join(str(int(dim)) for dim in [*rows, *tensor["dims"]])
    return f"{kind}[{dims}]"


class _Adapted:
    """Common part of both kinds of models. For one thread."""

    theirs: type[Any]
    model_config: Mapping[str, Any]
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]

    def load(self, context: Context) -> Any:
        self.context = context
        pb_utils.HOST.models, pb_utils.HOST.metrics = context.models, context.metrics
        pb_utils.HOST.folder = Path(context.folder)
        self.model = self.theirs()
        initialize = getattr(self.model, "initialize", None)
        if initialize is None:
            return None
        folder = Path(context.folder)
        name = str(self.model_config.get("name") or folder.parent.name)
        return initialize(
            {
                "model_config": json.dumps({**_DEFAULTS, **self.model_config}),
                "model_instance_kind": "CPU",
                "model_instance_name": f"{name}_0_{context.device.split('.')[-1]}",
                "model_instance_device_id": "0",
                "model_repository": str(folder.parent),
                "model_version": folder.name if folder.name.isdecimal() else "1",
                "model_name": name,
            }
        )

    def close(self) -> Any:
        finalize = getattr(self.model, "finalize", None)
        return None if finalize is None else finalize()

    def request(self, feed: Mapping[str, Array]) -> pb_utils.InferenceRequest:
        return pb_utils.InferenceRequest(
            inputs=[pb_utils.Tensor(name, array) for name, array in feed.items()],
            requested_output_names=list(self.outputs),
            model_name=str(self.model_config.get("name", "")),
        )

    def stated(self, number: int) -> Mapping[str, Any]:
        """Return the id, timeout and parameters of a request of the present run."""
        stated = self.context.stated()
        return stated[number] if number < len(stated) else {}

    def outputs_of(self, response: Any) -> dict[str, Array]:
        """Return the outputs of a response, or raise its error."""
        if not isinstance(response, pb_utils.InferenceResponse):
            kind = type(response).__name__
            raise ExecutionFailed(f"expected an InferenceResponse, got {kind}")
        error = response.error()
        if error is not None:
            raise _KINDS.get(error.code(), ExecutionFailed)(error.message())
        if response.parameters() != "{}":
            raise Unsupported(
                "PopGate does not send InferenceResponse(parameters=…); "
                f"return {response.parameters():.200} as an output"
            )
        return {t.name(): t.as_numpy() for t in response.output_tensors()}


class _Ordinary(_Adapted):
    """One response to each request."""

    def __call__(self, **feed: Array) -> Any:
        requests = [self.request(part) for part in self._parts(feed)]
        waits = [_Wait() for _ in requests]
        for number, (request, wait) in enumerate(zip(requests, waits, strict=True)):
            request.ask = partial(self.stated, number)
            request.sender = pb_utils.InferenceResponseSender(
                wait.give, lambda: self.context.cancelled
            )
        found = self.model.execute(requests)
        if inspect.isawaitable(found):
            return self._later(found, waits)
        return self._joined(found, waits)

    async def _later(self, found: Any, waits: Sequence[_Wait]) -> dict[str, Array]:
        return self._joined(await found, waits)

    def _parts(self, feed: Mapping[str, Array]) -> list[dict[str, Array]]:
        """Return the rows of each request, as Triton passes them."""
        rows = self.context.rows
        if len(rows) < 2:
            return [dict(feed)]
        ends = np.cumsum(rows)
        return [
            {name: array[end - count : end] for name, array in feed.items()}
            for count, end in zip(rows, ends, strict=True)
        ]

    def _joined(self, found: Any, waits: Sequence[_Wait]) -> dict[str, Array]:
        if found is None:
            found = [wait.response(self.context) for wait in waits]
        if not isinstance(found, list) or len(found) != len(waits):
            count = len(found) if isinstance(found, list) else type(found).__name__
            raise ExecutionFailed(
                f"execute returned {count}; expected a list of {len(waits)} "
                "responses, one for each request"
            )
        parts = [self.outputs_of(response) for response in found]
        if len(parts) == 1:
            return parts[0]
        for part, rows in zip(parts, self.context.rows, strict=True):
            _check_rows(part, rows)
        return {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}


def _check_rows(outputs: Mapping[str, Array], rows: int) -> None:
    """Raise ExecutionFailed for a response with other rows than its request. It would
    shift the rows of the responses that follow.
    """
    for name, array in outputs.items():
        found = len(array) if array.shape else "none"
        if found != rows:
            raise ExecutionFailed(f"output {name!r} must have {rows} rows, got {found}")


class _Wait:
    """The response to a request that arrives through its sender."""

    def __init__(self) -> None:
        self._responses: list[Any] = []
        self._done = threading.Event()

    def give(self, response: Any) -> None:
        if response is not None:
            self._responses.append(response)
        self._done.set()

    def response(self, context: Context) -> Any:
        while not self._done.wait(LOOK):
            if context.cancelled:
                raise ExecutionFailed("the client has cancelled the request")
        if len(self._responses) != 1:
            raise ExecutionFailed(
                f"the model sent {len(self._responses)} responses, expected 1; other "
                "numbers require model_transaction_policy { decoupled: true }"
            )
        return self._responses[0]


class _Sent:
    """The responses to one request of a decoupled model that wait for its client.

    A thread that sends more of them than `MOST_WAITING` waits in `give`. It goes on if
    that holds up the model's own code, which may be waiting for the thread.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._arrived = asyncio.Event()
        self._waiting: deque[Any] = deque()
        self._room = threading.Condition()
        self._is_turn = self._has_no_limit = self.gone = False

    def give(self, response: Any) -> None:
        """Add a response, or None after the last one."""
        with self._room:
            if threading.get_ident() != self._thread:
                while not self._room.wait_for(self._takes_more, LOOK):
                    self._has_no_limit = self._is_turn
            if not self.gone:
                self._waiting.append(response)
                self._loop.call_soon_threadsafe(self._arrived.set)

    def _takes_more(self) -> bool:
        return self.gone or self._has_no_limit or len(self._waiting) < MOST_WAITING

    async def take(self) -> Any:
        """Return the next response, once there is one."""
        while not self._waiting:
            self.turn(True)
            self._arrived.clear()
            await self._arrived.wait()
        self.turn(False)
        with self._room:
            self._room.notify_all()
            return self._waiting.popleft()

    def turn(self, begins: bool) -> None:
        """Record whether the model's own code runs, in the thread that takes."""
        with self._room:
            self._is_turn = begins
            self._has_no_limit = False

    def end(self) -> None:
        """Accept no more responses."""
        with self._room:
            self.gone = True
            self._room.notify_all()


class _Decoupled(_Adapted):
    """Any number of responses, from any thread."""

    def __init__(self) -> None:
        self.under_way: set[_Sent] = set()

    async def __call__(self, **feed: Array) -> AsyncIterator[dict[str, Array]]:
        sent = _Sent()
        #: The thread inside `execute`, which alone may ask about the present run.
        inside: int | None = threading.get_ident()

        def is_cancelled() -> bool:
            is_run = inside == threading.get_ident()
            return sent.gone or (is_run and self.context.cancelled)

        request = self.request(feed)
        # Read this now: the model's threads may ask long after this run.
        request.ask = partial(dict, self.stated(0))
        request.sender = pb_utils.InferenceResponseSender(sent.give, is_cancelled)
        running: Any = None
        self.under_way.add(sent)
        try:
            try:
                self._turns(True)
                running = self.model.execute([request])
            finally:
                inside = None
                self._turns(False)
            if inspect.isawaitable(running):
                running = asyncio.ensure_future(running)
                running.add_done_callback(lambda task: _tell_failure(task, sent))
            elif running is not None:
                raise ExecutionFailed(
                    "execute of a decoupled model must return None; send "
                    "responses with request.get_response_sender()"
                )
            while (response := await sent.take()) is not None:
                if isinstance(response, BaseException):
                    raise response
                yield self.outputs_of(response)
        finally:
            self.under_way.discard(sent)
            sent.end()
            if isinstance(running, asyncio.Future):
                running.cancel()

    def _turns(self, begin: bool) -> None:
        """Begin or end the turns of all requests. `execute` may wait for any thread."""
        for sent in self.under_way:
            sent.turn(begin)


def _tell_failure(task: asyncio.Future[Any], sent: _Sent) -> None:
    if not task.cancelled() and task.exception() is not None:
        sent.give(task.exception())
