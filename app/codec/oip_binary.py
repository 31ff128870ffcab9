"""The binary tensor extension of the Open Inference Protocol, incoming.

The header Inference-Header-Content-Length gives the number of bytes of JSON in the
body. The tensors follow the JSON, back to back, in the order of the inputs that state a
size. The value 0 makes the whole body the data of the model's only input. Tensors are
not copied.

A client that repeats its requests sends the same JSON every time. The result is
remembered by the bytes of the JSON, so each header is parsed once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from app.codec.bounded_cache import remember
from app.codec.chunks import Chunks
from app.codec.inputs import Accepted, Input
from app.codec.json_text import check_json_size, parse_json
from app.codec.messages import (
    Body,
    Encoding,
    InferRequest,
    Reply,
    count_rows,
    new_request,
)
from app.errors import InvalidRequest, InvalidTensor, MalformedBody
from app.limits import Limits
from app.spec import ModelSpec

#: Reads the document of a request, whose tensors follow it.
Read: TypeAlias = Callable[[object, Reply, Chunks], InferRequest]

_LARGEST_HEADER = 2**31 - 1
# JSON headers up to this size are remembered for a model.
_REMEMBERED_BYTES = 4096


def parse_header_length(value: bytes, total: int) -> int:
    """Return the value of Inference-Header-Content-Length.

    Raises InvalidRequest if it is absurd.
    """
    if not value.removeprefix(b"-").isdigit() or len(value) > 20:
        shown = value[:40].decode("ascii", "backslashreplace")
        msg = f"Unable to parse Inference-Header-Content-Length, got: {shown}"
        raise InvalidRequest(msg)
    length = int(value)
    if not 0 <= length <= min(total, _LARGEST_HEADER):
        msg = f"inference header size should be in range (0, {total}), got: {length}"
        raise InvalidRequest(msg)
    return length


class _ParsedHeader:
    """Content of a JSON header whose inputs are all binary."""

    __slots__ = ("inputs", "only", "reply", "request", "total")

    def __init__(self, request: InferRequest, reply: Reply, codec: BinaryReader):
        self.request = request
        self.reply = reply
        self.total = sum(tensor.nbytes for tensor in request.inputs.values())
        self.inputs: list[tuple[Input, Accepted, int]] = [
            (
                codec.inputs[name],
                codec.inputs[name].accept_parsed(tensor.shape),
                tensor.nbytes,
            )
            for name, tensor in request.inputs.items()
        ]
        #: The only input, if it has bytes; else None.
        self.only = self.inputs[0] if len(self.inputs) == 1 and self.total else None


class BinaryReader:
    """Reads the binary requests of one model."""

    __slots__ = ("_known", "_lengths", "_limits", "_read", "_spec", "inputs")

    def __init__(
        self, spec: ModelSpec, limits: Limits, inputs: dict[str, Input], read: Read
    ) -> None:
        self._spec = spec
        self._limits = limits
        self._read = read
        self._known: dict[bytes, _ParsedHeader] = {}
        # The JSON sizes of known headers, by the value of the HTTP header.
        self._lengths: dict[bytes, int] = {}
        self.inputs = inputs

    def decode(self, header_length: bytes, body: Body, reply: Reply) -> InferRequest:
        """Return the request of a body with the header Inference-Header-Content-Length.

        Raises `app.errors.RequestError`.
        """
        total = len(body[0]) if len(body) == 1 else sum(map(len, body))
        length = self._lengths.get(header_length, 0)
        if 0 < length < total and len(body) == 1:
            chunk = body[0]
            known = self._known.get(bytes(chunk[:length]))
            if (
                known is not None
                and known.reply is reply
                and known.total == total - length
                and known.only is not None
            ):
                model_input, accepted, size = known.only
                parts = (memoryview(chunk)[length:],)
                tensor = model_input.from_bytes(parts, size, accepted)
                return known.request.over({model_input.name: tensor})
        length = parse_header_length(header_length, total)
        chunks = Chunks(body, total)
        if length == 0:
            return self._decode_raw(chunks, reply)
        check_json_size(length, self._limits)
        header = chunks.read_bytes(length)
        known = self._known.get(header)
        if known is not None and known.reply is reply and known.total == chunks.left:
            return self._decode_known(known, chunks)
        request = self._read(parse_json(header, self._limits), reply, chunks)
        # A header with an id will not occur again.
        if (
            total > length
            and length <= _REMEMBERED_BYTES
            and request.id is None
            and not request.read_from
        ):
            self._remember(header_length, header, request, reply, total - length)
        return request

    def _decode_known(self, known: _ParsedHeader, chunks: Chunks) -> InferRequest:
        inputs = {
            model_input.name: model_input.from_bytes(chunks.read(size), size, accepted)
            for model_input, accepted, size in known.inputs
        }
        return known.request.over(inputs)

    def _remember(
        self,
        header_length: bytes,
        header: bytes,
        request: InferRequest,
        reply: Reply,
        tensor_bytes: int,
    ) -> None:
        for name, tensor in request.inputs.items():
            if tensor.data_type is not self.inputs[name].data_type:
                return  # a file instead of numbers
        known = _ParsedHeader(request, reply, self)
        if known.total != tensor_bytes:  # some of the inputs are in the JSON
            return
        # The inputs are dropped. Otherwise the first body of its kind would stay in
        # memory forever.
        known.request = request.over({})
        remember(self._known, header, known)
        remember(self._lengths, header_length, len(header))

    def _decode_raw(self, chunks: Chunks, reply: Reply) -> InferRequest:
        """Return the request of a body that is the data of a model's only input."""
        if not chunks.left:
            msg = "the body is empty; expected a tensor (the header length is 0)"
            raise MalformedBody(msg)
        if len(self.inputs) != 1:
            msg = (
                "Raw request must only have 1 input (found 1) to be deduced but got "
                f"{len(self.inputs)} inputs in '{self._spec.name}' model configuration"
            )
            raise InvalidTensor(msg)
        (model_input,) = self.inputs.values()
        size = chunks.left
        request = new_request(reply)
        # A body without a document cannot choose: the answer is binary unless Accept
        # names JSON.
        request.binary = not reply.explicit or reply.encoding is not Encoding.JSON
        request.inputs[model_input.name] = model_input.from_raw(chunks.read(size), size)
        if self._spec.is_batched:
            count_rows(request, self._spec)
        return request

    def __repr__(self) -> str:
        return f"<BinaryReader {self._spec.name!r} {len(self._known)} known headers>"
