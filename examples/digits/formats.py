"""The encodings in which PopGate takes tensors and gives them back.

Short enough to be copied: `REQUESTS` writes a request in each encoding, `ANSWERS` says
which ``Accept`` header asks for which answer, and `read_answer` reads them all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import msgpack
import numpy as np
from numpy.typing import NDArray

Tensors: TypeAlias = Mapping[str, NDArray[Any]]

# The Open Inference Protocol's names of the numeric types, and numpy's.
DATATYPES = MappingProxyType(
    {
        "BOOL": "bool",
        "UINT8": "uint8",
        "UINT16": "uint16",
        "UINT32": "uint32",
        "UINT64": "uint64",
        "INT8": "int8",
        "INT16": "int16",
        "INT32": "int32",
        "INT64": "int64",
        "FP16": "float16",
        "FP32": "float32",
        "FP64": "float64",
    }
)
_NAMES = {dtype: name for name, dtype in DATATYPES.items()}
HEADER_LENGTH = "Inference-Header-Content-Length"


@dataclass(frozen=True, slots=True)
class Body:
    """A request body and the headers that say what it is."""

    content: bytes
    headers: Mapping[str, str]


def to_json(inputs: Tensors, outputs: Sequence[str] = ()) -> Body:
    """``{"inputs": [{"name", "shape", "datatype", "data"}]}``, data flat."""
    described = [
        _described(name, array) | {"data": array.ravel().tolist()}
        for name, array in inputs.items()
    ]
    return _json_body({"inputs": described} | _asked(outputs))


def to_json_shorthand(inputs: Tensors, outputs: Sequence[str] = ()) -> Body:
    """``{"inputs": {name: nested values}}``; the model knows shape and type."""
    values = {name: array.tolist() for name, array in inputs.items()}
    return _json_body({"inputs": values} | _asked(outputs))


def to_msgpack(inputs: Tensors, outputs: Sequence[str] = ()) -> Body:
    """The document of JSON in msgpack, with ``data`` as row-major bytes."""
    described = [
        _described(name, array) | {"data": array.tobytes()}
        for name, array in inputs.items()
    ]
    content = msgpack.packb({"inputs": described} | _asked(outputs))
    return Body(content, {"Content-Type": "application/msgpack"})


def to_binary(inputs: Tensors, outputs: Sequence[str] = ()) -> Body:
    """JSON that describes the tensors, and behind it their bytes (OIP extension)."""
    described = [
        _described(name, array) | {"parameters": {"binary_data_size": array.nbytes}}
        for name, array in inputs.items()
    ]
    head = json.dumps({"inputs": described} | _asked(outputs)).encode()
    tensors = [array.tobytes() for array in inputs.values()]
    return Body(
        b"".join([head, *tensors]),
        {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(head))},
    )


def to_npy(inputs: Tensors, outputs: Sequence[str] = ()) -> Body:
    """One array as `numpy.save` writes it, for a model with one input."""
    if outputs:
        raise ValueError("an .npy body has no room for the names of outputs")
    (array,) = inputs.values()
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return Body(file.getvalue(), {"Content-Type": "application/x-npy"})


REQUESTS: Mapping[str, Callable[..., Body]] = MappingProxyType(
    {
        "JSON": to_json,
        "JSON shorthand": to_json_shorthand,
        "msgpack": to_msgpack,
        "binary": to_binary,
        "npy": to_npy,
    }
)
ANSWERS = MappingProxyType(
    {
        "JSON": "application/json",
        "msgpack": "application/msgpack",
        "binary": "application/octet-stream",
        "npy": "application/x-npy",
    }
)


def read_answer(headers: Mapping[str, str], content: bytes) -> Tensors:
    """Read the outputs of a response in any encoding.

    An ``.npy`` answer has one output and no name for it; it is returned as ``""``.
    """
    match headers["Content-Type"].partition(";")[0]:
        case "application/json":
            return _outputs(json.loads(content), b"")
        case "application/msgpack":
            return _outputs(msgpack.unpackb(content), b"")
        case "application/octet-stream":
            length = int(headers[HEADER_LENGTH])
            return _outputs(json.loads(content[:length]), content[length:])
        case "application/x-npy":
            return {"": np.load(io.BytesIO(content), allow_pickle=False)}
        case other:
            raise ValueError(f"no encoding of ours: {other!r}")


def _described(name: str, array: NDArray[Any]) -> dict[str, Any]:
    datatype = _NAMES[array.dtype.name]
    return {"name": name, "shape": list(array.shape), "datatype": datatype}


def _asked(outputs: Sequence[str]) -> dict[str, Any]:
    """Say which outputs are wanted; without it all of them come."""
    return {"outputs": [{"name": name} for name in outputs]} if outputs else {}


def _json_body(document: Mapping[str, Any]) -> Body:
    content = json.dumps(document).encode()
    return Body(content, {"Content-Type": "application/json"})


def _outputs(document: Mapping[str, Any], tensors: bytes) -> Tensors:
    result: dict[str, NDArray[Any]] = {}
    start = 0
    for output in document["outputs"]:
        dtype = np.dtype(DATATYPES[output["datatype"]])
        size = output.get("parameters", {}).get("binary_data_size")
        if size is not None:
            flat = np.frombuffer(tensors[start : start + size], dtype)
            start += size
        elif isinstance(output["data"], bytes):
            flat = np.frombuffer(output["data"], dtype)
        else:
            flat = np.array(output["data"], dtype)
        result[output["name"]] = flat.reshape(output["shape"])
    return result
