"""Inference requests and answers as bytes: JSON, binary tensors, msgpack, .npy."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np
import orjson

from popgate_client.errors import InvalidRequest, ServerError
from popgate_client.http1 import Answer
from popgate_client.tensors import (
    Array,
    Tensor,
    array_of,
    array_of_values,
    tensor_of,
    to_bf16,
)
from popgate_client.values import fixed_width

HEADER_LENGTH = "Inference-Header-Content-Length"

#: Pieces of a body, sent one after the other.
Parts: TypeAlias = "list[bytes | Array]"
#: Names of outputs, or options for each: ``{"scores": {"classification": 3}}``.
Wanted: TypeAlias = "Sequence[str] | Mapping[str, Mapping[str, Any]]"

#: The errors of answers that are not valid.
UNREADABLE = (ValueError, KeyError, TypeError, AttributeError, OverflowError)


class Encoding(StrEnum):
    """Encodings of tensors, for both directions."""

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


class Outputs(dict[str, Array]):
    """The outputs of one response, by name, with the server's other data.

    Arrays belong to the caller. BYTES are arrays of `bytes` objects; `text` decodes
    them. BF16 comes as float32, which holds it exactly.
    """

    model_name: str = ""
    model_version: str = ""
    id: str = ""
    parameters: Mapping[str, Any] = {}
    datatypes: Mapping[str, str] = {}

    def text(self, name: str) -> Any:
        """Return an output of strings as `str`, in lists by its shape."""
        array = np.vectorize(bytes.decode, otypes="O")(self[name])
        return array.tolist()

    def __repr__(self) -> str:
        arrays = ", ".join(
            f"{n}: {self.datatypes.get(n, a.dtype)}{list(a.shape)}"
            for n, a in self.items()
        )
        return f"Outputs({self.model_name}/{self.model_version}: {arrays})"


def head_of_binary(
    tensors: Sequence[tuple[str, str, Sequence[int], int]],
    outputs: Wanted | None,
    parameters: Mapping[str, Any],
    request_id: str,
    *,
    binary_outputs: bool = True,
) -> bytes:
    """Return the document in front of binary tensors, each with name, datatype, shape
    and size in bytes.
    """
    inputs = [
        {
            "name": name,
            "shape": shape,
            "datatype": datatype,
            "parameters": {"binary_data_size": size},
        }
        for name, datatype, shape, size in tensors
    ]
    if outputs is None and binary_outputs:
        parameters = {**parameters, "binary_data_output": True}
    return dumps(
        _document(inputs, outputs, parameters, request_id, binary=binary_outputs)
    )


def encode(
    encoding: Encoding,
    tensors: Sequence[Tensor],
    outputs: Wanted | None = None,
    parameters: Mapping[str, Any] | None = None,
    request_id: str = "",
    *,
    events: bool = False,
) -> tuple[dict[str, str], Parts]:
    """Return headers and body of a request. If `events`, it requests a stream of
    JSON.
    """
    media = CONTENT_TYPES[encoding]
    headers = {"Content-Type": media}
    if events:
        headers["Accept"] = "text/event-stream"
    elif encoding is not Encoding.npy:  # .npy cannot carry several outputs
        headers["Accept"] = media
    if encoding is Encoding.npy:
        return headers, [_npy(tensors)]
    more = parameters or {}
    if encoding is Encoding.binary:
        raw = [tensor.raw() for tensor in tensors]
        described = [
            (t.name, t.datatype, t.shape, size_of(part))
            for t, part in zip(tensors, raw, strict=True)
        ]
        head = head_of_binary(
            described, outputs, more, request_id, binary_outputs=not events
        )
        headers[HEADER_LENGTH] = str(len(head))
        return headers, [head, *raw]
    if encoding is Encoding.msgpack:
        import msgpack

        inputs = [_described(t) | {"data": _bytes(t.raw())} for t in tensors]
        document = _document(inputs, outputs, more, request_id)
        try:
            return headers, [bytes(msgpack.packb(document, default=_python))]
        except (TypeError, ValueError, OverflowError) as e:
            msg = f"the request cannot be written as msgpack: {e}"
            raise InvalidRequest(msg) from None
    inputs = [_described(t) | {"data": t.values()} for t in tensors]
    return headers, [dumps(_document(inputs, outputs, more, request_id))]


def _python(value: Any) -> Any:
    """Return a number or array of NumPy as Python's. Raises TypeError for others."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is no JSON value")


def decode(answer: Answer, first_output: str = "output") -> Outputs:
    """Return the outputs of an answer, which names its encoding. Raises `ServerError`.

    `first_output`: the name for an array without one (`.npy`).
    """
    try:
        if answer.json_length >= 0:
            return _decode_binary(answer)
        media = answer.header("content-type").partition(";")[0].strip()
        if media.endswith("npy"):
            return _decode_npy(answer.body, first_output)
        if media.endswith("msgpack"):
            import msgpack

            return outputs_of(msgpack.unpackb(bytes(answer.body)))
        return outputs_of(loads(answer.body))
    except UNREADABLE as e:
        msg = f"the server's answer cannot be read: {words(e)}"
        raise ServerError(msg, status=answer.status, sent=True) from None


def words(error: BaseException) -> str:
    """Return an error of `UNREADABLE`, cut: a UnicodeDecodeError has the whole body."""
    return repr(error)[:300]


def _decode_binary(answer: Answer) -> Outputs:
    body, offset = answer.body, answer.json_length
    if offset > len(body):
        raise ValueError("the document is longer than the body")
    document = loads(body[:offset])
    outputs = Outputs()
    datatypes = {}
    for output in document["outputs"]:
        name, datatype = output["name"], output["datatype"]
        size = (output.get("parameters") or {}).get("binary_data_size")
        if size is None:
            array = array_of_values(datatype, output["shape"], output["data"])
        else:
            data = body[offset : offset + size]
            array = array_of(datatype, output["shape"], data)
            offset += size
        datatypes[name] = datatype
        outputs[name] = array
    return _named(outputs, document, datatypes)


def outputs_of(document: Mapping[str, Any]) -> Outputs:
    """Return the outputs of a document without binary tensors behind it."""
    outputs = Outputs()
    datatypes = {}
    for output in document["outputs"]:
        name, datatype = output["name"], output["datatype"]
        data = _data_of(output)
        if isinstance(data, bytes):  # msgpack
            array = array_of(datatype, output["shape"], bytearray(data))
        else:
            if (output.get("parameters") or {}).get("content_type") == "base64":
                from base64 import b64decode

                data = [b64decode(item) for item in data]
            array = array_of_values(datatype, output["shape"], data)
        datatypes[name] = datatype
        outputs[name] = array
    return _named(outputs, document, datatypes)


def _data_of(output: Mapping[str, Any]) -> Any:
    """Return the values of an output. An empty output may be binary without a byte."""
    if (output.get("parameters") or {}).get("binary_data_size") == 0:
        return output.get("data", [])
    return output["data"]


def _named(
    outputs: Outputs, document: Mapping[str, Any], datatypes: dict[str, str]
) -> Outputs:
    outputs.datatypes = datatypes
    outputs.model_name = document.get("model_name", "")
    outputs.model_version = document.get("model_version", "")
    if "id" in document:
        outputs.id = document["id"]
    if "parameters" in document:
        outputs.parameters = document["parameters"]
    return outputs


def _decode_npy(body: memoryview | bytes, name: str) -> Outputs:
    try:
        array = np.lib.format.read_array(io.BytesIO(body), allow_pickle=False)
    except Exception as e:  # NumPy reads the head with Python's tokenizer
        raise ValueError(f"not a .npy file: {words(e)}") from None
    if array.dtype.kind == "V":  # .npy has no name for brain floats
        tensor = Tensor(name, "BF16", array_of("BF16", array.shape, array.tobytes()))
    else:
        tensor = tensor_of(name, array)
    outputs = Outputs({name: tensor.array})
    outputs.datatypes = {name: tensor.datatype}
    return outputs


def loads(data: memoryview | bytes) -> Any:
    """Parse JSON, also with NaN and infinities. Raises ValueError."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        try:
            return json.loads(bytes(data))
        except RecursionError:
            raise ValueError("the JSON is nested too deeply") from None


def dumps(document: Any) -> bytes:
    """Return a document as JSON, also with NaN and infinities. Raises
    `InvalidRequest`.
    """
    try:
        data = orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)
        if b"null" in data:  # perhaps of a NaN or infinity
            return json.dumps(document, default=_python).encode()
        return data
    except TypeError as e:
        raise InvalidRequest(f"the request cannot be written as JSON: {e}") from None


def _document(
    inputs: list[Any],
    outputs: Wanted | None,
    parameters: Mapping[str, Any],
    request_id: str,
    *,
    binary: bool = False,
) -> dict[str, Any]:
    document: dict[str, Any] = {"id": request_id} if request_id else {}
    if parameters:
        document["parameters"] = parameters
    document["inputs"] = inputs
    if outputs is None:
        return document
    asked = outputs if isinstance(outputs, Mapping) else {name: {} for name in outputs}
    document["outputs"] = [
        {"name": name, "parameters": more} if more else {"name": name}
        for name, said in asked.items()
        for more in ({**({"binary_data": True} if binary else {}), **said},)
    ]
    return document


def _described(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "shape": tensor.shape, "datatype": tensor.datatype}


def size_of(part: Array | bytes) -> int:
    """Return the size in bytes."""
    return len(part) if isinstance(part, bytes) else part.nbytes


def _bytes(raw: Array | bytes) -> bytes:
    return raw if isinstance(raw, bytes) else raw.tobytes()


def _npy(tensors: Sequence[Tensor]) -> bytes:
    if len(tensors) != 1:
        msg = (
            f"encoding npy carries one tensor, but the request has {len(tensors)}; "
            "choose another encoding"
        )
        raise InvalidRequest(msg)
    array = tensors[0].array
    if tensors[0].datatype == "BYTES":
        try:
            array = fixed_width(array)
        except ValueError as e:
            msg = f"input {tensors[0].name!r} {e}; choose another encoding"
            raise InvalidRequest(msg) from None
    elif tensors[0].datatype == "BF16":
        array = to_bf16(array).view("V2")
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=False)
    return stream.getvalue()
