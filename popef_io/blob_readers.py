"""Readers for each kind of blob with contents.

All readers are views. Nothing is read from the file until its bytes are used. A view
stays valid after its `Reader` is closed, as long as it is referenced.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from popef_io.blob import Blob
from popef_io.datatypes import DataType
from popef_io.errors import CorruptError, InvalidValueError, LimitError
from popef_io.layout import MAX_EXECUTABLE_SIZE
from popef_io.metadata import (
    ExecutableInfo,
    FeedDataInfo,
    Metadata,
    OpaqueInfo,
    TensorDataInfo,
)
from popef_io.strings import decode_strings
from popef_io.validation import has_only_booleans

_INFLATE_STEP = 1 << 20  # bytes decompressed at once

_Info = TypeVar("_Info", bound=TensorDataInfo | FeedDataInfo | OpaqueInfo)


class BlobContent:
    """The base of every reader of a blob that has contents."""

    __slots__ = ("blob",)

    def __init__(self, blob: Blob) -> None:
        self.blob = blob

    @property
    def size(self) -> int:
        """Return the number of bytes of the contents."""
        return self.blob.header.content_size

    def raw(self) -> memoryview:
        """Return the contents in place, read-only.

        Raises CorruptError if the contents do not match their checksum.
        """
        return self.blob.payload()


class DescribedContent(BlobContent, Generic[_Info]):
    """The base of contents whose description has a name."""

    __slots__ = ("info",)

    def __init__(self, blob: Blob, info: _Info) -> None:
        super().__init__(blob)
        self.info = info

    @property
    def name(self) -> str:
        return self.info.name


class ExecutableReader(BlobContent):
    """An executable blob. The container does not interpret its content."""

    __slots__ = ("_max_size", "name")

    def __init__(
        self, blob: Blob, info: ExecutableInfo, max_size: int = MAX_EXECUTABLE_SIZE
    ) -> None:
        super().__init__(blob)
        self.name = info.name
        self._max_size = max_size

    @property
    def is_compressed(self) -> bool:
        return self.blob.header.is_compressed

    def raw(self) -> memoryview:
        """Return the executable's bytes. Each call decompresses them if they are
        compressed.

        Raises LimitError if the decompressed size exceeds the reader's limit, and
        CorruptError if that size differs from the header.
        """
        if not self.is_compressed:
            return self.blob.payload()
        if self.size > self._max_size:
            raise LimitError(
                "decompressed size of the executable",
                self.size,
                self._max_size,
                where=self.blob.where,
            )
        return memoryview(self._inflate())

    def _inflate(self) -> bytes:
        inflater = zlib.decompressobj()
        parts = []
        size = 0
        data: memoryview | bytes = self.blob.payload()
        try:
            # Read one byte more than announced, which shows whether there are too many.
            while not inflater.eof and size <= self.size:
                room = min(_INFLATE_STEP, self.size - size + 1)
                part = inflater.decompress(data, room)
                data = inflater.unconsumed_tail
                size += len(part)
                parts.append(part)
                if not part and not data:
                    break
        except zlib.error as error:
            raise CorruptError(
                f"cannot decompress the payload: {error}", where=self.blob.where
            ) from error
        if size != self.size or not inflater.eof or inflater.unused_data:
            raise CorruptError(
                "the decompressed payload does not have the "
                f"{self.size} bytes that the header states",
                where=self.blob.where,
            )
        return b"".join(parts)

    def __repr__(self) -> str:
        compressed = " compressed" if self.is_compressed else ""
        return f"<ExecutableReader {self.name!r} {self.size} bytes{compressed}>"


class MetadataReader:
    """A metadata blob. All its content is in the descriptor."""

    __slots__ = ("blob", "metadata")

    def __init__(self, blob: Blob, metadata: Metadata) -> None:
        self.blob = blob
        self.metadata = metadata

    def __repr__(self) -> str:
        return f"<MetadataReader {self.metadata.executable!r}>"


class TensorReader(DescribedContent[TensorDataInfo]):
    """A tensor data blob: row-major, little-endian."""

    __slots__ = ()

    def data(self) -> np.ndarray[Any, Any]:
        """Return the tensor as a read-only array in place. STRING gives a new array of
        bytes.
        """
        info = self.info.tensor_info
        return _array(self.blob, info.shape or (), info.data_type)

    def __repr__(self) -> str:
        return f"<TensorReader {self.name!r} {self.info.tensor_info}>"


class FeedReader(DescribedContent[FeedDataInfo]):
    """A feed data blob: equal tensors, one after another."""

    __slots__ = ()

    def data(self) -> np.ndarray[Any, Any]:
        """Return all tensors as one array of shape (num_tensors, ...)."""
        info = self.info.tensor_info
        shape = (self.info.num_tensors, *(info.shape or ()))
        return _array(self.blob, shape, info.data_type)

    def __len__(self) -> int:
        return self.info.num_tensors

    def __iter__(self) -> Iterator[np.ndarray[Any, Any]]:
        """Yield the tensors, in order."""
        data = self.data()
        return (data[index, ...] for index in range(len(data)))

    def __repr__(self) -> str:
        return f"<FeedReader {self.name!r} {len(self)} x {self.info.tensor_info}>"


class OpaqueReader(DescribedContent[OpaqueInfo]):
    """An opaque blob: bytes whose meaning is the user's."""

    __slots__ = ()

    @property
    def executable(self) -> str:
        """Return the name of the executable that the blob belongs to; empty for all."""
        return self.info.executable

    def __repr__(self) -> str:
        return f"<OpaqueReader {self.name!r} {self.size} bytes>"


class UnknownBlob(BlobContent):
    """A blob of a type that this version does not know. `Writer.copy` keeps it.

    Its contents are the bytes as stored.
    """

    __slots__ = ()

    @property
    def type_number(self) -> int:
        return self.blob.header.type_number

    def descriptor(self) -> memoryview:
        return self.blob.descriptor()

    def __repr__(self) -> str:
        return f"<UnknownBlob type {self.type_number} at {self.blob.offset}>"


def _array(
    blob: Blob, shape: tuple[int, ...], data_type: DataType
) -> np.ndarray[Any, Any]:
    view = blob.payload()
    if data_type is DataType.STRING:
        try:
            return decode_strings(view, shape)
        except InvalidValueError as error:
            raise CorruptError(error.reason, where=blob.where) from error
    if data_type is DataType.BOOL and not has_only_booleans(view):
        raise CorruptError("a BOOL element must be 0 or 1", where=blob.where)
    # Do not use np.ndarray(buffer=view). Its arrays refer to the object behind the
    # view. That object may claim to be writable, and then callers could make the arrays
    # writable too.
    return np.frombuffer(view, data_type.numpy_dtype).reshape(shape)
