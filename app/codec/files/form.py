"""A form (`multipart/form-data`): one part for each input.

A part with a file name is a file: the element of a BYTES input, a picture for an input
that accepts pictures, or a .npy array. Every other part is a value written as text: an
element of a BYTES input, or JSON. Several parts with one name are elements, or rows, of
one input. The parts ``id``, ``outputs`` and ``parameters`` mean the same as in a JSON
request.

This module, and with it the parser, is imported when the first form arrives.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from app.codec.inputs import Input
from app.codec.json_text import parse_json
from app.codec.media import NPY_MAGIC, media_type_of
from app.codec.messages import Body, InferRequest
from app.codec.request_options import read_outputs, read_parameters
from app.codec.shapes import completed
from app.errors import BodyTooLarge, InvalidRequest, InvalidTensor, MalformedBody
from app.give_way import AT_ONCE, give_way
from app.limits import Limits
from app.sizes import counted
from app.spec import ModelSpec, notation
from engine import Tensor

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

#: Limits of one part's headers (usually a name, a file name and a content type).
_MOST_HEADERS, _MOST_HEADER_BYTES = 16, 4096
_MOST_NAME = 1024
#: Bytes that the parser reads before another thread may run.
_BLOCK: Final = 1 << 16
_TEXT = (b"", b"text/plain")
_JSON = b"application/json"


@dataclass(slots=True)
class FormPart:
    """One part of a form: its name, and its content in pieces."""

    name: str = ""
    is_file: bool = False
    media_type: bytes = b""
    pieces: list[bytes] = field(default_factory=list)

    @property
    def content(self) -> bytes:
        return b"".join(self.pieces)

    def __repr__(self) -> str:
        size = sum(map(len, self.pieces))
        return (
            f"<FormPart {self.name!r} {self.media_type.decode('latin-1')} {size} bytes>"
        )


class _Parts:
    """Callbacks of the parser. They raise `InvalidRequest` or `MalformedBody`."""

    def __init__(self, most: int) -> None:
        self.parts: list[FormPart] = []
        self._most = most
        self._header: list[bytes] = []
        self._value: list[bytes] = []
        self.is_whole = False

    def callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._begin,
            "on_part_data": self._data,
            "on_header_field": lambda data, a, b: self._header.append(data[a:b]),
            "on_header_value": lambda data, a, b: self._value.append(data[a:b]),
            "on_header_end": self._end_header,
            "on_headers_finished": self._end_headers,
            "on_end": self._end,
        }

    def _begin(self) -> None:
        if len(self.parts) >= self._most:
            msg = f"the form has more than {self._most} parts, which is the limit"
            raise InvalidRequest(msg)
        self.parts.append(FormPart())

    def _data(self, data: bytes, start: int, end: int) -> None:
        self.parts[-1].pieces.append(data[start:end])

    def _end_header(self) -> None:
        name, value = b"".join(self._header).lower(), b"".join(self._value)
        self._header, self._value = [], []
        part = self.parts[-1]
        if name == b"content-type":
            part.media_type = media_type_of(value)
        elif name == b"content-disposition":
            kind, options = parse_options_header(value)
            given = options.get(b"name", b"")
            if kind != b"form-data" or not given or len(given) > _MOST_NAME:
                raise _malformed(
                    f"part {len(self.parts)} has no usable name: expected "
                    "'Content-Disposition: form-data; name=\"INPUT\"', got "
                    f"{value[:100]!r}"
                )
            part.name = given.decode("utf-8", "replace")
            part.is_file = b"filename" in options or b"filename*" in options
        elif name == b"content-transfer-encoding" and (
            value.strip().lower() not in (b"binary", b"8bit", b"7bit")
        ):
            raise _malformed(
                f"part {len(self.parts)} has Content-Transfer-Encoding "
                f"{value[:40]!r}, which a form cannot have; send the bytes unencoded"
            )

    def _end_headers(self) -> None:
        if not self.parts[-1].name:
            raise _malformed(
                f"part {len(self.parts)} has no Content-Disposition header, which "
                "names the input"
            )

    def _end(self) -> None:
        self.is_whole = True


def _malformed(why: str) -> MalformedBody:
    return MalformedBody(f"the form is malformed: {why}")


def parse_form(
    content_type: bytes | None, body: Body, limits: Limits
) -> list[FormPart]:
    """Return the parts of a form, in order. Raises `app.errors.RequestError`."""
    _, options = parse_options_header(content_type or b"")
    boundary = options.get(b"boundary", b"")
    if not boundary:
        msg = "its Content-Type has no boundary; let the HTTP library set Content-Type"
        raise _malformed(msg)
    found = _Parts(limits.max_form_parts)
    try:
        parser = MultipartParser(
            boundary,
            found.callbacks(),
            max_header_count=_MOST_HEADERS,
            max_header_size=_MOST_HEADER_BYTES,
        )
        is_large = sum(map(len, body)) > AT_ONCE  # then it is read in a thread
        for chunk in body:
            for start in range(0, len(chunk), _BLOCK):
                parser.write(bytes(chunk[start : start + _BLOCK]))
                if is_large:
                    give_way()
        parser.finalize()
    except FormParserError as error:
        raise _malformed(str(error)) from None
    if not found.is_whole:
        raise _malformed("it ends before its last boundary")
    return found.parts


class FormReader:
    """Reads the forms of one model.

    `input_named` returns an input or raises `RequestError`. `encoded` are the numeric
    inputs that also accept files, described as inputs of BYTES. `read_array` returns
    the tensor of a .npy array for an input.
    """

    def __init__(
        self,
        spec: ModelSpec,
        limits: Limits,
        input_named: Callable[[object], Input],
        encoded: Mapping[str, Input],
        read_array: Callable[[Input, Body], Tensor],
    ) -> None:
        self._spec = spec
        self._limits = limits
        self._input_named = input_named
        self._encoded = encoded
        self._read_array = read_array

    def read(
        self, content_type: bytes | None, body: Body, request: InferRequest
    ) -> None:
        """Fill in a request from a form. Raises `app.errors.RequestError`."""
        by_name: dict[str, list[FormPart]] = {}
        for part in parse_form(content_type, body, self._limits):
            by_name.setdefault(part.name, []).append(part)
        for name, read in _OWN.items():
            if name in by_name and name not in self._spec.inputs_by_name:
                read(self._spec, request, _only(by_name.pop(name)), self._limits)
        for name, parts in by_name.items():
            found = self._input_named(name)
            if found.name in request.inputs:
                raise InvalidRequest(f"input '{found.name}' already exists in request")
            request.inputs[found.name] = self._tensor(found, parts, request)

    def _tensor(
        self, found: Input, parts: list[FormPart], request: InferRequest
    ) -> Tensor:
        """Return the tensor of all parts that have an input's name."""
        encoded = self._encoded.get(found.name)
        if encoded is not None and all(_is_encoded(part) for part in parts):
            return self._elements(encoded, parts)
        if not found.item_size:
            return self._elements(found, parts)
        if len(parts) == 1 and _is_array(parts[0]):
            return self._read_array(found, [parts[0].content])
        values = [_number(found, part, self._limits) for part in parts]
        return found.from_nested(
            values if len(values) > 1 else values[0], null_is_nan=request.null_is_nan
        )

    def _elements(self, found: Input, parts: list[FormPart]) -> Tensor:
        """Return the tensor of a BYTES input: each part is an element."""
        values: list[Any] = []
        for part in parts:
            if part.media_type == _JSON and not part.is_file:
                value = _json_of(part, self._limits)
                values += value if type(value) is list else [value]
            else:
                values.append(part.content)
        shape = completed((len(values),), found.shape)
        return found.from_values(values, found.accept_parsed(shape))

    def __repr__(self) -> str:
        return f"<FormReader {self._spec.name!r}>"


def _only(parts: list[FormPart]) -> FormPart:
    if len(parts) > 1:
        msg = f"the form has {len(parts)} parts '{parts[0].name}'; expected one"
        raise InvalidRequest(msg)
    return parts[0]


def _json_of(part: FormPart, limits: Limits) -> Any:
    text = part.content
    if len(text) > limits.max_json_bytes:
        msg = f"part '{part.name:.80}' of {len(text)} bytes exceeds the maximum of "
        raise BodyTooLarge(f"{msg}{limits.max_json_bytes} bytes for JSON")
    try:
        return parse_json(text, limits)
    except MalformedBody as error:
        msg = f"part '{part.name:.80}' is not a JSON value: {error}"
        raise MalformedBody(msg) from None


def _id(spec: ModelSpec, request: InferRequest, part: FormPart, limits: Limits) -> None:
    try:
        request.id = part.content.decode() or None
    except UnicodeDecodeError:
        raise InvalidRequest("part 'id' is not UTF-8") from None


def _outputs(
    spec: ModelSpec, request: InferRequest, part: FormPart, limits: Limits
) -> None:
    """Read the outputs from JSON: a list as in a document, or a list of names."""
    given = _json_of(part, limits)
    if type(given) is list:
        given = [{"name": one} if type(one) is str else one for one in given]
    read_outputs(request, given, spec, limits)
    if request.extents is not None:
        raise InvalidRequest("a form cannot request outputs in shared memory")


def _parameters(
    spec: ModelSpec, request: InferRequest, part: FormPart, limits: Limits
) -> None:
    read_parameters(request, _json_of(part, limits), limits)


_OWN: Final = {"parameters": _parameters, "id": _id, "outputs": _outputs}


def _is_array(part: FormPart) -> bool:
    return bool(part.pieces) and part.content[: len(NPY_MAGIC)] == NPY_MAGIC


def _is_encoded(part: FormPart) -> bool:
    """Return whether a part is a file to decode rather than a value."""
    is_value = part.media_type in (*_TEXT, _JSON) and not part.is_file
    return not (is_value or _is_array(part))


def _number(found: Input, part: FormPart, limits: Limits) -> Any:
    """Return the value of a part for a numeric input. Raises InvalidTensor."""
    takes = f"input '{found.name}' takes {notation(found.datatype, found.shape)}"
    if part.is_file and part.media_type not in (*_TEXT, _JSON):
        shown = part.media_type.decode("ascii", "backslashreplace")
        msg = (
            f"{takes}, and its part is a file of type '{shown:.80}'; send JSON or an "
            ".npy array, or add a section [image] to its config.toml to send pictures"
        )
        raise InvalidTensor(msg)
    text = part.content.strip()
    if not text and found.spec.type.kind == "f":
        return None  # an empty field means a missing value
    try:
        return parse_json(text, limits)
    except MalformedBody:
        shown = text[:40].decode("ascii", "backslashreplace")
        size = counted(len(text), "byte")
        msg = f"{takes}, and its part of {size} is not a JSON value: it begins with "
        raise InvalidTensor(f"{msg}'{shown}'") from None
