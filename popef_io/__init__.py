"""PopEF containers: compiled models and their data in files that can be mapped.

Names follow the PopEF User Guide in Python's spelling. The bytes are PopGate's own
format, see docs/reference/popef-format.md.
"""

from popef_io.blob import Blob
from popef_io.blob_readers import (
    ExecutableReader,
    FeedReader,
    OpaqueReader,
    TensorReader,
    UnknownBlob,
)
from popef_io.blob_writer import BlobWriter
from popef_io.datatypes import BlobType, DataType, TensorType
from popef_io.errors import (
    CorruptError,
    DuplicateBlobError,
    InvalidValueError,
    LimitError,
    Location,
    MissingBlobError,
    NotPopefError,
    PopefError,
    TruncatedError,
    WriterStateError,
)
from popef_io.feeds_writer import FeedsWriter
from popef_io.layout import BlobHeader
from popef_io.logs import TRACE, configure_logging
from popef_io.mapping import map_descriptor
from popef_io.metadata import (
    Anchor,
    FeedDataInfo,
    Metadata,
    Option,
    ProgramFlow,
    TensorDataInfo,
    TensorInfo,
)
from popef_io.model import Model, ModelBuilder, load_model
from popef_io.reader import Reader
from popef_io.strings import (
    decode_strings,
    encode_strings,
    end_of_strings,
    is_alone,
    pack_strings,
    string_blocks,
)
from popef_io.writer import FileWriter, Writer

__all__ = [
    "TRACE",
    "Anchor",
    "Blob",
    "BlobHeader",
    "BlobType",
    "BlobWriter",
    "CorruptError",
    "DataType",
    "DuplicateBlobError",
    "ExecutableReader",
    "FeedDataInfo",
    "FeedReader",
    "FeedsWriter",
    "FileWriter",
    "InvalidValueError",
    "LimitError",
    "Location",
    "Metadata",
    "MissingBlobError",
    "Model",
    "ModelBuilder",
    "NotPopefError",
    "OpaqueReader",
    "Option",
    "PopefError",
    "ProgramFlow",
    "Reader",
    "TensorDataInfo",
    "TensorInfo",
    "TensorReader",
    "TensorType",
    "TruncatedError",
    "UnknownBlob",
    "Writer",
    "WriterStateError",
    "configure_logging",
    "decode_strings",
    "encode_strings",
    "end_of_strings",
    "is_alone",
    "load_model",
    "map_descriptor",
    "pack_strings",
    "string_blocks",
]

configure_logging("POPEF", ("popef_io", "popef"))
