"""The numbered list of hostile files: what each lies about and how it is refused.

docs/reference/popef-format.md has their number and the errors of each kind of damage.
A file is refused when it is parsed, or, with `on_access`, when its payloads are used.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from popef_io import (
    CorruptError,
    DuplicateBlobError,
    LimitError,
    NotPopefError,
    PopefError,
    TruncatedError,
)
from tests.popef_io.containers import (
    COMPRESSED,
    EXECUTABLE,
    FEED,
    METADATA,
    OPAQUE,
    TENSOR,
    UNKNOWN,
    anchor_fields,
    metadata_fields,
    pack,
    raw_blob,
    raw_file,
    tensor_fields,
)

U32_MAX = (1 << 32) - 1
U64_MAX = (1 << 64) - 1


@dataclass(frozen=True)
class Hostile:
    """One hostile file."""

    number: int
    title: str
    data: Callable[[], bytes]
    error: type[PopefError]
    says: str
    """A part of the message."""
    blob: int = 0
    """Index of the blob that the error names."""
    on_access: bool = False

    def __str__(self) -> str:
        return f"{self.number} {self.title}"


HOSTILE: list[Hostile] = []


def hostile(
    title: str,
    error: type[PopefError],
    says: str,
    *,
    blob: int = 0,
    on_access: bool = False,
) -> Callable[[Callable[[], bytes]], Callable[[], bytes]]:
    """Add the decorated function's file to the list."""

    def add(data: Callable[[], bytes]) -> Callable[[], bytes]:
        number = len(HOSTILE) + 1
        HOSTILE.append(Hostile(number, title, data, error, says, blob, on_access))
        return data

    return add


def bad_header(title: str, error: type[PopefError], says: str, **header: Any) -> None:
    """A tensor whose header has these fields, with a checksum that holds."""
    hostile(title, error, says)(lambda: raw_file(tensor(**header)))


def bad_descriptor(
    title: str, kind: int, descriptor: bytes, error: type[PopefError], says: str
) -> None:
    """A blob with this descriptor, with checksums that hold."""
    hostile(title, error, says)(lambda: raw_file(raw_blob(kind, descriptor, bytes(8))))


def bad_tensor(title: str, error: type[PopefError], says: str, **fields: Any) -> None:
    descriptor = pack(tensor_fields(**fields))
    bad_descriptor(title, TENSOR, descriptor, error, says)


def bad_metadata(title: str, error: type[PopefError], says: str, **fields: Any) -> None:
    descriptor = pack(metadata_fields(**fields))
    hostile(title, error, says)(lambda: raw_file(raw_blob(METADATA, descriptor)))


def bad_payload(
    title: str, says: str, shape: list[int], data_type: int, payload: bytes
) -> None:
    """A tensor whose payload can only be judged when it is used."""
    fields = tensor_fields(tensor_info={"shape": shape, "data_type": data_type})

    @hostile(title, CorruptError, says, on_access=True)
    def _() -> bytes:
        return raw_file(raw_blob(TENSOR, pack(fields), payload))


def tensor(name: str = "t", **header: Any) -> bytes:
    return raw_blob(TENSOR, pack(tensor_fields(name=name)), bytes(8), **header)


def executable(payload: bytes, content_size: int) -> bytes:
    return raw_blob(
        EXECUTABLE,
        pack({"name": "net"}),
        payload,
        flags=COMPRESSED,
        content_size=content_size,
    )


def info(shape: Any, data_type: Any = 3) -> dict[str, Any]:
    return {"shape": shape, "data_type": data_type}


# --- what is no container ---------------------------------------------------------


@hostile("an empty file", NotPopefError, "empty")
def _() -> bytes:
    return b""


@hostile("a file of text", NotPopefError, "Poplar SDK")
def _() -> bytes:
    return b"This is not cache"


@hostile("an ONNX model", NotPopefError, "compile it first")
def _() -> bytes:
    return b"\x08\x0a\x12\x07pytorch" + bytes(100)


@hostile("zeros", NotPopefError, "not a PopGate container")
def _() -> bytes:
    return bytes(256)


@hostile("a container transferred as text", NotPopefError, "as text")
def _() -> bytes:
    return raw_file(tensor()).replace(b"\r\n", b"\n")


@hostile("the magic and nothing else", TruncatedError, "blob header")
def _() -> bytes:
    return raw_file(tensor())[:8]


bad_header("a version from the future", NotPopefError, "version 2", version=2)
bad_header("version 0", NotPopefError, "version 0", version=0)

# --- headers that lie -------------------------------------------------------------

bad_header("a wrong header checksum", CorruptError, "checksum", header_crc=1)
bad_header(
    "reserved bytes in use", CorruptError, "reserved", reserved=b"\0\0\0\1\0\0\0\0"
)
bad_header("an undefined flag", CorruptError, "flags", flags=4)
bad_header("a compressed tensor", CorruptError, "flags", flags=COMPRESSED)
bad_header(
    "a descriptor of 4 GiB", LimitError, "descriptor size", descriptor_size=U32_MAX
)
bad_header("a wrong descriptor checksum", CorruptError, "checksum", descriptor_crc=1)
bad_header("a blob of 0 bytes", CorruptError, "total size", total_size=0)
bad_header("a blob of 64 bytes more", CorruptError, "total size", total_size=256)
bad_header("a blob of 2^64 - 1 bytes", CorruptError, "total size", total_size=U64_MAX)
bad_header(
    "a payload of 2^64 - 1 bytes",
    CorruptError,
    "total size",
    payload_size=U64_MAX,
    content_size=U64_MAX,
)
bad_header(
    "sizes that agree and go beyond the file",
    TruncatedError,
    "the file is truncated",
    payload_size=1 << 62,
    content_size=1 << 62,
    total_size=(1 << 62) + 128,
)
bad_header("content that is not the payload", CorruptError, "content", content_size=7)


@hostile("padding after the descriptor in use", CorruptError, "padding")
def _() -> bytes:
    blob = bytearray(raw_file(tensor()))
    blob[127] = 1
    return bytes(blob)


@hostile("padding after the payload in use", CorruptError, "padding")
def _() -> bytes:
    return raw_file(tensor())[:-1] + b"\1"


@hostile("bytes after the last blob", CorruptError, "marked as the last", blob=1)
def _() -> bytes:
    return raw_file(tensor()) + b"more"


@hostile("two files joined", CorruptError, "marked as the last", blob=1)
def _() -> bytes:
    return raw_file(tensor("a")) + raw_file(tensor("b"))


@hostile(
    "a file cut between two blobs", TruncatedError, "not marked as the last", blob=1
)
def _() -> bytes:
    return raw_file(tensor("a"), tensor("b"))[: len(tensor())]


@hostile("garbage where a blob should begin", CorruptError, "expected a blob", blob=1)
def _() -> bytes:
    whole = raw_file(tensor("a"), tensor("b"))
    return whole[: len(tensor())] + b"X" * len(tensor())


@hostile("more blobs than any model needs", LimitError, "number of blobs", blob=1 << 17)
def _() -> bytes:
    smallest = raw_blob(UNKNOWN, b"")
    return smallest * ((1 << 17) + 1)


# --- descriptors that lie ---------------------------------------------------------

bad_descriptor("no descriptor", TENSOR, b"", CorruptError, "msgpack")
bad_descriptor("a descriptor of garbage", TENSOR, b"\xc1" * 9, CorruptError, "msgpack")
bad_descriptor(
    "a descriptor cut short",
    TENSOR,
    pack(tensor_fields())[:-1],
    CorruptError,
    "No more data",
)
bad_descriptor(
    "a descriptor with something behind it",
    TENSOR,
    pack(tensor_fields()) + b"\0",
    CorruptError,
    "1 unexpected bytes follow its map",
)
bad_descriptor("a list for a map", TENSOR, pack(["t"]), CorruptError, "msgpack")
bad_descriptor("a field too few", TENSOR, pack({"name": "t"}), CorruptError, "got 1")
bad_descriptor(
    "a field too many",
    TENSOR,
    pack(tensor_fields(more=1)),
    CorruptError,
    "expected 3 fields, got 4",
)
bad_descriptor(
    "a field unheard of",
    TENSOR,
    pack({"name": "t", "tensor_info": info([2]), "exe": ""}),
    CorruptError,
    "expected field 'executable', got 'exe'",
)
bad_descriptor(
    "a field twice",
    TENSOR,
    b"\x83" + (pack("name") + pack("t")) * 3,
    CorruptError,
    "expected field 'tensor_info'",
)
bad_descriptor(
    "fields in another order",
    TENSOR,
    pack(dict(reversed(tensor_fields().items()))),
    CorruptError,
    "expected field 'name', got 'executable'",
)
bad_descriptor(
    "a field twice in an inner map",
    TENSOR,
    b"\x83\xa4name\xa1t\xabtensor_info\x82" + (pack("shape") + pack([2])) * 2,
    CorruptError,
    "expected field 'data_type'",
)
bad_tensor("a number for a text", CorruptError, "expected a string, got int", name=7)
bad_tensor("bytes for a text", CorruptError, "msgpack", name=b"t")
bad_tensor("true for a number", CorruptError, "got bool", tensor_info=info([True]))
bad_tensor(
    "a real number for a number", CorruptError, "got float", tensor_info=info([2.0])
)
bad_metadata("a number for true", CorruptError, "got int", is_pod=1)
bad_tensor("a map for a list", CorruptError, "got map", tensor_info=info({"a": 1}))
bad_tensor("a list for a record", CorruptError, "expected a map", tensor_info=[[2], 3])
bad_descriptor(
    "text that is not UTF-8",
    TENSOR,
    pack(tensor_fields()).replace(b"\xa1t", b"\xa1\xff"),
    CorruptError,
    "utf-8",
)
bad_descriptor(
    "an extension type of msgpack",
    OPAQUE,
    b"\x82\xa4name\xd4\x01\x00\xaaexecutable\xa0",
    CorruptError,
    "max_ext_len",
)
bad_descriptor(
    "lists in lists, a million deep",
    OPAQUE,
    b"\x82\xa4name" + b"\x91" * 1_000_000,
    CorruptError,
    "msgpack",
)
bad_descriptor(
    "a list that announces 4 billion items",
    OPAQUE,
    b"\x82\xa4name\xdd\xff\xff\xff\xff",
    CorruptError,
    "max_array_len",
)
bad_descriptor(
    "lists in lists that announce 1,024 items each",
    OPAQUE,
    b"\x82\xa4name" + b"\xdc\x04\x00" * 1_000_000,
    CorruptError,
    "msgpack",
)
bad_descriptor(
    "maps in maps that announce 14 fields each",
    OPAQUE,
    b"\x82\xa4name" + b"\x8e\xc0" * 1_000_000,
    CorruptError,
    "msgpack",
)
bad_descriptor(
    "a string that announces 4 GiB",
    OPAQUE,
    b"\x82\xa4name\xdb\xff\xff\xff\xff",
    CorruptError,
    "No more data",
)
bad_descriptor(
    "anchors that announce to be 4 billion",
    METADATA,
    b"\x8e\xaaexecutable\xa3net\xa7anchors\xdd\xff\xff\xff\xff",
    LimitError,
    "anchors (length) is 4294967295",
)
bad_descriptor(
    "anchors that announce to be 65,536 and are not there",
    METADATA,
    b"\x8e\xaaexecutable\xa3net\xa7anchors\xdd\x00\x01\x00\x00",
    CorruptError,
    "No more data",
)

# --- values out of bounds ---------------------------------------------------------

bad_tensor("a tensor without a name", CorruptError, "must not be empty", name="")
bad_tensor("a name of 16,385 bytes", LimitError, "16385", name="é" * 8192 + "x")
bad_tensor(
    "an unknown data type",
    CorruptError,
    "99 is not a DataType",
    tensor_info=info([2], 99),
)
bad_tensor("a dimension of -2", CorruptError, "at least -1", tensor_info=info([-2]))
bad_tensor(
    "a dimension of 2^63", LimitError, "shape (value)", tensor_info=info([1 << 63])
)
bad_tensor(
    "dimensions whose product wraps around",
    LimitError,
    "size of the tensor",
    tensor_info=info([1 << 32, 1 << 32]),
)
bad_tensor(
    "huge dimensions behind a zero",
    LimitError,
    "size of the tensor",
    tensor_info=info([0, 1 << 62, 1 << 62]),
)
bad_tensor("33 dimensions", LimitError, "rank", tensor_info=info([1] * 33))
bad_tensor("data of unknown size", CorruptError, "known shape", tensor_info=info([-1]))
bad_tensor("data of unknown rank", CorruptError, "known shape", tensor_info=info(None))
bad_tensor(
    "more data than described", CorruptError, "expected 4", tensor_info=info([1])
)
bad_tensor(
    "less data than described",
    CorruptError,
    "expected 4398046511104",
    tensor_info=info([1 << 40]),
)
bad_tensor(
    "a trillion strings in 8 bytes",
    CorruptError,
    "cannot hold",
    tensor_info=info([1 << 40], 65),
)
bad_descriptor(
    "a feed of 2^62 tensors",
    FEED,
    pack(
        {
            "name": "f",
            "tensor_info": info([2]),
            "num_tensors": 1 << 62,
            "executable": "",
        }
    ),
    LimitError,
    "size of the tensor",
)
bad_descriptor(
    "a feed of -1 tensors",
    FEED,
    pack({"name": "f", "tensor_info": info([2]), "num_tensors": -1, "executable": ""}),
    CorruptError,
    "at least 0",
)
bad_descriptor(
    "a feed whose array would have 33 dimensions",
    FEED,
    pack(
        {"name": "f", "tensor_info": info([1] * 32), "num_tensors": 2, "executable": ""}
    ),
    LimitError,
    "rank",
)
bad_metadata("no replicas", CorruptError, "at least 1", replication_factor=0)
bad_metadata("2^32 devices", LimitError, "num_ipus", num_ipus=1 << 32)
bad_metadata("no iterations", CorruptError, "at least 1", device_iterations=0)
bad_metadata(
    "a program number of 2^32",
    LimitError,
    "main[0]",
    program_flow={"load": [], "main": [1 << 32], "save": []},
)
bad_metadata(
    "a program named twice",
    CorruptError,
    "expected ascending keys",
    programs_map=[[0, "a"], [0, "b"]],
)
bad_metadata(
    "two anchors on one handle",
    CorruptError,
    "handle 'h2d_x' is used twice",
    anchors=[anchor_fields(), anchor_fields(name="y")],
)
bad_metadata(
    "two inputs of one name",
    CorruptError,
    "two INPUT anchors have the name 'x'",
    anchors=[anchor_fields(), anchor_fields(handle="other")],
)
bad_metadata(
    "an input without a handle",
    CorruptError,
    "must have a handle",
    anchors=[anchor_fields(handle="")],
)
bad_metadata(
    "an anchor of unknown direction",
    CorruptError,
    "anchors[0].type: 3 is not a TensorType",
    anchors=[anchor_fields(type=3)],
)
bad_metadata(
    "an option set twice",
    CorruptError,
    "'a' is set twice",
    engine_options=[{"name": "a", "value": "1"}, {"name": "a", "value": "2"}],
)


@hostile("metadata with a payload", CorruptError, "must have no payload, got 1 bytes")
def _() -> bytes:
    return raw_file(raw_blob(METADATA, pack(metadata_fields()), b"x"))


# --- blobs that contradict each other ---------------------------------------------


@hostile("two executables of one name", DuplicateBlobError, "exists already", blob=1)
def _() -> bytes:
    blob = raw_blob(EXECUTABLE, pack({"name": "net"}), b"x")
    return raw_file(blob, blob)


@hostile(
    "two metadata for one executable", DuplicateBlobError, "exists already", blob=1
)
def _() -> bytes:
    blob = raw_blob(METADATA, pack(metadata_fields()))
    return raw_file(blob, blob)


@hostile("two tensors of one name", DuplicateBlobError, "exists already", blob=2)
def _() -> bytes:
    return raw_file(tensor("a"), tensor("b"), tensor("a"))


# --- payloads that lie ------------------------------------------------------------


@hostile("a damaged payload", CorruptError, "checksum of the payload", on_access=True)
def _() -> bytes:
    return raw_file(tensor(payload_crc=1))


@hostile("a compression of 1 to a million", CorruptError, "cannot decompress")
def _() -> bytes:
    return raw_file(executable(zlib.compress(b""), 8_000_000))


@hostile(
    "a small executable that decompresses to 64 MiB",
    CorruptError,
    "10 bytes that the header states",
    on_access=True,
)
def _() -> bytes:
    return raw_file(executable(zlib.compress(bytes(64 << 20)), 10))


@hostile(
    "an executable that decompresses to less",
    CorruptError,
    "that the header states",
    on_access=True,
)
def _() -> bytes:
    return raw_file(executable(zlib.compress(b"abc"), 4))


@hostile(
    "garbage for compressed data", CorruptError, "cannot decompress", on_access=True
)
def _() -> bytes:
    return raw_file(executable(b"garbage!", 8))


@hostile(
    "compressed data cut short", CorruptError, "that the header states", on_access=True
)
def _() -> bytes:
    return raw_file(executable(zlib.compress(b"abc" * 9)[:-4], 27))


@hostile(
    "something behind the compressed data",
    CorruptError,
    "that the header states",
    on_access=True,
)
def _() -> bytes:
    return raw_file(executable(zlib.compress(b"abc") + b"more", 3))


bad_payload(
    "a string that ends after the data", "past the end", [1], 65, b"\5\0\0\0abcd"
)
bad_payload("a string of 4 GiB", "past the end", [1], 65, b"\xff\xff\xff\xffabcd")
bad_payload("bytes after the last string", "1 unexpected bytes", [1], 65, b"\0\0\0\0x")
bad_payload("a boolean of 2", "must be 0 or 1", [3], 0, b"\0\1\2")
