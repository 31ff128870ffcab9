"""Choose the encoding of a body and of its answer.

Content-Type cannot be trusted: the synchronous stock client sends none, the asyncio one
sends ``application/octet-stream`` for JSON, and curl calls everything a form. Types
that are often wrong are ignored, and the first bytes decide. No two encodings share
them. ``{`` or white space is JSON. ``\\x93NUMPY`` is an array (as msgpack it would be a
list). The first byte of a map is msgpack, because it is not valid in JSON.

Headers repeat from request to request, so decisions are remembered by the bytes of the
headers. Their number is limited.

Every other type is the type of a file. A PNG picture begins like a msgpack map, but the
first key of a request's map is a string or bytes.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.codec.bounded_cache import remember
from app.codec.chunks import beginning
from app.codec.messages import Body, Encoding, NanPolicy, Reply, nan_policy
from app.errors import MalformedBody, NotAcceptable
from app.sizes import decimal

NPY_MAGIC = b"\x93NUMPY"
_RECOGNISED_BY = 64  # bytes, enough for white space before a JSON object

_READ: dict[bytes, Encoding | None] = {
    b"application/json": Encoding.JSON,
    b"text/json": Encoding.JSON,
    b"application/msgpack": Encoding.MSGPACK,
    b"application/x-msgpack": Encoding.MSGPACK,
    b"application/vnd.msgpack": Encoding.MSGPACK,
    b"application/x-npy": Encoding.NPY,
    b"application/npy": Encoding.NPY,
    b"application/vnd.numpy.npy": Encoding.NPY,
    # Stock clients send this type for any body, so the first bytes decide.
    b"application/octet-stream": None,
    b"application/vnd.triton.inference-request": None,
    b"application/x-www-form-urlencoded": None,
    b"binary/octet-stream": None,
    b"text/plain": None,
    b"": None,
    b"multipart/form-data": Encoding.FORM,
}
#: Types for which the first bytes decide.
UNCERTAIN_TYPES = frozenset(name for name, found in _READ.items() if found is None)
_INCOMING = (None, Encoding.FORM)
_WRITTEN = {name: found for name, found in _READ.items() if found not in _INCOMING}
_WRITTEN[b"application/octet-stream"] = Encoding.BINARY

_READABLE = (
    "application/json, application/msgpack, application/x-npy, "
    "application/octet-stream (Open Inference Protocol binary)"
)

_content_types: dict[bytes, Encoding | None] = {}
_replies: dict[tuple[bytes, Encoding], Reply] = {}
#: Results of `way_of` by Content-Type and Accept, if these headers alone decide.
KNOWN_WAYS: dict[tuple[bytes | None, bytes | None], tuple[Encoding, Reply]] = {}


def way_of(
    content_type: bytes | None, accept: bytes | None, body: Body
) -> tuple[Encoding, Reply]:
    """Return `encoding_of` a body, and `reply_to` it."""
    encoding = encoding_of(content_type, body)
    way = encoding, reply_to(accept, encoding)
    if content_type and _content_types.get(content_type) is not None:
        remember(KNOWN_WAYS, (content_type, accept), way)
    return way


def encoding_of(content_type: bytes | None, body: Body) -> Encoding:
    """Return the encoding of a body without a binary header.

    The result is FILE for any other content type, and if neither the content type nor
    the first bytes decide. Raises MalformedBody for an empty body.
    """
    if content_type:
        try:
            known = _content_types[content_type]
        except KeyError:
            known = _remember_content_type(content_type)
        if known is not None:
            return known
    return _recognise(beginning(body, _RECOGNISED_BY))


def is_json_only(headers: Mapping[bytes, bytes]) -> bool:
    """Return whether a body is JSON from end to end, as far as its headers tell."""
    if b"inference-header-content-length" in headers or b"content-encoding" in headers:
        return False
    content_type = headers.get(b"content-type", b"")
    media_type = media_type_of(content_type)
    return _READ.get(media_type, Encoding.FILE) in (None, Encoding.JSON)


def media_type_of(content_type: bytes | None) -> bytes:
    """Return a content type without its parameters, in lower case."""
    return (content_type or b"").partition(b";")[0].strip().lower()


def quality_of(parameters: bytes) -> float:
    """Return the value of ``q=0.5``: 1 if it is missing, 0 if it is invalid."""
    for parameter in parameters.split(b";"):
        name, _, value = parameter.partition(b"=")
        if name.strip().lower() == b"q":
            quality = decimal(value)
            return quality if 0 <= quality <= 1 else 0.0
    return 1.0


def _remember_content_type(content_type: bytes) -> Encoding | None:
    encoding = _READ.get(media_type_of(content_type), Encoding.FILE)
    if encoding is Encoding.FORM:  # every form has its own boundary
        return encoding
    return remember(_content_types, content_type, encoding)


def _recognise(first: bytes) -> Encoding:
    head = first[:1]
    if head == b"{":
        return Encoding.JSON
    if first.startswith(NPY_MAGIC):
        return Encoding.NPY
    if head and (0x80 <= head[0] <= 0x8F or head in b"\xde\xdf"):
        key = first[1:2] if head[0] <= 0x8F else b""
        if not key or 0xA0 <= key[0] <= 0xBF or key in b"\xc4\xc5\xc6\xd9\xda\xdb":
            return Encoding.MSGPACK
    # A list is not a request either. The decoder of its form reports that.
    if first.lstrip(b" \t\r\n").startswith((b"{", b"[{")):
        return Encoding.JSON
    if not first:
        msg = f"the body is empty; expected an inference request in one of: {_READABLE}"
        raise MalformedBody(msg)
    return Encoding.FILE


def unrecognised(first: bytes, how_to_send: str) -> MalformedBody:
    """Return the error for a body that begins like none of the encodings."""
    return MalformedBody(
        # Triton's scripts look for the words before the colons.
        "failed to parse the request JSON buffer: Invalid value. at 0: the body is "
        "not an inference request: expected a JSON object, a msgpack map or an .npy "
        f"array, or one of the content types {_READABLE}; got bytes that begin with "
        f"{bytes(first[:16])!r}; {how_to_send}"
    )


def reply_to(accept: bytes | None, came: Encoding) -> Reply:
    """Return the reply to a request in the encoding `came`.

    Raises NotAcceptable if Accept allows no supported encoding.
    """
    if not accept or accept == b"*/*":
        return _AS_IT_CAME[came]
    key = (accept, came)
    found = _replies.get(key)
    if found is None:
        found = remember(_replies, key, _choose(accept, came))
    return found


_AS_IT_CAME = {encoding: Reply(encoding) for encoding in Encoding}
_AS_IT_CAME[Encoding.FILE] = _AS_IT_CAME[Encoding.FORM] = Reply(Encoding.JSON)


def _choose(accept: bytes, came: Encoding) -> Reply:
    best: tuple[float, bool, int] | None = None
    came = _AS_IT_CAME[came].encoding
    chosen = Reply(came)
    for position, item in enumerate(accept.split(b",")):
        media_type, *parameters = (part.strip().lower() for part in item.split(b";"))
        quality, nan = _parameters(parameters)
        named = _WRITTEN.get(media_type)
        if named is None and media_type not in (b"*/*", b"application/*"):
            continue
        rank = (quality, named is None or named is came, -position)
        if quality > 0 and (best is None or rank > best):
            best = rank
            chosen = Reply(named or came, nan, named is not None)
    if best is None:
        msg = (
            f"no type in Accept '{_shown(accept)}' is supported; expected one of: "
            f"{_READABLE}, or */*"
        )
        raise NotAcceptable(msg)
    return chosen


def _parameters(parameters: list[bytes]) -> tuple[float, NanPolicy | None]:
    quality, nan = 1.0, None
    for parameter in parameters:
        name, _, value = parameter.partition(b"=")
        if name.strip() == b"q":
            quality = decimal(value)  # of NaN nothing is chosen
        elif name.strip() == b"nan":
            nan = nan_policy(_shown(value.strip().strip(b'"')))
    return quality, nan


def _shown(value: bytes) -> str:
    return value[:200].decode("ascii", "backslashreplace")
