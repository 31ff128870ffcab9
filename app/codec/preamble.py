"""Facts that a body states about its request before the model is known."""

from __future__ import annotations

from app.codec.chunks import Chunks, join
from app.codec.json_text import check_json_size, parse_json
from app.codec.media import encoding_of
from app.codec.messages import Body, Encoding, InferRequest, Reply, new_request
from app.codec.oip_binary import parse_header_length
from app.codec.oip_msgpack import parse_msgpack
from app.codec.request_options import read_parameters
from app.errors import RequestError
from app.limits import Limits


def read_preamble(
    content_type: bytes | None, header_length: bytes | None, body: Body, limits: Limits
) -> InferRequest:
    """Return a request without tensors, with the parameters of the body.

    An unreadable body has none: its error is reported when its model is known. This
    takes as long as decoding the body, so call it in a thread.
    """
    request = new_request(Reply(Encoding.JSON))
    try:
        document = _document(content_type, header_length, body, limits)
        if type(document) is dict and document.get("parameters") is not None:
            read_parameters(request, document["parameters"], limits)
    except RequestError:
        return new_request(Reply(Encoding.JSON))
    return request


def _document(
    content_type: bytes | None, header_length: bytes | None, body: Body, limits: Limits
) -> object:
    if header_length is not None:
        total = sum(map(len, body))
        length = parse_header_length(header_length, total)
        check_json_size(length, limits)
        header = Chunks(body, total).read_bytes(length)
        return parse_json(header, limits) if length else None
    text = join(body)
    encoding = encoding_of(content_type, [text])
    if encoding is Encoding.JSON:
        check_json_size(len(text), limits)
        return parse_json(text, limits)
    return parse_msgpack(text, limits) if encoding is Encoding.MSGPACK else None
