"""The bytes of a container: the only module that packs and unpacks numbers.

A file is a list of blobs and nothing else. Each blob has this layout:

    offset        bytes
    0             64    blob header, below
    64            D     descriptor: one msgpack map, fields depend on the type
    64 + D        0..63 zeros, up to the next multiple of 64
    P             S     payload, aligned to 64 bytes so that it can be mapped as it is
    P + S         0..63 zeros, up to the next multiple of 64

and the header, all numbers little-endian and unsigned,

    offset  bytes  field
    0       8      magic 89 50 47 45 46 0D 0A 1A ("\\x89PGEF\\r\\n\\x1a")
    8       2      version, 1
    10      2      type, see `BlobType`
    12      4      flags: bit 0 LAST, bit 1 COMPRESSED
    16      8      total size of the blob: header, descriptor, payload, zeros
    24      8      payload size S as stored
    32      8      content size: S, or what the payload decompresses to
    40      4      descriptor size D
    44      4      CRC-32 of the descriptor
    48      4      CRC-32 of the payload as stored
    52      8      reserved, zero
    60      4      CRC-32 of bytes 0 to 59

The magic is made like PNG's: its first byte is not text, and its line ends reveal a
transfer as text. LAST marks the last blob of a file, so a file that was cut between two
blobs is not taken for a complete one. docs/reference/popef-format.md is the
specification.

This module reads a header and checks every number in it. Checks that need several blobs
or a descriptor's content are elsewhere.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace

from popef_io.datatypes import BlobType
from popef_io.errors import (
    CorruptError,
    LimitError,
    Location,
    NotPopefError,
    TruncatedError,
)

MAGIC = b"\x89PGEF\r\n\x1a"
VERSION = 1
HEADER_SIZE = 64  # bytes
ALIGNMENT = 64  # bytes; a cache line, and enough for any tensor type or vector unit

FLAG_LAST = 1
FLAG_COMPRESSED = 2

MAX_DESCRIPTOR_SIZE = 8 << 20  # bytes; 65,536 anchors with names of 50 characters fit
MAX_BLOBS = 1 << 17  # in one file; the largest public models have some 10,000 tensors
MAX_EXECUTABLE_SIZE = 4 << 30  # bytes, decompressed; ONNX itself ends at 2 GiB a graph
MAX_DEFLATE_RATIO = 1032  # the most that zlib's format can reach; more is false

_HEADER = struct.Struct("<8sHHIQQQIII8s")
_CHECKSUM = struct.Struct("<I")
#: The length in front of each STRING element, of `STRING_HEAD_SIZE` bytes.
STRING_HEAD = struct.Struct("<I")
_RESERVED = bytes(8)


@dataclass(frozen=True, slots=True)
class BlobHeader:
    """The fixed part of every blob, with the fields of the table above in their order.

    It does not store `version`, `magic`, total size and the header's checksum, because
    they follow from the rest.
    """

    type_number: int
    flags: int
    payload_size: int
    content_size: int
    descriptor_size: int
    descriptor_crc: int
    payload_crc: int

    @property
    def type(self) -> BlobType | None:
        """Return the blob's type; None for a number that this version does not know."""
        return _TYPES.get(self.type_number)

    @property
    def type_name(self) -> str:
        known = self.type
        return known.name if known else f"type {self.type_number}"

    @property
    def is_last(self) -> bool:
        return bool(self.flags & FLAG_LAST)

    @property
    def is_compressed(self) -> bool:
        return bool(self.flags & FLAG_COMPRESSED)

    @property
    def payload_offset(self) -> int:
        """Return the number of bytes from the beginning of the blob to its payload."""
        return align(HEADER_SIZE + self.descriptor_size)

    @property
    def total_size(self) -> int:
        """Return the bytes of the whole blob, a multiple of 64."""
        return align(self.payload_offset + self.payload_size)

    def with_last(self, last: bool) -> BlobHeader:
        """Return this header with the LAST flag set or cleared."""
        flags = self.flags | FLAG_LAST if last else self.flags & ~FLAG_LAST
        return replace(self, flags=flags)

    def encode(self) -> bytes:
        """Return the 64 bytes of the header."""
        body = _HEADER.pack(
            MAGIC,
            VERSION,
            self.type_number,
            self.flags,
            self.total_size,
            self.payload_size,
            self.content_size,
            self.descriptor_size,
            self.descriptor_crc,
            self.payload_crc,
            _RESERVED,
        )
        return body + _CHECKSUM.pack(zlib.crc32(body))


_TYPES = {member.value: member for member in BlobType}


def align(offset: int) -> int:
    """Return `offset`, or the next multiple of 64 above it."""
    return -(-offset // ALIGNMENT) * ALIGNMENT


def read_header(
    view: memoryview,
    offset: int,
    index: int,
    source: str,
    raw: memoryview | None = None,
) -> BlobHeader:
    """Read and check the header of blob `index`, which begins at `offset` of `view`.

    `raw` is a copy of the header's bytes, for a `view` that must not be read.

    Afterwards the checksum is right, the version is known, no reserved bit is set, the
    sizes agree and are bounded, and the whole blob lies inside `view`. Raises the
    errors of `PopefError` that are about files.
    """
    where = Location(source, offset, index)
    if raw is None:
        raw = view[offset : offset + HEADER_SIZE]
    _check_magic(raw, where)
    if len(raw) < HEADER_SIZE:
        raise TruncatedError(
            "blob header", needed=HEADER_SIZE, available=len(raw), where=where
        )
    (checksum,) = _CHECKSUM.unpack_from(raw, _HEADER.size)
    if zlib.crc32(raw[: _HEADER.size]) != checksum:
        raise CorruptError(
            "the checksum of the blob header does not match", where=where
        )
    _, version, type_number, flags, total, *fields, rest = _HEADER.unpack_from(raw)
    if version != VERSION:
        raise NotPopefError(
            f"the file has format version {version}, expected {VERSION}; read it with "
            "a newer release, or compile the model again",
            where=where,
        )
    header = BlobHeader(type_number, flags, *fields)
    where = Location(source, offset, index, header.type_name)
    if rest != _RESERVED:
        raise CorruptError("the reserved bytes of the header must be zero", where=where)
    _check_flags(header, where)
    _check_sizes(header, total, len(view) - offset, where)
    return header


def _check_magic(raw: memoryview, where: Location) -> None:
    begin = bytes(raw[: len(MAGIC)])
    if begin and begin == MAGIC[: len(begin)]:
        return
    if where.offset:
        raise CorruptError(
            f"expected a blob, which begins with {MAGIC.hex(' ')}; "
            f"got {begin.hex(' ')}",
            where=where,
        )
    raise NotPopefError(_explain_foreign(begin), where=where)


def _explain_foreign(begin: bytes) -> str:
    if not begin:
        return "the file is empty"
    reason = f"not a PopGate container: it begins with {begin.hex(' ')}"
    for signature, kind in _SIGNATURES:
        if begin.startswith(signature):
            return f"{reason}, which looks like {kind}"
    return (
        f"{reason}. PopGate cannot read PopEF files of the Poplar SDK, because their "
        "layout was never published; compile the model from ONNX instead"
    )


_SIGNATURES = (
    (b"\x08", "an ONNX model: compile it first"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "a gzip file: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd file: unpack it first"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a numpy file"),
    (b"\x7fELF", "an ELF program"),
    (b"version ", "a Git LFS pointer: fetch the file itself"),
    (b"\x89PGEF\n", "a container that was transferred as text: copy it as binary"),
)


def _check_flags(header: BlobHeader, where: Location) -> None:
    known = header.type
    if known is None:
        return  # for later versions; kept as it is
    allowed = FLAG_LAST
    if known is BlobType.POPLAR_EXECUTABLE:
        allowed |= FLAG_COMPRESSED
    if header.flags & ~allowed:
        raise CorruptError(
            f"flags {header.flags:#x} are not allowed for this type of blob; allowed "
            f"are {allowed:#x}",
            where=where,
        )


def _check_sizes(
    header: BlobHeader, total_size: int, available: int, where: Location
) -> None:
    if header.descriptor_size > MAX_DESCRIPTOR_SIZE:
        raise LimitError(
            "descriptor size", header.descriptor_size, MAX_DESCRIPTOR_SIZE, where=where
        )
    if total_size != header.total_size:
        raise CorruptError(
            f"the header states a total size of {total_size} bytes, its parts have "
            f"{header.total_size}",
            where=where,
        )
    if total_size > available:
        raise TruncatedError(
            "blob", needed=total_size, available=available, where=where
        )
    if not header.is_compressed:
        if header.content_size != header.payload_size:
            raise CorruptError(
                f"the header states {header.content_size} bytes of content in an "
                f"uncompressed payload of {header.payload_size} bytes",
                where=where,
            )
    elif header.content_size > header.payload_size * MAX_DEFLATE_RATIO:
        raise CorruptError(
            f"a payload of {header.payload_size} bytes cannot decompress to the "
            f"{header.content_size} bytes that the header states",
            where=where,
        )


def find_nonzero(view: memoryview, begin: int, end: int) -> int | None:
    """Return the position of the first byte from `begin` to `end` that is not zero, or
    None.
    """
    padding = bytes(view[begin:end])
    rest = padding.lstrip(b"\0")
    return begin + len(padding) - len(rest) if rest else None
