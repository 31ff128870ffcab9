"""Write the payload of one blob."""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from popef_io.datatypes import BlobType, DataType
from popef_io.descriptor import Info, encode, type_of
from popef_io.draft import Draft, WriterState
from popef_io.errors import InvalidValueError, LimitError, WriterStateError
from popef_io.layout import (
    ALIGNMENT,
    FLAG_COMPRESSED,
    HEADER_SIZE,
    MAX_EXECUTABLE_SIZE,
    BlobHeader,
    align,
)
from popef_io.metadata import FeedDataInfo, TensorDataInfo
from popef_io.replacement import Replacement
from popef_io.strings import decode_strings
from popef_io.validation import has_only_booleans

_log = logging.getLogger(__name__)

_DEFLATE_STEP = 16 << 20  # bytes compressed at once, so that the output stays small

Buffer = bytes | bytearray | memoryview | np.ndarray[Any, Any]


class BlobWriter(Draft):
    """The live blob of a `Writer`, which makes it. It takes bytes until it is closed.

    Leaving its `with` block closes it. An exception inside the block discards the blob.
    Tensor and feed data must have exactly the size of their description. STRING data
    are held in memory until `close`, which checks them.
    """

    def __init__(
        self,
        output: Replacement,
        offset: int,
        info: Info,
        finished: Callable[..., None],
        *,
        compress: bool = False,
    ) -> None:
        super().__init__()
        self.info = info
        self.offset = offset
        self._output = output
        self._finished = finished
        self._descriptor = encode(info)
        self._payload = offset + align(HEADER_SIZE + len(self._descriptor))
        self._compressor = zlib.compressobj() if compress else None
        self._expected = expected_size(info)
        self._content_size = 0
        self._stored_size = 0
        self._crc = 0
        self._strings: list[bytes] | None = [] if _is(info, DataType.STRING) else None
        self.header: BlobHeader | None = None
        """The header as written; None while the blob is open."""

    @property
    def blob_type(self) -> BlobType:
        return type_of(self.info)

    @property
    def reserved_size(self) -> int:
        """Return the bytes that a blob with data of fixed size will have."""
        return align(self._payload - self.offset + (self._expected or 0))

    def write(self, data: Buffer) -> int:
        """Append bytes, or the bytes of an array in row-major order. Return their
        number.

        Raises InvalidValueError for more bytes than described, and for memory that is
        not contiguous. Raises WriterStateError if the blob is not open any more.
        """
        self.check_open()
        view = _bytes_of(data, is_typed=self._expected is not None)
        size = len(view)
        if self._expected is not None and self._content_size + size > self._expected:
            raise InvalidValueError(
                f"{self}: got {self._content_size + size} bytes, expected "
                f"{self._expected} by its shape and type"
            )
        if self._compressor and self._content_size + size > MAX_EXECUTABLE_SIZE:
            total = self._content_size + size
            raise LimitError(
                f"{self}: size before compression", total, MAX_EXECUTABLE_SIZE
            )
        if _is(self.info, DataType.BOOL) and not has_only_booleans(view):
            raise InvalidValueError(f"{self}: a BOOL element must be 0 or 1")
        if self._strings is not None:
            self._strings.append(bytes(view))
        else:
            self._store(view)
        self._content_size += size
        return size

    def close(self) -> None:
        """Finish the blob. Do nothing if it is finished.

        Raises WriterStateError if there are fewer bytes than described. The blob then
        stays open.
        """
        if self.state is WriterState.CLOSED:
            return
        self.check_open()
        self.check_complete()
        if self._strings is not None:
            self._store_strings(b"".join(self._strings))
        if self._compressor:
            self._emit(self._compressor.flush())
        self._finish()
        self.state = WriterState.CLOSED
        self._finished(self)
        _log.debug("wrote %s", self)

    def check_complete(self) -> None:
        """Raise WriterStateError if there are fewer bytes than described."""
        if self._expected is not None and self._content_size < self._expected:
            raise WriterStateError(
                f"{self} is incomplete: got {self._content_size} bytes, expected "
                f"{self._expected}"
            )

    def discard(self) -> None:
        """Remove the blob, as if it had never been begun."""
        if self.state is WriterState.OPEN:
            self.state = WriterState.DISCARDED
            self._finished(self)

    def __repr__(self) -> str:
        return f"<BlobWriter {self} {self.state.value} {self._content_size} bytes>"

    def __str__(self) -> str:
        return f"{self.blob_type.name} {getattr(self.info, 'name', '')!r}"

    def _store(self, view: memoryview) -> None:
        if self._compressor is None:
            self._emit(view)
            return
        for begin in range(0, len(view), _DEFLATE_STEP):
            step = view[begin : begin + _DEFLATE_STEP]
            self._emit(self._compressor.compress(step))

    def _store_strings(self, data: bytes) -> None:
        info = self.info
        assert isinstance(info, TensorDataInfo | FeedDataInfo)
        try:
            decode_strings(data, (info.num_tensors, *(info.tensor_info.shape or ())))
        except InvalidValueError as error:
            raise InvalidValueError(f"{self}: {error.reason}") from None
        self._store(memoryview(data))

    def _write_at(self, offset: int, data: bytes | memoryview) -> None:
        try:
            self._output.write_at(offset, data)
        except BaseException:
            self.state = WriterState.FAILED
            raise

    def _emit(self, data: bytes | memoryview) -> None:
        self._write_at(self._payload + self._stored_size, data)
        self._crc = zlib.crc32(data, self._crc)
        self._stored_size += len(data)

    def _finish(self) -> None:
        header = BlobHeader(
            type_number=self.blob_type.value,
            flags=FLAG_COMPRESSED if self._compressor else 0,
            payload_size=self._stored_size,
            content_size=self._content_size,
            descriptor_size=len(self._descriptor),
            descriptor_crc=zlib.crc32(self._descriptor),
            payload_crc=self._crc,
        )
        head = header.encode() + self._descriptor
        head += bytes(self._payload - self.offset - len(head))
        tail = bytes(-self._stored_size % ALIGNMENT)
        self._write_at(self._payload + self._stored_size, tail)
        self._write_at(self.offset, head)
        self.header = header


def expected_size(info: Info) -> int | None:
    """Return the number of bytes that data for `info` must have; None if any number is
    allowed.
    """
    if not isinstance(info, TensorDataInfo | FeedDataInfo):
        return None
    if info.tensor_info.data_type is DataType.STRING:
        return None
    return info.num_tensors * info.tensor_info.size_in_bytes


def _is(info: Info, data_type: DataType) -> bool:
    if not isinstance(info, TensorDataInfo | FeedDataInfo):
        return False
    return info.tensor_info.data_type is data_type


def _bytes_of(data: Buffer, *, is_typed: bool) -> memoryview:
    try:
        view = data.data if isinstance(data, np.ndarray) else memoryview(data)
        if not view.c_contiguous:
            raise InvalidValueError("expected contiguous memory; copy the array first")
        if view.format == "O":
            hint = "convert strings with encode_strings"
            raise InvalidValueError(f"expected bytes, got an array of objects; {hint}")
        if is_typed and view.format[0] in ">!" and view.itemsize > 1:
            raise InvalidValueError("expected little-endian values; convert the array")
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (TypeError, ValueError) as error:
        kind = type(data).__name__
        raise InvalidValueError(f"expected bytes, got {kind}: {error}") from None
