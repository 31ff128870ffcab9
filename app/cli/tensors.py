"""Tensors of `popgate infer`: read from the command line, sent and received.

A client's view of the wire formats, independent of the server's codecs: it only has to
be right, not fast.
"""

from __future__ import annotations

import io
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
HEADER_LENGTH = "inference-header-content-length"

DTYPES: Mapping[str, str] = {
    "BOOL": "bool", "UINT8": "u1", "UINT16": "<u2", "UINT32": "<u4", "UINT64": "<u8",
    "INT8": "i1", "INT16": "<i2", "INT32": "<i4", "INT64": "<i8", "FP16": "<f2",
    "FP32": "<f4", "FP64": "<f8", "BYTES": "O",
}  # fmt: skip


class Encoding(StrEnum):
    """How tensors travel, both ways."""

    json = "json"
    msgpack = "msgpack"
    binary = "binary"
    npy = "npy"


CONTENT_TYPES: Mapping[Encoding, str] = {
    Encoding.json: "application/json",
    Encoding.msgpack: "application/msgpack",
    Encoding.binary: "application/octet-stream",
    Encoding.npy: "application/x-npy",
}


class TensorError(Exception):
    """A value that cannot become the tensor that is wanted; says which and why."""


@dataclass(frozen=True, slots=True)
class NamedTensor:
    """A tensor as it travels. BF16 is shown as float32 and sent from it."""

    name: str
    datatype: str
    array: Array

    @property
    def shape(self) -> list[int]:
        return list(self.array.shape)

    def to_bytes(self) -> bytes:
        """Row-major, little-endian; strings with their lengths."""
        if self.datatype == "BYTES":
            return b"".join(
                struct.pack("<I", len(item)) + item for item in self.array.reshape(-1)
            )
        if self.datatype == "BF16":
            return _to_bf16(self.array).tobytes()
        return np.ascontiguousarray(self.array).tobytes()

    def to_list(self) -> Any:
        """Nested lists of plain values, for JSON."""
        if self.datatype == "BYTES":
            flat = [item.decode() for item in self.array.reshape(-1)]
            array = np.empty(len(flat), dtype=object)
            array[:] = flat
            return array.reshape(self.array.shape).tolist()
        return self.array.tolist()

    def cast(self) -> NamedTensor:
        """The same with values of `datatype`, which lose nothing but precision."""
        if self.datatype == "BYTES":
            array = _to_bytes_array(self.array)
        else:
            array = _cast(self.array, self.name, self.datatype)
        return NamedTensor(self.name, self.datatype, array)

    @classmethod
    def from_bytes(
        cls, name: str, datatype: str, shape: list[int], data: bytes
    ) -> NamedTensor:
        if datatype == "BYTES":
            array: Array = _strings(data)
        elif datatype == "BF16":
            bits = np.frombuffer(data, "<u2").astype("<u4") << 16
            array = bits.view("<f4")
        else:
            array = np.frombuffer(data, DTYPES[datatype])
        return cls(name, datatype, array.reshape(shape))


def read_value(text: str, name: str, datatype: str, shape: list[int]) -> NamedTensor:
    """The tensor that ``name=text`` means: a ``.npy`` or ``.npz`` file or a JSON value.

    For BYTES a text that is no JSON is taken as it stands. A value that lacks only
    dimensions of size 1 in front gets them. Raises `TensorError`.
    """
    array = NamedTensor(name, datatype, _read_array(text, name, datatype)).cast().array
    missing = len(shape) - array.ndim
    if missing > 0 and all(dim in (1, -1) for dim in shape[:missing]):
        array = array.reshape((1,) * missing + array.shape)
    return NamedTensor(name, datatype, array)


def read_archive(path: str) -> dict[str, Array]:
    """The arrays of a ``.npz`` file by their names. Raises `TensorError`."""
    try:
        with (
            Path(path).open("rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, EOFError, AttributeError) as e:
        raise TensorError(f"{path} cannot be read: {e}") from None
    except Exception as e:  # zipfile and zlib have errors of their own
        raise TensorError(f"{path} is no .npz file: {e}") from None
    if not arrays:
        raise TensorError(f"{path} holds no array")
    return arrays


def pick(arrays: dict[str, Array], name: str, path: str) -> Array:
    """The array for input `name`: that of its name, or the only one there is."""
    if name not in arrays and len(arrays) != 1:
        raise TensorError(f"--input {name}={path}: it holds {', '.join(arrays)}")
    return arrays.get(name, next(iter(arrays.values())))


def _read_array(text: str, name: str, datatype: str) -> Array:
    if text.endswith(".npz"):
        return pick(read_archive(text), name, text)
    if text.endswith(".npy"):
        try:
            return np.asarray(np.load(Path(text), allow_pickle=False))
        except (OSError, ValueError, EOFError) as e:
            raise TensorError(f"input {name}: {text} cannot be read: {e}") from None
    try:
        value = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as e:
        if datatype == "BYTES":
            return np.array(text, dtype=object)
        msg = (
            f"input {name}: {text!r} is neither a .npy or .npz file nor a JSON value "
            f"such as [[1, 2]] ({e})"
        )
        raise TensorError(msg) from None
    try:
        return np.array(value, dtype=object if datatype == "BYTES" else None)
    except ValueError:
        msg = f"input {name}: the lists are not of one shape"
        raise TensorError(msg) from None


def _to_bytes_array(array: Array) -> Array:
    flat = [
        item if isinstance(item, bytes) else str(item).encode()
        for item in array.reshape(-1).tolist()
    ]
    result = np.empty(len(flat), dtype=object)
    result[:] = flat
    return result.reshape(array.shape)


def _cast(array: Array, name: str, datatype: str) -> Array:
    """To the model's type, where that loses nothing but precision."""
    wanted = np.dtype(DTYPES.get(datatype, "<f4"))
    if array.dtype == wanted or array.size == 0:
        return array.astype(wanted)
    if array.dtype.kind not in "biuf":
        msg = f"input {name}: expected {datatype}, got values of {array.dtype}"
        raise TensorError(msg)
    if wanted.kind == "f" and array.dtype.kind in "iuf":
        return array.astype(wanted)
    with np.errstate(invalid="ignore"):
        cast = array.astype(wanted)
    if not np.array_equal(cast, array):
        msg = f"input {name}: the values of {array.dtype} do not fit {datatype}"
        raise TensorError(msg)
    return cast


def encode_request(
    tensors: list[NamedTensor], encoding: Encoding
) -> tuple[dict[str, str], bytes]:
    """Headers and body of a request. Raises `TensorError`."""
    headers = {
        "content-type": CONTENT_TYPES[encoding],
        "accept": CONTENT_TYPES[encoding],
    }
    if encoding is Encoding.npy:
        del headers["accept"]  # which would rule out several outputs
        return headers, _encode_npy(tensors)
    if encoding is Encoding.msgpack:
        import msgpack

        document = {"inputs": [_described(t) | {"data": t.to_bytes()} for t in tensors]}
        return headers, bytes(msgpack.packb(document))
    if encoding is Encoding.binary:
        return _encode_binary(headers, tensors)
    inputs = [_described(t) | {"data": t.to_list()} for t in tensors]
    return headers, json.dumps({"inputs": inputs}).encode()


def _described(tensor: NamedTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "shape": tensor.shape,
        "datatype": tensor.datatype,
    }


def _encode_npy(tensors: list[NamedTensor]) -> bytes:
    if len(tensors) != 1:
        msg = f"npy carries one tensor, the model takes {len(tensors)}"
        raise TensorError(msg)
    array = tensors[0].array
    if tensors[0].datatype == "BYTES":
        array = array.astype(np.bytes_)
    elif tensors[0].datatype == "BF16":
        array = _to_bf16(array)
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()


def _encode_binary(
    headers: dict[str, str], tensors: list[NamedTensor]
) -> tuple[dict[str, str], bytes]:
    parts = [t.to_bytes() for t in tensors]
    inputs = [
        _described(t) | {"parameters": {"binary_data_size": len(part)}}
        for t, part in zip(tensors, parts, strict=True)
    ]
    document = {"inputs": inputs, "parameters": {"binary_data_output": True}}
    head = json.dumps(document).encode()
    return headers | {HEADER_LENGTH: str(len(head))}, b"".join([head, *parts])


def decode_response(headers: Mapping[str, str], content: bytes) -> list[NamedTensor]:
    """The outputs of a response in any encoding. Raises `TensorError`."""
    media_type = headers.get("content-type", "").partition(";")[0].strip()
    try:
        if HEADER_LENGTH in headers:
            length = int(headers[HEADER_LENGTH])
            document = json.loads(content[:length])
            return _decode_document(document, memoryview(content)[length:])
        if media_type.endswith("npy"):
            return [_decode_npy(content)]
        if media_type.endswith("msgpack"):
            import msgpack

            return _decode_document(msgpack.unpackb(content))
        return _decode_document(json.loads(content))
    except (ValueError, KeyError, TypeError, EOFError) as e:
        raise TensorError(f"the server's answer cannot be read: {e!r}") from None


def _decode_document(
    document: Mapping[str, Any], binary: memoryview | None = None
) -> list[NamedTensor]:
    return [_decode_output(item, binary_of(item, binary)) for item in _walk(document)]


def _walk(document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The outputs, each with the offset of its bytes in the binary part."""
    offset = 0
    outputs = []
    for output in document["outputs"]:
        size = (output.get("parameters") or {}).get("binary_data_size")
        outputs.append({**output, "offset": offset, "size": size})
        offset += size or 0
    return outputs


def binary_of(output: Mapping[str, Any], binary: memoryview | None) -> bytes | None:
    """The bytes of an output that is not in the document itself."""
    if output["size"] is None or binary is None:
        return None
    start = output["offset"]
    return bytes(binary[start : start + output["size"]])


def _decode_output(output: Mapping[str, Any], data: bytes | None) -> NamedTensor:
    name, datatype, shape = output["name"], output["datatype"], output["shape"]
    if data is None and isinstance(output["data"], bytes):
        data = output["data"]
    if data is not None:
        return NamedTensor.from_bytes(name, datatype, shape, data)
    values = output["data"]
    if datatype == "BYTES":
        array = _to_bytes_array(np.array(values, dtype=object))
    else:
        array = np.array(values, dtype=DTYPES.get(datatype, "<f4"))
    return NamedTensor(name, datatype, array.reshape(shape))


def _decode_npy(content: bytes) -> NamedTensor:
    array = np.load(io.BytesIO(content), allow_pickle=False)
    by_dtype = {np.dtype(code): name for name, code in DTYPES.items()}
    return NamedTensor("output", by_dtype.get(array.dtype, "BYTES"), array)


def _strings(data: bytes) -> Array:
    items, offset = [], 0
    while offset < len(data):
        (length,) = struct.unpack_from("<I", data, offset)
        items.append(data[offset + 4 : offset + 4 + length])
        offset += 4 + length
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array


def _to_bf16(array: Array) -> Array:
    """The upper halves of the float32 values, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(array, dtype="<f4").view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    quiet = (bits >> 16) | 0x40
    is_nan = np.isnan(array) if math.prod(array.shape) else np.zeros(array.shape, bool)
    return np.where(is_nan, quiet, rounded).astype("<u2")


def text_of(tensor: NamedTensor) -> str:
    """The values, for a person; large ones in extracts."""
    array = tensor.array
    if tensor.datatype == "BYTES":
        texts = [item.decode(errors="backslashreplace") for item in array.reshape(-1)]
        array = np.array(texts, dtype=object).reshape(array.shape)
    return np.array2string(array, threshold=200, suppress_small=True, max_line_width=88)
