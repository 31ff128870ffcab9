"""Facts about a model that calls need, and its prepared requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from popgate_client.encodings import (
    CONTENT_TYPES,
    HEADER_LENGTH,
    Encoding,
    Parts,
    encode,
    head_of_binary,
    size_of,
)
from popgate_client.errors import ClientError, InvalidRequest
from popgate_client.http1 import check_headers, request_head
from popgate_client.steps import PLAIN, CallOptions, Options, Prepared
from popgate_client.tensors import DTYPES, Tensor, tensor_of
from popgate_client.values import UnevenRecords, columns_of, inputs_of_table

#: Most prepared requests of a model: one for each combination of shapes.
MOST_PREPARED = 64
_MICROSECONDS = 1_000_000


class KnownModel:
    """The facts about a model that calls need.

    Its inputs are missing if the server does not describe it; `binary`: the server
    reads binary tensors; `problem`: why there is no description.
    """

    __slots__ = (
        "_inputs",
        "_options",
        "_prepared",
        "binary",
        "outputs",
        "path",
        "problem",
    )

    def __init__(
        self, options: Options, path: str, binary: bool, metadata: Mapping[str, Any]
    ) -> None:
        self.path = path
        self.problem: ClientError | None = None
        self.binary = binary
        self.outputs = [str(o["name"]) for o in metadata.get("outputs") or ()]
        self._options = options
        self._inputs = {
            str(i["name"]): (str(i["datatype"]), i.get("shape"), _dtype(i["datatype"]))
            for i in metadata.get("inputs") or ()
        }
        self._prepared: dict[Any, Prepared] = {}

    def named(self, model: str, value: Any) -> Mapping[str, Any]:
        """Return values by name, from a mapping of all of them or from the value of the
        only input.
        """
        if isinstance(value, Mapping):
            return value
        try:
            columns = None if isinstance(value, np.ndarray) else columns_of(value)
        except UnevenRecords as e:
            raise InvalidRequest(str(e)) from None
        if columns is not None:
            texts = [name for name, spec in self._inputs.items() if spec[0] == "BYTES"]
            return inputs_of_table(columns, self._inputs, texts)
        if not self._inputs and self.problem is not None:
            raise self.problem
        if len(self._inputs) != 1:
            names = ", ".join(self._inputs) or "unknown"
            msg = f"give values by name: the inputs of {model} are {names}"
            raise InvalidRequest(msg)
        return {next(iter(self._inputs)): value}

    def request(
        self, inputs: Mapping[str, Any], options: CallOptions, limit: float | None
    ) -> tuple[Prepared, Parts]:
        """Return the request to send. The part before the tensors is prepared once for
        each combination of shapes.
        """
        if not self.binary:
            encoding = self._options.encoding or Encoding.json
            return self._encoded(encoding, inputs, options, limit)
        described = []
        parts: Parts = []
        for name, value in inputs.items():
            spec = self._inputs.get(name)
            if (
                type(value) is np.ndarray
                and spec is not None
                and value.dtype == spec[2]
                and value.flags.c_contiguous
                and len(value.shape) == len(spec[1] or value.shape)
            ):
                described.append((name, spec[0], value.shape, value.nbytes))
                parts.append(value)
                continue
            tensor = self._tensor(name, value)
            raw = tensor.raw()
            shape = tensor.array.shape
            described.append((name, tensor.datatype, shape, size_of(raw)))
            parts.append(raw)
        key: Any = tuple(described)
        if options is not PLAIN:
            key = (key, _key(options), limit)
            if options.request_id or _unhashable(key):
                key = None
        elif limit != self._options.timeout:
            key = None
        found = self._prepared.get(key) if key is not None else None
        if found is None:
            found = self._prepare(described, options, limit)
            if key is not None:
                if len(self._prepared) >= MOST_PREPARED:
                    self._prepared.clear()
                self._prepared[key] = found
        return found, parts

    def _prepare(
        self,
        described: Sequence[tuple[str, str, Sequence[int], int]],
        options: CallOptions,
        limit: float | None,
    ) -> Prepared:
        parameters = _parameters(options, limit)
        document = head_of_binary(
            described, options.outputs, parameters, options.request_id
        )
        size = len(document) + sum(item[3] for item in described)
        headers = {
            "Content-Type": CONTENT_TYPES[Encoding.binary],
            HEADER_LENGTH: str(len(document)),
            **(options.headers or {}),
        }
        target = f"{self._options.base}{self.path}/infer"
        return prepared(self._options, "POST", target, headers, size, document)

    def stream(
        self, inputs: Mapping[str, Any], options: CallOptions, limit: float | None
    ) -> tuple[Prepared, Parts]:
        """Return the request whose answer is a stream of responses."""
        found = Encoding.binary if self.binary else Encoding.json
        encoding = self._options.encoding or found
        return self._encoded(encoding, inputs, options, limit, events=True)

    def _encoded(
        self,
        encoding: Encoding,
        inputs: Mapping[str, Any],
        options: CallOptions,
        limit: float | None,
        *,
        events: bool = False,
    ) -> tuple[Prepared, Parts]:
        headers, parts = encode(
            encoding,
            [self._tensor(name, value) for name, value in inputs.items()],
            options.outputs,
            _parameters(options, limit),
            options.request_id,
            events=events,
        )
        headers |= options.headers or {}
        target = f"{self._options.base}{self.path}/infer"
        size = sum(map(size_of, parts))
        return prepared(self._options, "POST", target, headers, size), parts

    def _tensor(self, name: str, value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return tensor_of(value.name, value.array, value.datatype)
        spec = self._inputs.get(name)
        if spec is not None:
            if spec[0] != "BYTES" and _is_files(value):
                return tensor_of(name, value, "BYTES", (spec[1] or [-1])[:1])
            return tensor_of(name, value, spec[0], spec[1])
        if self._inputs:
            takes = ", ".join(self._inputs)
            raise InvalidRequest(f"the model has no input {name!r}; it takes {takes}")
        return tensor_of(name, value)


def prepared(
    options: Options,
    method: str,
    target: str,
    more: Mapping[str, str],
    size: int,
    document: bytes = b"",
) -> Prepared:
    """Prepare a request to `target` with `more` headers and a body of `size` bytes,
    which begins with `document`.
    """
    headers = (*options.headers, *more.items())
    check_headers(headers)
    head = request_head(method, target, options.host, headers, size)
    return Prepared(method, target, headers, head + document, document)


def _is_files(value: Any) -> bool:
    """Return whether a value is a picture, or a list of pictures."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(item, bytes) for item in value)
    return isinstance(value, bytes)


def _dtype(datatype: str) -> np.dtype[Any] | None:
    """Return the dtype of arrays that can be sent as they are."""
    return None if datatype in ("BYTES", "BF16") else DTYPES.get(datatype)


def _parameters(options: CallOptions, limit: float | None) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    if limit is not None:
        parameters["timeout"] = max(1, round(limit * _MICROSECONDS))
    if options.priority:
        parameters["priority"] = options.priority
    if options.sequence is not None:
        identifier, start, end = options.sequence
        parameters |= {
            "sequence_id": identifier,
            "sequence_start": start,
            "sequence_end": end,
        }
    return parameters | dict(options.parameters or {})


def _key(options: CallOptions) -> tuple[Any, ...]:
    def items(mapping: Mapping[str, Any] | None) -> tuple[Any, ...]:
        return tuple((k, type(v), v) for k, v in (mapping or {}).items())

    wanted = options.outputs
    outputs = (
        tuple((name, items(said)) for name, said in wanted.items())
        if isinstance(wanted, Mapping)
        else wanted and tuple(wanted)
    )
    return (
        outputs,
        items(options.parameters),
        items(options.headers),
        options.priority,
        options.sequence,
    )


def _unhashable(key: Any) -> bool:
    try:
        hash(key)
    except TypeError:
        return True
    return False
