"""The Open Inference Protocol in JSON: responses to all of its requests.

A response has tensors behind the JSON if the request asks for binary outputs.
`model` reads the requests, and `oip_binary` those with tensors behind the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import orjson

from app.codec.bounded_cache import remember
from app.codec.chunks import JOIN_BELOW, in_parts
from app.codec.messages import InferRequest, Response
from app.codec.outputs import Output, json_strings, strings_of
from app.give_way import AT_ONCE, empty
from app.spec import ModelSpec
from engine import Buffer, Tensor

_JSON_LINES: Final = b"content-type: application/json\r\ncontent-length: %d\r\n"
_BINARY_LINES: Final = (
    b"content-type: application/octet-stream\r\ncontent-length: %d\r\n"
    b"inference-header-content-length: %d\r\n"
)

Outputs: TypeAlias = Mapping[str, Tensor]


class JsonWriter:
    """Writes the JSON responses of one model.

    The constant parts of all responses are encoded once, here. A response joins these
    pieces around the numbers.
    """

    __slots__ = ("_all", "_known", "_model", "_outputs", "_sized")

    def __init__(self, spec: ModelSpec, outputs: dict[str, Output]) -> None:
        self._outputs = outputs
        self._all = tuple(outputs)
        # Whether the shapes give the number of bytes, which is not so for strings.
        self._sized = all(output.kind != "s" for output in outputs.values())
        self._known: dict[object, _CachedJson] = {}
        self._model = b'"model_name":%b,"model_version":%b,"outputs":[' % (
            orjson.dumps(spec.name),
            orjson.dumps(spec.version),
        )

    def encode(self, request: InferRequest, tensors: Outputs) -> Response:
        """Return the response; outputs that the request wants binary follow the JSON.

        Outputs that go to shared memory are written there. Raises NotRepresentable if
        the NaN policy refuses a number.
        """
        if (
            request.binary
            and self._sized
            and request.id is None
            and request.outputs is None
            and request.binary_by_name is None
            and request.held is None
        ):
            return self._encode_binary(request, tensors)
        pieces, tail, tail_size = self._compose(request, tensors)
        size = sum(map(len, pieces))
        if not tail_size and size <= JOIN_BELOW:
            return Response(200, _JSON_LINES % size, pieces, size)
        total = size + tail_size
        parts: Sequence[Buffer] = [*pieces, *tail] if tail else pieces
        if total > JOIN_BELOW:
            parts = in_parts(parts, total)
        return Response(200, _lines(size, tail_size), parts, total)

    def _encode_binary(self, request: InferRequest, tensors: Outputs) -> Response:
        """Return the response with all outputs binary.

        If their shapes are known, all other parts are known too.
        """
        names = self._all
        if len(names) == 1:
            tensor = tensors[names[0]]
            key: object = tensor.shape
            tail = tensor.parts
        else:
            key = tuple([tensors[name].shape for name in names])
            tail = [part for name in names for part in tensors[name].parts]
        known = self._known.get(key)
        if known is None:
            known = _CachedJson(*self._compose(request, tensors))
            remember(self._known, key, known)
        parts = [known.json, *tail]
        return Response(200, known.lines, parts, known.total)

    def _compose(
        self, request: InferRequest, tensors: Outputs
    ) -> tuple[list[bytes], list[Buffer], int]:
        """Return the pieces of the JSON, the tensors behind it, and their bytes."""
        if request.id is None:
            pieces: list[bytes] = [b"{", self._model]
        else:
            pieces = [b'{"id":', orjson.dumps(request.id), b",", self._model]
        names = request.outputs or self._all
        by_name, binary = request.binary_by_name, request.binary
        held = request.held
        tail: list[Buffer] = []
        tail_size = 0
        comma = b""
        for name in names:
            tensor = tensors[name]
            output = self._outputs[name]
            pieces.append(comma)
            pieces.append(output.heads.get(tensor.shape) or output.head(tensor.shape))
            comma = b","
            if held is not None and name in held:
                place = orjson.dumps(held.put(name, tensor))
                pieces.append(b'"parameters":%b}' % place)
            elif binary if by_name is None else by_name.get(name, binary):
                pieces.append(b'"parameters":{"binary_data_size":%d}}' % tensor.nbytes)
                if tensor.nbytes:
                    tail += tensor.parts
                    tail_size += tensor.nbytes
            elif output.kind == "s":
                if tensor.nbytes <= AT_ONCE:
                    pieces.append(_string_data(strings_of(tensor)))
                else:
                    strings = output.strings(tensor)
                    pieces.append(_string_data(strings))
                    empty(strings)
            else:
                pieces.append(b'"data":')
                pieces.append(output.json_data(tensor, request.nan))
                pieces.append(b"}")
        pieces.append(b"]}")
        return pieces, tail, tail_size

    def __repr__(self) -> str:
        return f"<JsonWriter outputs={list(self._all)}>"


def _string_data(elements: list[bytes]) -> bytes:
    text, is_base64 = json_strings(elements)
    flag = b'"parameters":{"content_type":"base64"},' if is_base64 else b""
    return flag + b'"data":' + text + b"}"


def _lines(head_size: int, tail_size: int) -> bytes:
    total = head_size + tail_size
    return (_BINARY_LINES % (total, head_size)) if tail_size else _JSON_LINES % total


class _CachedJson:
    """JSON that all responses with binary tensors of these shapes share."""

    __slots__ = ("json", "lines", "total")

    def __init__(self, pieces: list[bytes], tail: list[Buffer], tail_size: int) -> None:
        self.json = b"".join(pieces)
        self.total = len(self.json) + tail_size
        self.lines = _lines(len(self.json), tail_size)
