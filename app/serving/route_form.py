"""The form of a request to a model's own route: HTTP in, HTTP out.

The process of the model receives the head and the body unchanged, and writes the
answer.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgpack
import numpy as np

from app.codec.chunks import join
from app.codec.messages import Body, Encoding, Header, InferRequest, Response, lines_of
from app.codec.model import ModelCodec
from engine import PYTHON_ANSWER, PYTHON_ROUTE, ExecutionFailed, Tensor
from popef_io import DataType

#: Headers that a route does not receive. They describe the body on the connection, or
#: are a key for the server.
_OF_CONNECTION = frozenset(
    b"connection content-encoding content-length expect keep-alive te trailer"
    b" transfer-encoding upgrade".split()
)
_KEYS = frozenset((b"authorization", b"x-api-key"))
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[^\x00-\x08\x0a-\x1f\x7f]*")
#: Statuses without a body.
_BARE = frozenset((204, 304))


class RouteForm:
    """One request to a route: `scope` is that of ASGI, without the server's own path.

    With `has_keys` the route does not see the key of the client.
    """

    not_one = "a route gives exactly 1 answer"

    def __init__(
        self, scope: Mapping[str, Any], path: str, client: str, *, has_keys: bool
    ) -> None:
        hidden = _OF_CONNECTION | _KEYS if has_keys else _OF_CONNECTION
        self._head = {
            "method": scope["method"],
            "scheme": scope.get("scheme", "http"),
            "path": path,
            "query": scope.get("query_string", b""),
            "headers": [h for h in scope["headers"] if h[0] not in hidden],
            "client": client,
        }

    def decode(self, codec: ModelCodec, body: Body) -> InferRequest:
        """Return the request that has the input of routes alone."""
        text = bytes(join(body))
        if text:
            self._head["headers"].append((b"content-length", b"%d" % len(text)))
        pair = np.empty((1, 2), dtype=object)
        pair[0, 0], pair[0, 1] = msgpack.packb(self._head), text
        tensor = Tensor.from_numpy(pair, DataType.STRING)
        return InferRequest({PYTHON_ROUTE: tensor}, Encoding.FILE)

    def encode(
        self, codec: ModelCodec, request: InferRequest, outputs: Mapping[str, Tensor]
    ) -> Response:
        """Return the answer of the route.

        Raises `engine.ExecutionFailed` if the route failed or its answer is not HTTP's.
        """
        ((raw, body),) = outputs[PYTHON_ANSWER].numpy().tolist()
        head = msgpack.unpackb(raw)
        if "error" in head:
            raise ExecutionFailed(head["error"])
        status, headers = int(head["status"]), _checked(head["headers"])
        if not 200 <= status <= 599:
            msg = f"the route answered with the status {status}, expected 200 to 599"
            raise ExecutionFailed(msg)
        if status in _BARE:
            body = b""
        else:
            headers.append((b"content-length", b"%d" % len(body)))
        return Response(status, lines_of(headers), [body])


def _checked(headers: Sequence[tuple[bytes, bytes]]) -> list[Header]:
    """Return the headers that may be sent; the server sets the length of the body."""
    found = []
    for name, value in headers:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise ExecutionFailed(f"the route wrote the header {name!r}: {value!r}")
        if name.lower() != b"content-length":
            found.append((name.lower(), value))
    return found
