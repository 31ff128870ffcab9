"""Models, arrays and bodies for the codec tests, written without the codec's own code.

A body is written and a response read with the libraries that clients use: the standard
library's JSON, msgpack, numpy's loader and saver.
"""

from __future__ import annotations

import base64
import io
import json
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import msgpack
import numpy as np
import numpy.typing as npt

from app.codec import ModelCodec, Response, messages
from app.limits import DEFAULT_LIMITS, Limits
from app.spec import DATATYPES, ModelSpec, TensorSpec

Array = npt.NDArray[Any]
Headers = dict[str, bytes]

NUMPY: dict[str, Any] = {
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
    "BF16": ml_dtypes.bfloat16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
}
assert set(NUMPY) == set(DATATYPES)

SHAPES: list[tuple[int, ...]] = [(), (0,), (1,), (6,), (2, 3), (1, 2, 3), (2, 0, 3)]

_FLOATS = [0.0, -0.0, 1.0, -1.5, 0.1, 1 / 3, 2.0**-14, 65504.0, math.nan, math.inf]
_STRINGS = [
    b"",
    b"a",
    "grüße, 世界".encode(),
    b'"quoted\\"\n: {}[]',
    b"\xff\x00\xfe",
    b"0",
]


def pool(datatype: str) -> Array:
    """Values of a datatype: the ordinary, the extreme, the special."""
    kind = NUMPY[datatype]
    if datatype == "BYTES":
        return np.array(_STRINGS, dtype=object)
    if datatype == "BOOL":
        return np.array([True, False])
    if kind is ml_dtypes.bfloat16:
        return np.array(
            [*_FLOATS[:7], 3.3895e38, 9.1835e-41, math.nan, -math.inf], kind
        )
    if np.issubdtype(kind, np.floating):
        info = np.finfo(kind)
        extremes = [info.max, info.min, info.tiny, info.smallest_subnormal, -math.inf]
        return np.array([*map(kind, _FLOATS), *extremes], dtype=kind)
    limits = np.iinfo(kind)
    return np.array([0, 1, limits.min, limits.max, limits.max - 1, 7], dtype=kind)


def sample(datatype: str, shape: tuple[int, ...], values: Array | None = None) -> Array:
    """An array that goes round the pool of its datatype."""
    values = pool(datatype) if values is None else values
    count = math.prod(shape)
    return (
        np.resize(values, count).reshape(shape) if count else values[:0].reshape(shape)
    )


def model(
    datatype: str = "FP32",
    shape: tuple[int, ...] | None = (-1,),
    *,
    max_batch_size: int = 0,
    max_rows: int = 0,
    out: tuple[tuple[str, str, tuple[int, ...] | None], ...] | None = None,
    inputs: tuple[tuple[str, str, tuple[int, ...] | None], ...] | None = None,
) -> ModelSpec:
    """A model `m` with the input `x` and the output `y` of one type and shape."""
    return ModelSpec(
        "m",
        "1",
        tuple(TensorSpec.make(*i) for i in inputs or (("x", datatype, shape),)),
        tuple(TensorSpec.make(*o) for o in out or (("y", datatype, shape),)),
        max_batch_size,
        max_rows,
    )


def codec(spec: ModelSpec | None = None, limits: Limits = DEFAULT_LIMITS) -> ModelCodec:
    return ModelCodec(spec or model(), limits)


@dataclass(frozen=True)
class Body:
    """What a client sends: the bytes and the headers that matter."""

    data: bytes
    headers: Headers = field(default_factory=dict)

    def decode(
        self, codec: ModelCodec, accept: bytes | None = None, cut: int | None = None
    ) -> Any:
        """The request; `cut` hands the body over in chunks of so many bytes."""
        step = cut or max(1, len(self.data))
        chunks: messages.Body = [
            self.data[i : i + step] for i in range(0, len(self.data), step)
        ]
        return codec.decode(
            self.headers.get("content-type"),
            self.headers.get("inference-header-content-length"),
            accept,
            chunks or [b""],
        )


def framed(array: Array) -> bytes:
    """The bytes of a tensor as the protocol's binary extension has them."""
    if array.dtype == object:
        items = array.ravel().tolist()
        return b"".join(struct.pack("<I", len(item)) + item for item in items)
    return array.tobytes()


def text_of(value: bytes) -> str:
    return base64.b64encode(value).decode()


def as_doubles(array: Array) -> Array:
    with np.errstate(invalid="ignore"):  # a signalling NaN is no fault
        return array.astype(np.float64)


def listed(array: Array, datatype: str) -> tuple[Any, dict[str, Any]]:
    """The array as JSON has it, nested, and the parameters it needs."""
    if datatype == "BYTES":
        encoded = np.empty(array.size, dtype=object)
        encoded[:] = [text_of(v) for v in array.ravel().tolist()]
        return encoded.reshape(array.shape).tolist(), {"content_type": "base64"}
    if datatype == "BF16":
        return as_doubles(array).tolist(), {}
    return array.tolist(), {}


def tensor(datatype: str, array: Array, **more: Any) -> dict[str, Any]:
    return {"name": "x", "shape": list(array.shape), "datatype": datatype, **more}


def json_nested(datatype: str, array: Array) -> Body:
    data, parameters = listed(array, datatype)
    entry = tensor(datatype, array, data=data, parameters=parameters)
    return Body(json.dumps({"inputs": [entry]}).encode())


def json_flat(datatype: str, array: Array) -> Body:
    data, parameters = listed(array.reshape(-1), datatype)
    entry = tensor(datatype, array, data=data)
    if parameters:
        entry["parameters"] = parameters
    return Body(json.dumps({"inputs": [entry]}).encode())


def json_base64(datatype: str, array: Array) -> Body:
    if datatype == "BYTES":
        return json_flat(datatype, array)
    parameters = {"content_type": "base64"}
    data = text_of(array.tobytes())
    entry = tensor(datatype, array, data=data, parameters=parameters)
    return Body(json.dumps({"inputs": [entry]}).encode())


def binary(datatype: str, array: Array) -> Body:
    data = framed(array)
    entry = tensor(datatype, array, parameters={"binary_data_size": len(data)})
    head = json.dumps({"inputs": [entry]}).encode()
    length = str(len(head)).encode()
    return Body(head + data, {"inference-header-content-length": length})


def msgpack_bytes(datatype: str, array: Array) -> Body:
    entry = tensor(datatype, array, data=framed(array))
    return Body(msgpack.packb({"inputs": [entry]}))


def msgpack_list(datatype: str, array: Array) -> Body:
    data = listed(array, datatype)[0]
    if datatype == "BYTES":
        data = array.tolist() if array.shape else [array.item()]
    return Body(msgpack.packb({"inputs": [tensor(datatype, array, data=data)]}))


def msgpack_shorthand(datatype: str, array: Array) -> Body:
    data = array.tolist() if datatype == "BYTES" else listed(array, datatype)[0]
    return Body(msgpack.packb({"inputs": {"x": data}}))


def npy(datatype: str, array: Array) -> Body:
    """As numpy saves it; strings have to be of one width and end in no zero."""
    stored = array.astype("S") if datatype == "BYTES" else array
    file = io.BytesIO()
    np.save(file, stored)
    return Body(file.getvalue())


WAYS_IN: dict[str, Callable[[str, Array], Body]] = {
    "JSON nested": json_nested,
    "JSON flat": json_flat,
    "JSON base64": json_base64,
    "binary": binary,
    "msgpack bytes": msgpack_bytes,
    "msgpack list": msgpack_list,
    "msgpack shorthand": msgpack_shorthand,
    "npy": npy,
}
WAYS_OUT: dict[str, bytes] = {
    "JSON": b"application/json",
    "binary": b"application/octet-stream",
    "msgpack": b"application/msgpack",
    "npy": b"application/x-npy",
}


def unframed(data: bytes) -> list[bytes]:
    items = []
    offset = 0
    while offset < len(data):
        (length,) = struct.unpack_from("<I", data, offset)
        items.append(data[offset + 4 : offset + 4 + length])
        offset += 4 + length
    return items


def _objects(items: list[bytes], shape: list[int]) -> Array:
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array.reshape(shape)


def _from_bytes(entry: Mapping[str, Any], data: bytes) -> Array:
    if entry["datatype"] == "BYTES":
        return _objects(unframed(data), entry["shape"])
    return np.frombuffer(data, NUMPY[entry["datatype"]]).reshape(entry["shape"])


def _from_list(entry: Mapping[str, Any], data: list[Any]) -> Array:
    if entry["datatype"] == "BYTES":
        if entry.get("parameters", {}).get("content_type") == "base64":
            data = [base64.b64decode(item) for item in data]
        items = [item.encode() if isinstance(item, str) else item for item in data]
        return _objects(items, entry["shape"])
    kind = NUMPY[entry["datatype"]]
    return np.array(data, dtype=kind).reshape(entry["shape"])


def read_response(response: Response) -> dict[str, Array]:
    """The outputs of a response, by name (an .npy response has one, named ``y``)."""
    headers = dict(response.headers)
    body = response.body
    assert int(headers[b"content-length"]) == len(body) == response.nbytes
    kind = headers[b"content-type"]
    if kind == b"application/x-npy":
        loaded = np.load(io.BytesIO(body), allow_pickle=False)
        if loaded.dtype.kind == "S":
            return {"y": _objects(loaded.reshape(-1).tolist(), list(loaded.shape))}
        if loaded.dtype.kind == "V":
            return {"y": loaded.view(ml_dtypes.bfloat16)}
        return {"y": loaded}
    if kind == b"application/msgpack":
        document = msgpack.unpackb(body)
        tail = b""
    else:
        length = int(headers.get(b"inference-header-content-length", len(body)))
        document = json.loads(body[:length])
        tail = body[length:]
    assert document["model_name"] == "m"
    assert document["model_version"] == "1"
    found = {}
    for entry in document["outputs"]:
        size = entry.get("parameters", {}).get("binary_data_size")
        if size is not None:
            found[entry["name"]] = _from_bytes(entry, tail[:size])
            tail = tail[size:]
        elif isinstance(entry["data"], bytes):
            found[entry["name"]] = _from_bytes(entry, entry["data"])
        else:
            found[entry["name"]] = _from_list(entry, entry["data"])
    assert tail == b""
    return found


def assert_same(got: Array, want: Array) -> None:
    """Equal to the last bit; NaN is equal to NaN, whatever its payload."""
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if got.dtype == object:
        assert got.tolist() == want.tolist()
        return
    got, want = np.atleast_1d(got), np.atleast_1d(want)
    if got.dtype.kind == "f" or got.dtype == ml_dtypes.bfloat16:
        nan = np.isnan(as_doubles(want))
        assert (np.isnan(as_doubles(got)) == nan).all()
        got, want = got[~nan], want[~nan]
    assert got.tobytes() == want.tobytes()
