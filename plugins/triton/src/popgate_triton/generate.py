"""The generate extension: a flat JSON object in, a flat JSON object out.

Fields with the names of inputs of the model become tensors; all others are parameters
of the request. Requests state no shapes. The number of elements decides the free
dimensions of the model's shape, the innermost first.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from app.codec.chunks import join
from app.codec.json_lists import parse_listed
from app.codec.json_text import check_json_size
from app.codec.messages import Body, InferRequest, NanPolicy, Response, json_response
from app.codec.model import ModelCodec
from app.codec.outputs import Output, texts_of, write_strings
from app.codec.shapes import check_depth, discover, shown
from app.errors import InvalidRequest, InvalidTensor, NotRepresentable, RepeatedKey
from app.limits import Limits
from app.sizes import counted
from app.spec import TensorSpec
from engine import Tensor


class GenerateForm:
    """One request of this extension (`app.serving.forms.Form`)."""

    #: `generate` allows one response only. The words are the protocol's.
    not_one = (
        "generate expects model to produce exactly 1 response, use generate stream for "
        "model that generates various number of responses"
    )

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        return decode_generate(codec, body)

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        return json_response(encode_generate(codec, request, outputs))


def decode_generate(codec: ModelCodec, body: Body) -> InferRequest:
    """Return the request of a flat JSON object. Raises `RequestError`."""
    spec, limits = codec.spec, codec.limits
    text = join(body)
    check_json_size(len(text), limits)
    try:
        document = parse_listed(text, limits)
    except RepeatedKey as error:
        if error.key not in spec.inputs_by_name:
            raise
        raise InvalidRequest(f"input '{error.key}' already exists in request") from None
    if type(document) is not dict:
        raise InvalidRequest(f"expected a JSON object, got {shown(document)}")
    inputs: list[dict[str, Any]] = []
    parameters: dict[str, Any] = {}
    for name, value in document.items():
        tensor = spec.inputs_by_name.get(name)
        if tensor is not None:
            inputs.append(_input(tensor, value, limits))
        elif name == "parameters":
            parameters |= _nested_parameters(value, limits)
        elif name != "id":
            parameters[name] = value
    return codec.read(
        {"id": document.get("id"), "inputs": inputs, "parameters": parameters}
    )


def encode_generate(
    codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
) -> bytes:
    """Return the flat JSON object of one response: one element as itself, several as a
    list.

    Raises `NotRepresentable` for values that JSON cannot express.
    """
    spec = codec.spec
    fields: dict[str, bytes] = {}
    if request.id is not None:
        fields["id"] = orjson.dumps(request.id)
    fields["model_name"] = orjson.dumps(spec.name)
    fields["model_version"] = orjson.dumps(spec.version)
    for name, output in codec.outputs.items():
        if name not in outputs:
            # The file holds fused models, and this output belongs to another one.
            continue
        fields[name] = _value(output, outputs[name], request.nan)
    pieces: list[bytes] = []
    for name, text in fields.items():
        pieces += [b"," if pieces else b"{", orjson.dumps(name), b":", text]
    return b"".join((*pieces, b"}"))


def _nested_parameters(value: object, limits: Limits) -> dict[str, Any]:
    check_depth(value, limits, 1)
    if type(value) is not dict:
        msg = "Expected JSON object for keyword: 'parameters'"
        raise InvalidRequest(f"{msg}, got {shown(value)}")
    for name, item in value.items():
        if isinstance(item, dict | list):
            msg = f"Converting keyword: 'parameters': parameter '{name:.80}'"
            raise InvalidRequest(f"{msg} has invalid type.")
    return value


def _input(tensor: TensorSpec, value: object, limits: Limits) -> dict[str, Any]:
    """Return the input of an inference document."""
    if isinstance(value, list) and value and isinstance(value[0], list):
        shape, data = discover(tensor.name, value, tensor.shape, limits)
    else:
        data = value if isinstance(value, list) else [value]
        shape = _fill(tensor, len(data))
    _check_kinds(tensor, data)
    return {
        "name": tensor.name,
        "shape": list(shape),
        "datatype": tensor.datatype,
        "data": data,
    }


def _fill(tensor: TensorSpec, count: int) -> tuple[int, ...]:
    """Return the model's shape with `count` elements in it."""
    if tensor.shape is None:
        return (count,)
    left, dims = count, list(tensor.shape)
    for dim in dims:
        if dim > 0 and left % dim == 0:
            left //= dim
        elif dim >= 0 and (dim or count):
            raise _cannot_fill(tensor, count)
    for index in range(len(dims) - 1, -1, -1):
        if dims[index] == -1:
            dims[index], left = left, 1
    if left != 1 and count:
        raise _cannot_fill(tensor, count)
    return tuple(dims)


def _cannot_fill(tensor: TensorSpec, count: int) -> InvalidTensor:
    return InvalidTensor(
        f"The schema can not convert input '{tensor.name}' to tensor with proper "
        f"shape: {list(tensor.shape or ())} cannot hold {counted(count, 'element')}"
    )


def _check_kinds(tensor: TensorSpec, data: list[Any]) -> None:
    """Refuse, in the protocol's words, a value that is not a string or boolean."""
    wanted, word = {"s": (str, "string"), "b": (bool, "boolean")}.get(
        tensor.type.kind, (object, "")
    )
    for item in data:
        if not isinstance(item, wanted):
            msg = (
                f"attempt to access JSON non-{word} as {word} "
                f"(input '{tensor.name}' is {tensor.datatype})"
            )
            raise InvalidTensor(msg)


def _value(output: Output, tensor: Tensor, nan: NanPolicy) -> bytes:
    if output.kind == "s":
        try:
            text = write_strings(texts_of(output.strings(tensor)))
        except UnicodeDecodeError:
            msg = (
                f"output '{output.name}' is not valid UTF-8, which a flat JSON object "
                "cannot hold; call the route infer instead"
            )
            raise NotRepresentable(msg) from None
    else:
        text = output.json_data(tensor, nan)
    return text[1:-1] if _count(tensor) == 1 else text


def _count(tensor: Tensor) -> int:
    count = 1
    for dim in tensor.shape:
        count *= dim
    return count
