"""Requests as bytes, in each encoding, and answers back to arrays.

This module uses no code under test: it was written from the protocol's text.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgpack
import numpy as np
import orjson

from bench.cases.backend import OIP_DATATYPES

Arrays = Mapping[str, np.ndarray]

HEADER_LENGTH = "inference-header-content-length"
MSGPACK = "application/msgpack"
NPY = "application/x-npy"

_DTYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
assert set(OIP_DATATYPES.values()) - set(_DTYPES) == {"BF16"}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}


@dataclass(frozen=True, slots=True)
class Payload:
    """Headers and body of one infer request."""

    headers: Mapping[str, str]
    body: bytes


def json_request(inputs: Arrays, request_id: str | None = None) -> Payload:
    """Open Inference Protocol JSON, flat data."""
    tensors = [_json_tensor(k, v) for k, v in inputs.items()]
    return _json({**_named(request_id), "inputs": tensors})


def shorthand_request(inputs: Arrays) -> Payload:
    """Return `{"inputs": {name: nested values}}`, whose types and shapes are the
    model's.
    """
    return _json({"inputs": {k: _plain(v) for k, v in inputs.items()}})


def binary_request(inputs: Arrays, request_id: str | None = None) -> Payload:
    """Open Inference Protocol with the binary extension, both ways."""
    parts = [_raw(array) for array in inputs.values()]
    tensors = [
        {**_described(name, array), "parameters": {"binary_data_size": len(part)}}
        for (name, array), part in zip(inputs.items(), parts, strict=True)
    ]
    parameters = {"binary_data_output": True}
    head = orjson.dumps(
        {**_named(request_id), "inputs": tensors, "parameters": parameters}
    )
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(head)),
    }
    return Payload(headers, b"".join([head, *parts]))


def msgpack_request(inputs: Arrays, request_id: str | None = None) -> Payload:
    """Return the document as msgpack, `data` as bytes."""
    tensors = [{**_described(k, v), "data": _raw(v)} for k, v in inputs.items()]
    document = {**_named(request_id), "inputs": tensors}
    return Payload({"Content-Type": MSGPACK}, msgpack.packb(document))


def npy_request(inputs: Arrays, request_id: str | None = None) -> Payload:
    """Return a single array as a `.npy` file, which has no place for an id."""
    (array,) = inputs.values()
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return Payload({"Content-Type": NPY}, file.getvalue())


def read_answer(headers: Mapping[str, str], body: bytes) -> dict[str, np.ndarray]:
    """Return the outputs of an answer by name, in any encoding (`.npy`: named ``""``).

    `headers` have lower-case names.
    """
    content_type = headers.get("content-type", "").split(";")[0]
    if content_type == NPY:
        return {"": np.load(io.BytesIO(body), allow_pickle=False)}
    if content_type == MSGPACK:
        document = msgpack.unpackb(body)
        return {t["name"]: _read(t, t["data"]) for t in document["outputs"]}
    length = int(headers.get(HEADER_LENGTH, len(body)))
    document = orjson.loads(body[:length])
    outputs, offset = {}, length
    for tensor in document["outputs"]:
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            outputs[tensor["name"]] = _read(tensor, tensor["data"])
            continue
        outputs[tensor["name"]] = _read(tensor, body[offset : offset + size])
        offset += size
    assert offset == len(body), f"{len(body) - offset} bytes after the last output"
    return outputs


def _named(request_id: str | None) -> dict[str, str]:
    return {} if request_id is None else {"id": request_id}


def _json(document: dict[str, Any]) -> Payload:
    body = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
    return Payload({"Content-Type": "application/json"}, body)


def _json_tensor(name: str, array: np.ndarray) -> dict[str, Any]:
    return {**_described(name, array), "data": _plain(array.reshape(-1))}


def _described(name: str, array: np.ndarray) -> dict[str, Any]:
    datatype = "BYTES" if array.dtype.kind in "OSU" else _NAMES[array.dtype]
    return {"name": name, "shape": list(array.shape), "datatype": datatype}


def _plain(array: np.ndarray) -> Any:
    # .tolist() makes doubles of float32: numpy's own printing keeps bodies short.
    if array.dtype == np.float32:
        return np.ascontiguousarray(array)
    return array.tolist()


def _raw(array: np.ndarray) -> bytes:
    if array.dtype.kind not in "OSU":
        return array.tobytes()
    words = [w.encode() if isinstance(w, str) else w for w in array.reshape(-1)]
    return b"".join(len(word).to_bytes(4, "little") + word for word in words)


def _read(tensor: Mapping[str, Any], data: Any) -> np.ndarray:
    dtype, shape = _DTYPES[tensor["datatype"]], tensor["shape"]
    if not isinstance(data, bytes):
        if dtype is np.object_:  # msgpack: each string as its bytes
            data = [w.decode() if isinstance(w, bytes) else w for w in data]
        return np.array(data, dtype=dtype).reshape(shape)
    if dtype is not np.object_:
        return np.frombuffer(data, dtype=dtype).reshape(shape)
    words, offset = [], 0
    while offset < len(data):
        end = offset + 4 + int.from_bytes(data[offset : offset + 4], "little")
        words.append(data[offset + 4 : end].decode())
        offset = end
    return np.array(words, dtype=object).reshape(shape)
