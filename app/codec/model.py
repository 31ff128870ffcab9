"""All encodings of one model: a body to a request, outputs to a response."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from app.codec.bounded_cache import remember
from app.codec.chunks import beginning, gather, join
from app.codec.classification import classified, classify
from app.codec.document import DocumentReader
from app.codec.files.file_body import FileReader
from app.codec.inputs import Input
from app.codec.json_lists import LARGE, is_long, parse_large, parse_with_lists
from app.codec.json_text import check_json_size, may_hold_booleans, parse_json
from app.codec.media import KNOWN_WAYS, encoding_of, reply_to, way_of
from app.codec.memory_check import SHARED_AT_ONCE
from app.codec.messages import (
    Body,
    Encoding,
    InferRequest,
    Reply,
    Response,
    new_request,
)
from app.codec.npy import decode_npy, encode_npy, is_rearranged, read_array
from app.codec.number_lists import SMALL, Unusual, may_have_lists
from app.codec.oip_binary import BinaryReader
from app.codec.oip_json import JsonWriter
from app.codec.oip_msgpack import MsgpackWriter, is_mostly_bytes, parse_msgpack
from app.codec.outputs import Output
from app.errors import InvalidRequest, NotAcceptable, NotRepresentable, RequestError
from app.give_way import AT_ONCE
from app.limits import DEFAULT_LIMITS, Limits
from app.regions import Regions
from app.spec import ModelSpec
from engine import Tensor

# Bodies of up to these sizes are decoded on the event loop, in less than 20 ms: any but
# dense JSON (`is_long`), others than msgpack and strings, and mostly bytes in msgpack.
ALL_AT_ONCE = 16 * 1024
DECODED_AT_ONCE = 256 * 1024
DECODED_AT_ONCE_AT_MOST = 1 << 19
_PEEKED = 4096
# More classes, or classes of larger outputs (bytes), are written in a thread.
_CLASSES_AT_ONCE, _CLASSIFIED_AT_ONCE = 1024, 1 << 16


class ModelCodec:
    """Decodes the requests and encodes the responses of one version of a model.

    It is made once when a model is loaded, and computes as much as possible in advance.
    `regions` is the shared memory that requests may name, None if they may not. The
    codec belongs to the event loop. One other thread may also call `decode`, because
    the codec's caches are only hints.
    """

    __slots__ = (
        "_binary",
        "_classified",
        "_encoded",
        "_files",
        "_inputs",
        "_is_looked_at",
        "_json",
        "_msgpack",
        "_outputs",
        "_reader",
        "limits",
        "spec",
    )

    def __init__(
        self,
        spec: ModelSpec,
        limits: Limits = DEFAULT_LIMITS,
        regions: Regions | None = None,
    ) -> None:
        self.spec = spec
        self.limits = limits
        self._inputs = {item.name: Input(spec, item, limits) for item in spec.inputs}
        self._outputs = {item.name: Output(item, limits) for item in spec.outputs}
        # Each element of these inputs is checked, even if it arrives as bytes.
        self._is_looked_at = any(item.type.kind in "sb" for item in spec.inputs)
        also = {alias: self._inputs[name] for alias, name in spec.aliases.items()}
        named = {**self._inputs, **also}
        encoded = {n: Input(spec, item, limits) for n, item in spec.encoded.items()}
        self._encoded = encoded
        self._reader = DocumentReader(spec, limits, named, regions, encoded)
        self._binary = BinaryReader(spec, limits, self._inputs, self._reader.read)
        self._files = FileReader(spec, self._inputs, encoded)
        self._json = JsonWriter(spec, self._outputs)
        self._msgpack = MsgpackWriter(spec, self._outputs)
        self._classified: dict[frozenset[str], ModelCodec] = {}

    @property
    def outputs(self) -> Mapping[str, Output]:
        """Return the writers of outputs by name."""
        return self._outputs

    def read(self, document: object) -> InferRequest:
        """Return the validated request of a document from elsewhere; the answer is
        JSON.

        Raises `app.errors.RequestError`.
        """
        return self._reader.read(document, Reply(Encoding.JSON))

    def decode(
        self,
        content_type: bytes | None,
        header_length: bytes | None,
        accept: bytes | None,
        body: Body,
    ) -> InferRequest:
        """Return the validated request of a body, given as its chunks in order.

        `header_length` is the value of Inference-Header-Content-Length. Binary tensors
        are views of the chunks. Raises only `app.errors.RequestError`.
        """
        if header_length is not None:
            return self._decode_framed(content_type, header_length, accept, body)
        way = KNOWN_WAYS.get((content_type, accept))
        encoding, reply = way_of(content_type, accept, body) if way is None else way
        if encoding is Encoding.JSON:
            request = _decode_json(self._reader, self.limits, body, reply)
        elif encoding is Encoding.MSGPACK:
            document = parse_msgpack(gather(body), self.limits)
            request = self._reader.read(document, reply)
        elif encoding is Encoding.NPY:
            request = decode_npy(self.spec, self._inputs, self.limits, body, reply)
        else:
            request = self._decode_files(encoding, content_type, body, reply)
        if request.encoding is Encoding.NPY:
            self._check_npy(request, reply)
        return request

    def takes_long(
        self, headers: Mapping[bytes, bytes], body: Body, form: object = None
    ) -> bool:
        """Return whether decoding a large body takes too long for the event loop.

        Binary tensors need no conversion, however large they are. Strings and booleans
        are checked one by one, and arrays may have another order.
        """
        size = sum(map(len, body))
        header_length = headers.get(b"inference-header-content-length")
        is_large = size > DECODED_AT_ONCE
        if size <= ALL_AT_ONCE or form is not None:
            return form is not None and is_long(body, DECODED_AT_ONCE)
        if is_large and self._is_looked_at:
            return True
        if header_length is not None:
            head = int(header_length[-10:]) if header_length.isdigit() else 0
            head = min(head, DECODED_AT_ONCE_AT_MOST + 1)
            return head > ALL_AT_ONCE and is_long([beginning(body, head)[:head]])
        first = beginning(body, _PEEKED)
        try:
            encoding = encoding_of(headers.get(b"content-type"), [first])
        except RequestError:
            return False
        if encoding is Encoding.FORM:
            return is_long(body, DECODED_AT_ONCE)
        if encoding is Encoding.NPY:
            return is_rearranged(first)
        if encoding is Encoding.MSGPACK:
            # The whole body is joined, if it came in several chunks.
            return size > DECODED_AT_ONCE_AT_MOST or not is_mostly_bytes(first, size)
        return encoding is Encoding.JSON and (self._is_looked_at or is_long(body))

    def takes_long_to_encode(self, request: InferRequest, size: int) -> bool:
        """Return whether encoding `size` bytes takes too long for the event loop.

        Binary output is sent unchanged. Other output is encoded element by element.
        """
        classes = request.classes
        if classes is not None:
            strings = min(size, max(classes.values()) * max(1, request.rows))
            return size > _CLASSIFIED_AT_ONCE or strings > _CLASSES_AT_ONCE
        if size <= AT_ONCE:
            return False
        held, by_name = request.held or (), request.binary_by_name or {}
        is_json, is_npy = (request.encoding is e for e in (Encoding.JSON, Encoding.NPY))
        for name in request.outputs or tuple(self._outputs):
            is_binary = is_npy or by_name.get(name, request.binary)
            is_plain = is_binary and (is_json or self._outputs[name].kind != "s")
            takes_long = size > SHARED_AT_ONCE if name in held else not is_plain
            if takes_long:
                return True
        return False

    def _decode_files(
        self, encoding: Encoding, content_type: bytes | None, body: Body, reply: Reply
    ) -> InferRequest:
        """Return the request of a body that is a file or a form."""
        request = new_request(reply)
        if encoding is Encoding.FORM:
            # The form parser is imported with the first form.
            from app.codec.files.form import FormReader

            form = FormReader(
                self.spec,
                self.limits,
                self._reader.input_named,
                self._encoded,
                partial(read_array, self.spec, self.limits),
            )
            form.read(content_type, body, request)
        else:
            self._files.read(content_type, body, request)
        self._reader.complete(request)
        shown = self.spec.shown_classes
        # A file body has no field in which the client could request classes.
        if shown and request.outputs is None and request.encoding is Encoding.JSON:
            request.classes = shown
        return request

    def _decode_framed(
        self,
        content_type: bytes | None,
        header_length: bytes,
        accept: bytes | None,
        body: Body,
    ) -> InferRequest:
        if content_type:
            encoding = encoding_of(content_type, [b"{"])
            if encoding is not Encoding.JSON:
                msg = (
                    "the header Inference-Header-Content-Length requires a JSON "
                    "header with binary tensors as body, got "
                    f"{encoding.value.decode()}"
                )
                raise InvalidRequest(msg)
        reply = reply_to(accept, Encoding.JSON)
        request = self._binary.decode(header_length, body, reply)
        if request.encoding is Encoding.NPY:
            self._check_npy(request, reply)
        return request

    def _check_npy(self, request: InferRequest, reply: Reply) -> None:
        """Check the number of outputs: one is sent as .npy, several as JSON unless
        Accept insists.
        """
        names = request.outputs or tuple(self._outputs)
        if request.extents is not None:
            msg = "a .npy answer cannot refer to shared memory; request JSON"
            raise NotAcceptable(msg)
        if len(names) == 1:
            return
        if reply.explicit and self.spec.optional_inputs and request.outputs is None:
            return  # the inputs decide how many outputs there are
        if reply.explicit:
            raise NotAcceptable(_several_outputs(names))
        request.encoding = Encoding.JSON

    def _written(
        self, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> tuple[str, ...]:
        """Return the outputs of a response without some of them (fused models)."""
        wanted = request.outputs
        if wanted is None:
            return tuple(name for name in self._outputs if name in outputs)
        for name in wanted:
            if name not in outputs:
                msg = (
                    f"output '{name}' was requested, but with these inputs model "
                    f"'{self.spec.name}' returns {list(outputs)}"
                )
                raise InvalidRequest(msg)
        return wanted

    def encode(self, request: InferRequest, outputs: Mapping[str, Tensor]) -> Response:
        """Return the response to `request`; `outputs` are the model's.

        Raises InvalidRequest if the outputs differ from the requested ones, and
        NotRepresentable if the requested encoding cannot hold the result.
        """
        if len(outputs) != len(self._outputs):
            request.outputs = self._written(request, outputs)
        if request.classes is not None:
            return self._encode_classes(request, request.classes, outputs)
        if request.encoding is Encoding.JSON:
            return self._json.encode(request, outputs)
        if request.encoding is Encoding.MSGPACK:
            return self._msgpack.encode(request, outputs)
        names = request.outputs or tuple(self._outputs)
        if len(names) != 1:
            raise NotRepresentable(_several_outputs(names))
        return encode_npy(self._outputs[names[0]], outputs[names[0]])

    def _encode_classes(
        self,
        request: InferRequest,
        classes: Mapping[str, int],
        outputs: Mapping[str, Tensor],
    ) -> Response:
        """Return the response with the highest values of some outputs, as strings."""
        names = frozenset(classes)
        codec = self._classified.get(names)
        if codec is None:
            codec = ModelCodec(classified(self.spec, names), self.limits)
            remember(self._classified, names, codec)
        by_name, batched = self.spec.outputs_by_name, self.spec.is_batched
        tensors = dict(outputs)
        for name, count in classes.items():
            output, labels = self._outputs[name], by_name[name].labels
            tensors[name] = classify(
                output, outputs[name], count, labels, batched=batched
            )
        request.classes = None  # applied; the request may have more responses
        try:
            return codec.encode(request, tensors)
        finally:
            request.classes = classes

    def __repr__(self) -> str:
        return f"<ModelCodec {self.spec.name}/{self.spec.version}>"


def _several_outputs(names: tuple[str, ...]) -> str:
    return (
        f"a .npy answer holds one array, and this one has {len(names)} outputs: "
        f"{list(names)}; name one of them in 'outputs'"
    )


def _decode_json(
    reader: DocumentReader, limits: Limits, body: Body, reply: Reply
) -> InferRequest:
    """Return the request of a body that is JSON from end to end."""
    first = body[0] if len(body) == 1 else None
    text = first if isinstance(first, bytes) else join(body)
    size = len(text)
    if size > limits.max_json_bytes:
        check_json_size(size, limits)
    if size < SMALL:
        return reader.read(parse_json(text, limits), reply)
    if size > LARGE:
        return reader.read(parse_large(text, limits), reply)
    if may_have_lists(text):
        request = _decode_usual(reader, limits, text, reply)
        if request is not None:
            return request
    document = parse_json(text, limits)
    inputs = document.get("inputs") if type(document) is dict else None
    maybe_bool = not isinstance(inputs, list | dict) or may_hold_booleans(text, inputs)
    return reader.read(document, reply, maybe_bool=maybe_bool)


def _decode_usual(
    reader: DocumentReader, limits: Limits, text: bytes, reply: Reply
) -> InferRequest | None:
    """Return the request if it is a usual one.

    The slower path, which handles every request, reports errors.
    """
    try:
        return reader.read(parse_with_lists(text, limits), reply)
    except (Unusual, RequestError):
        return None
