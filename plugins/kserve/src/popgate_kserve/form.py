"""KServe's first protocol, which is TensorFlow Serving's: instances to predictions.

In rows: ``{"instances": [a, b]}`` gives ``{"predictions": [x, y]}``. Each instance is a
value, or an object of values by name if the model has several inputs. In columns:
``{"inputs": …}`` gives ``{"outputs": …}``, whole batches by name. Bytes that are not
UTF-8 are ``{"b64": "…"}`` in both directions.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any

import orjson

from app.codec.chunks import join
from app.codec.elements import from_base64
from app.codec.json_lists import parse_listed
from app.codec.json_text import check_json_size
from app.codec.messages import Body, InferRequest, NanPolicy, Response, json_response
from app.codec.model import ModelCodec
from app.codec.outputs import Output, texts_of
from app.codec.shapes import discover, shown
from app.errors import InvalidRequest, InvalidTensor, NotRepresentable
from app.give_way import AT_ONCE, BLOCK, give_way
from app.limits import Limits
from app.sizes import counted
from app.spec import ModelSpec, TensorSpec
from engine import Tensor

_KEYS = ("instances", "inputs", "signature_name", "parameters")
#: The only signature, because a model has one set of inputs and outputs.
_SIGNATURE = "serving_default"


class KServePredictForm:
    """One request of this protocol (`app.serving.forms.Form`).

    `instances` is the number of instances, or None for columns: the answer has the form
    of the request.
    """

    not_one = "the model must return exactly 1 response"

    def __init__(self) -> None:
        self.instances: int | None = None

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        self.not_one = f"model '{codec.spec.name}' must return exactly 1 response"
        request, self.instances = decode_predict(codec, body)
        return request

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        return json_response(
            encode_predict(codec, self.instances, outputs, request.nan)
        )


def decode_predict(codec: ModelCodec, body: Body) -> tuple[InferRequest, int | None]:
    """Return the request of a body, and the number of its instances. Raises
    `RequestError`.
    """
    spec, limits = codec.spec, codec.limits
    text = join(body)
    check_json_size(len(text), limits)
    document = parse_listed(text, limits)
    if type(document) is not dict or ("instances" in document) == (
        "inputs" in document
    ):
        msg = "expected a JSON object with either 'instances' or 'inputs'"
        raise InvalidRequest(f"{msg}, got {shown(document)}")
    unknown = [key for key in document if key not in _KEYS]
    if unknown:
        msg = f"unexpected key '{unknown[0]:.80}'; expected one of {', '.join(_KEYS)}"
        raise InvalidRequest(msg)
    if document.get("signature_name") not in (None, "", _SIGNATURE):
        raise InvalidRequest(f"'signature_name' must be '{_SIGNATURE}'")
    rows: int | None = None
    if "instances" in document:
        values = by_input(spec, document["instances"])
        rows = len(document["instances"])
    else:
        inputs = document["inputs"]
        values = inputs if _is_named(inputs) else {only_input(spec): inputs}
    return request_of(codec, values, rows, document.get("parameters")), rows


def request_of(
    codec: ModelCodec,
    values: Mapping[str, Any],
    rows: int | None,
    parameters: object,
    *,
    extra_columns: str = "refuse",
) -> InferRequest:
    """Return the request of values by input. Raises `RequestError`.

    `rows` is the number of rows that each value must have, None if any number is
    allowed. `extra_columns` decides about values without an input of the model, if
    `parameters` do not.
    """
    spec = codec.spec
    ignores_extra = _ignores_extra(parameters, extra_columns)
    tensors = []
    for name, value in values.items():
        tensor = spec.inputs_by_name.get(name)
        if tensor is None and ignores_extra:
            continue
        if tensor is None:
            known = list(spec.inputs_by_name)
            msg = f"unexpected input '{name:.200}' for model '{spec.name}'"
            msg += f". Expected input(s) {known}. The parameter 'extra_columns': "
            raise InvalidTensor(msg + "'ignore' drops the others.")
        files = spec.encoded.get(name)
        if files is not None and isinstance(value, list) and any(map(_is_bytes, value)):
            tensor = files  # the client sent pictures instead of numbers
        tensors.append(_input(tensor, value, rows, codec.limits))
    return codec.read({"inputs": tensors, "parameters": parameters})


def encode_predict(
    codec: ModelCodec,
    instances: int | None,
    outputs: Mapping[str, Tensor],
    nan: NanPolicy,
    *,
    of_columns: str = "outputs",
) -> bytes:
    """Return the answer, in the form of the request.

    `of_columns` is the key of an answer in columns. Raises `NotRepresentable` for
    outputs that cannot be split into instances.
    """
    # For fused models, `outputs` holds only those of the requested model.
    written = {name: o for name, o in codec.outputs.items() if name in outputs}
    if instances is None:
        columns = {n: _nested(o, outputs[n], nan) for n, o in written.items()}
        (answer,) = columns.values() if len(columns) == 1 else (_object(columns),)
        return b'{"%b":%b}' % (of_columns.encode(), answer)
    rows = {}
    for name, output in written.items():
        tensor = outputs[name]
        if not tensor.shape or tensor.shape[0] != instances:
            msg = (
                f"output '{name}' of model '{codec.spec.name}' has shape "
                f"{list(tensor.shape)} for {counted(instances, 'instance')}; send "
                "'inputs' instead of 'instances' to get whole tensors"
            )
            raise NotRepresentable(msg)
        rows[name] = _rows(output, tensor, nan)
    if len(rows) == 1:
        items = next(iter(rows.values()))
    else:
        items = [
            _object({name: texts[row] for name, texts in rows.items()})
            for row in range(instances)
        ]
    return b"".join((b'{"predictions":[', b",".join(items), b"]}"))


# -- requests


def _ignores_extra(parameters: object, default: str) -> bool:
    """Return whether the request drops values that the model has no input for."""
    extra: object = None
    if type(parameters) is dict:  # the reader of documents refuses other types
        extra = parameters.get("extra_columns")
    extra = default if extra is None else extra
    if extra not in ("ignore", "refuse"):
        msg = f"'extra_columns' must be 'ignore' or 'refuse', got {shown(extra)}"
        raise InvalidRequest(msg)
    return extra == "ignore"


def by_input(spec: ModelSpec, instances: object) -> dict[str, list[Any]]:
    """Return the values of all instances, by input."""
    if not isinstance(instances, list) or not instances:
        msg = "'instances' must be a list with at least one instance"
        raise InvalidRequest(f"{msg}, got {shown(instances)}")
    if not _is_named(instances[0]):
        return {only_input(spec): instances}
    values: dict[str, list[Any]] = {name: [] for name in instances[0]}
    for index, instance in enumerate(instances):
        if not _is_named(instance) or instance.keys() != values.keys():
            msg = (
                f"instance {index} has other keys than the first instance: "
                f"{list(values)[:20]!r:.1000}"
            )
            raise InvalidRequest(msg)
        for name, value in instance.items():
            values[name].append(value)
    return values


def _is_named(value: object) -> bool:
    return isinstance(value, dict) and not _is_bytes(value)


def _is_bytes(value: object) -> bool:
    return isinstance(value, dict) and value.keys() == {"b64"}


def only_input(spec: ModelSpec) -> str:
    needed = [t.name for t in spec.inputs if t.name not in spec.defaults]
    if len(needed) != 1:
        names = [tensor.name for tensor in spec.inputs]
        msg = (
            f"model '{spec.name}' has {len(names)} inputs; each instance must be an "
            "object with a value for each: "
        )
        raise InvalidRequest(f"{msg}{names}")
    return needed[0]


def _input(
    tensor: TensorSpec, value: object, rows: int | None, limits: Limits
) -> dict[str, Any]:
    """Return the input of an inference document."""
    shape, data = discover(tensor.name, value, tensor.shape, limits)
    if rows is not None and shape[:1] != (rows,):
        msg = (
            f"unexpected shape for input '{tensor.name}': {counted(rows, 'instance')} "
            f"have shape {list(shape)}, expected {list(tensor.shape or ())}"
        )
        raise InvalidTensor(msg)
    if any(isinstance(item, dict) for item in data):
        data = [_from_b64(tensor, item) for item in data]
    return {
        "name": tensor.name,
        "shape": list(shape),
        "datatype": tensor.datatype,
        "data": data,
    }


def _from_b64(tensor: TensorSpec, item: object) -> object:
    if not isinstance(item, dict):
        return item
    text = item.get("b64")
    if not _is_bytes(item) or not isinstance(text, str) or tensor.type.kind != "s":
        msg = f"an element of input '{tensor.name}' ({tensor.datatype}) is an object"
        raise InvalidTensor(f'{msg}; expected a value, or for BYTES {{"b64": …}}')
    return from_base64(text, f"'b64' of input '{tensor.name}'")


# -- answers


def _object(fields: Mapping[str, bytes]) -> bytes:
    pieces: list[bytes] = []
    for name, text in fields.items():
        pieces += [b"," if pieces else b"{", orjson.dumps(name), b":", text]
    return b"".join((*pieces, b"}"))


def _nested(output: Output, tensor: Tensor, nan: NanPolicy) -> bytes:
    if not tensor.shape:
        return next(chain.from_iterable(_items(output, tensor, nan)))
    if len(tensor.shape) == 1 and tensor.nbytes:
        return next(_lists(_items(output, tensor, nan), tensor.shape[0]))
    return b"".join((b"[", b",".join(_rows(output, tensor, nan)), b"]"))


def _rows(output: Output, tensor: Tensor, nan: NanPolicy) -> list[bytes]:
    """Return the text of each element of the first dimension."""
    shape = tensor.shape
    if 0 in shape:
        return _empty_rows(shape)
    blocks = _items(output, tensor, nan)
    if len(shape) == 1:
        return list(chain.from_iterable(blocks))
    *groups, size = shape[1:]
    pieces = list(_lists(blocks, size))
    for size in reversed(groups):
        pieces = [
            b"[" + b",".join(pieces[i : i + size]) + b"]"
            for i in range(0, len(pieces), size)
        ]
    return pieces


def _lists(blocks: Iterable[list[bytes]], size: int) -> Iterator[bytes]:
    """Yield the texts of lists of `size` elements each."""
    parts: list[bytes] = []
    missing = size
    for block in blocks:
        at = 0
        while at < len(block):
            part = block[at : at + missing]
            parts.append(b",".join(part))
            at += len(part)
            missing -= len(part)
            if not missing:
                parts[0] = b"[" + parts[0]
                parts[-1] += b"]"
                yield b",".join(parts)
                parts, missing = [], size


def _empty_rows(shape: tuple[int, ...]) -> list[bytes]:
    row = b"[]"
    inner = shape[1 : shape.index(0)] if shape[0] else ()
    for size in reversed(inner):
        row = b"[" + b",".join([row] * size) + b"]"
    return [row] * shape[0]


def _items(output: Output, tensor: Tensor, nan: NanPolicy) -> Iterator[list[bytes]]:
    """Yield the text of each element, flat, in blocks."""
    if output.kind != "s":
        yield from output.json_items(tensor, nan)
        return
    elements = output.strings(tensor)
    is_text = not output.name.endswith("_bytes")  # the protocol's sign: "always b64"
    if is_text:
        try:
            texts_of(elements)
        except UnicodeDecodeError:
            is_text = False
    for start in range(0, len(elements), BLOCK):
        block = elements[start : start + BLOCK]
        if tensor.nbytes > AT_ONCE:
            give_way()
        if is_text:
            # A slice has the size of its text. Each result of orjson keeps 4 KiB.
            yield [orjson.dumps([element.decode()])[1:-1] for element in block]
        else:
            yield [b'{"b64":"%b"}' % b64encode(element) for element in block]
