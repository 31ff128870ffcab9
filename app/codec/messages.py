"""A request after decoding and a response before sending.

These are plain classes: one of each is made for every request, and a frozen dataclass
takes ten times as long to construct.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from app.errors import InvalidRequest, InvalidTensor
from app.regions import Extent, HeldRegions, Region
from app.sizes import counted
from app.spec import ModelSpec
from engine import Buffer, Tensor

#: The chunks of a body in order.
Body: TypeAlias = list[Buffer]
Header: TypeAlias = tuple[bytes, bytes]


class Encoding(enum.Enum):
    """Encodings of a body; the value is the media type that is sent."""

    JSON = b"application/json"
    MSGPACK = b"application/msgpack"
    NPY = b"application/x-npy"
    BINARY = b"application/octet-stream"
    """A JSON header and binary tensors behind it (the protocol's binary extension)."""
    FILE = b"*/*"
    """Any other content type, in requests only: the element of a BYTES input."""
    FORM = b"multipart/form-data"
    """A form with one part for each input, incoming only."""

    # Every request uses an encoding as a key. The hash of `Enum` is a call in Python.
    __hash__ = object.__hash__


class NanPolicy(enum.Enum):
    """Policies for writing NaN and infinities in JSON, which has no values for them."""

    LITERAL = "literal"
    NULL = "null"
    STRING = "string"
    REFUSE = "refuse"


def nan_policy(value: object) -> NanPolicy:
    """Return the policy by its name; raises InvalidRequest for any other value."""
    try:
        return NanPolicy(value)
    except ValueError:
        names = ", ".join(f"'{policy.value}'" for policy in NanPolicy)
        msg = f"'nan' must be one of {names}, got {value!r:.80}"
        raise InvalidRequest(msg) from None


_LITERAL: Final = NanPolicy.LITERAL


class Reply(NamedTuple):
    """Form of the answer, as far as the headers of a request decide it."""

    encoding: Encoding
    nan: NanPolicy | None = None
    explicit: bool = False
    """Whether Accept named the encoding instead of allowing any."""


class InferRequest:
    """A validated inference request.

    `outputs` are the requested names, None for all. `binary` says whether outputs are
    binary in a JSON response. `binary_by_name` overrides it for single outputs.
    `classes` maps outputs to the number of highest values to return instead of all.
    `extents` are the places in shared memory for outputs, and `held` keeps them while
    the request is in flight. `region_bytes` were read from the regions `read_from`.
    `timeout` is in seconds, None if the request states none. `priority` is a level: 1
    is the highest, 0 the model's default. `owner` is the name of the key that sent the
    request: empty without a key, None if the server has no keys. `rows` is the batch
    size of a batched model and 1 for every other. `null_is_nan` is False if the request
    refuses null in float inputs. A scheduler calls `count_memory` with the bytes that
    it makes of the request, if it is set; it raises `TransferMemoryFull`.
    """

    __slots__ = (
        "binary",
        "binary_by_name",
        "classes",
        "count_memory",
        "encoding",
        "extents",
        "held",
        "id",
        "inputs",
        "nan",
        "null_is_nan",
        "outputs",
        "owner",
        "parameters",
        "priority",
        "read_from",
        "region_bytes",
        "rows",
        "timeout",
    )

    def __init__(self, inputs: dict[str, Tensor], encoding: Encoding) -> None:
        self.inputs = inputs
        self.encoding = encoding
        self.id: str | None = None
        self.outputs: tuple[str, ...] | None = None
        self.binary = False
        self.binary_by_name: Mapping[str, bool] | None = None
        self.classes: Mapping[str, int] | None = None
        self.extents: Mapping[str, Extent] | None = None
        self.held: HeldRegions | None = None
        self.region_bytes = 0
        self.read_from: tuple[Region, ...] = ()
        self.parameters: Mapping[str, Any] | None = None
        self.nan = _LITERAL
        self.null_is_nan = True
        self.owner: str | None = None
        self.count_memory: Callable[[int], None] | None = None
        self.timeout: float | None = None
        self.priority = 0
        self.rows = 1

    def belong_to(self, owner: str | None, count_memory: Callable[[int], None]) -> None:
        """Set the key that sent the request, and what counts the memory it takes."""
        self.owner, self.count_memory = owner, count_memory

    def over(self, inputs: dict[str, Tensor]) -> InferRequest:
        """Return a copy of the request with other inputs."""
        twin = InferRequest(inputs, self.encoding)
        twin.id = self.id
        twin.outputs = self.outputs
        twin.binary = self.binary
        twin.binary_by_name = self.binary_by_name
        twin.classes = self.classes
        twin.extents = self.extents
        twin.parameters = self.parameters
        twin.owner = self.owner
        twin.nan = self.nan
        twin.null_is_nan = self.null_is_nan
        twin.timeout = self.timeout
        twin.priority = self.priority
        twin.rows = self.rows
        return twin

    def __repr__(self) -> str:
        wanted = "all" if self.outputs is None else list(self.outputs)
        return (
            f"<InferRequest id={self.id!r} inputs={list(self.inputs.values())} "
            f"outputs={wanted} reply={self.encoding.name}>"
        )


class Response:
    """A response in parts, which are sent one after the other.

    The sender joins the parts of a small response. `nbytes` is the sum of all parts.
    `lines` are the headers as they are sent, each with its line end.
    """

    __slots__ = ("lines", "nbytes", "parts", "status")

    def __init__(
        self,
        status: int,
        lines: bytes,
        parts: Sequence[Buffer],
        nbytes: int | None = None,
    ) -> None:
        self.status = status
        self.lines = lines
        self.parts = parts
        self.nbytes = sum(map(len, parts)) if nbytes is None else nbytes

    @property
    def headers(self) -> list[Header]:
        """Return the headers, one by one."""
        headers: list[Header] = []
        for line in self.lines.split(b"\r\n")[:-1]:
            name, _, value = line.partition(b": ")
            headers.append((name, value))
        return headers

    @property
    def body(self) -> bytes:
        """Return all parts in one: for small bodies and for tests."""
        return b"".join(self.parts)

    def __repr__(self) -> str:
        return f"<Response {self.status} {self.nbytes} bytes>"


class Refusal(Response):
    """An error response with its `code`."""

    __slots__ = ("code",)

    def __init__(self, status: int, lines: bytes, body: bytes, code: str) -> None:
        super().__init__(status, lines, [body])
        self.code = code


def lines_of(headers: Iterable[Header]) -> bytes:
    """Return headers as they are sent."""
    return b"".join([b"%b: %b\r\n" % header for header in headers])


def sized_lines(media_type: bytes, size: int) -> bytes:
    """Return the headers of a body of `size` bytes."""
    return b"content-type: %b\r\ncontent-length: %d\r\n" % (media_type, size)


def json_response(text: bytes) -> Response:
    """Return a response that is a JSON text."""
    return Response(200, sized_lines(Encoding.JSON.value, len(text)), [text])


def new_request(reply: Reply) -> InferRequest:
    """Return an empty request whose answer has the encoding `reply`."""
    encoding = reply.encoding
    if encoding is Encoding.BINARY:
        request = InferRequest({}, Encoding.JSON)
        request.binary = True
    else:
        request = InferRequest({}, encoding)
        if encoding is Encoding.MSGPACK:  # msgpack holds bytes, numbers only on request
            request.binary = True
    if reply.nan is not None:
        request.nan = reply.nan
    return request


def count_rows(request: InferRequest, spec: ModelSpec) -> None:
    """Count the rows of a request, on which the inputs of a batched model
    must agree.
    """
    rows = -1
    for name, tensor in request.inputs.items():
        got = tensor.shape[0] if tensor.shape else 1
        if rows not in (-1, got):
            first = next(iter(request.inputs))
            msg = (
                f"input '{name}' batch size does not match other inputs for "
                f"'{spec.name}': it has {counted(got, 'row')}, '{first}' has {rows}"
            )
            raise InvalidTensor(msg)
        rows = got
    request.rows = rows
