"""Descriptors: the msgpack map behind a blob header, for each type of blob.

The tables of this module define the format; see docs/reference/popef-format.md. A
descriptor is unpacked field by field, and long lists item by item. The decoder's own
limits are set to the largest valid item. So no nesting and no announced length can make
the decoder allocate much more than the descriptor's own size. The worst case is 8 MiB,
if each of the 1,024 levels that msgpack supports claims a full list.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgpack

from popef_io.datatypes import BlobType, DataType, TensorType
from popef_io.errors import (
    CorruptError,
    InvalidValueError,
    LimitError,
    Location,
    RuleViolation,
)
from popef_io.fields import (
    S64_MAX,
    U32_MAX,
    Choice,
    Flag,
    Integer,
    Kind,
    ListOf,
    MapOf,
    PairList,
    RecordKind,
    Shape,
    Text,
)
from popef_io.layout import HEADER_SIZE, MAX_DESCRIPTOR_SIZE
from popef_io.metadata import (
    Anchor,
    ExecutableInfo,
    FeedDataInfo,
    Metadata,
    OpaqueInfo,
    Option,
    ProgramFlow,
    TensorDataInfo,
    TensorInfo,
)
from popef_io.validation import (
    MAX_RANK,
    check_feed_data,
    check_metadata,
    check_tensor_data,
    check_tensor_info,
)

Info = ExecutableInfo | Metadata | TensorDataInfo | FeedDataInfo | OpaqueInfo

MAX_NAME_SIZE = 1 << 14  # bytes; names in generated graphs nest some hundred levels
MAX_VALUE_SIZE = 1 << 20  # bytes of an option's value; a list of class names fits
MAX_ANCHORS = 1 << 16  # like blobs: one for each tensor, and some more
MAX_OPTIONS = 1 << 12
MAX_PROGRAMS = 1 << 10  # for one anchor, or for load, run or save
MAX_PROGRAM_NAMES = 1 << 16
MAX_COUNT = 1 << 16  # replicas, devices, processes

# Longest list that the decoder may make. Long lists are read item by item. msgpack's C
# module does not apply this limit to them. Its pure-Python twin does, but allocates no
# room for items in advance.
_IS_COMPILED = msgpack.Unpacker.__module__.endswith("._cmsgpack")
_MAX_LIST = MAX_PROGRAMS if _IS_COMPILED else MAX_ANCHORS

_name = Text(MAX_NAME_SIZE, may_be_empty=False)
_link = Text(MAX_NAME_SIZE)
_program = Integer(0, U32_MAX)
_programs = ListOf(_program, MAX_PROGRAMS)
_count = Integer(1, MAX_COUNT)
_tensor_info = RecordKind(
    TensorInfo,
    {"shape": Shape(MAX_RANK), "data_type": Choice(DataType)},
    check_tensor_info,
)
_anchor = RecordKind(
    Anchor,
    {
        "name": _name,
        "handle": _link,
        "tensor_info": _tensor_info,
        "type": Choice(TensorType),
        "programs": _programs,
        "is_per_replica": Flag(),
    },
)
_option = RecordKind(Option, {"name": _name, "value": Text(MAX_VALUE_SIZE)})
_program_flow = RecordKind(
    ProgramFlow, {"load": _programs, "main": _programs, "save": _programs}
)
_metadata = RecordKind(
    Metadata,
    {
        "executable": _name,
        "anchors": ListOf(_anchor, MAX_ANCHORS),
        "program_flow": _program_flow,
        "programs_map": MapOf(_program, _link, MAX_PROGRAM_NAMES),
        "replication_factor": _count,
        "num_ipus": _count,
        "ipu_version": Integer(0, U32_MAX),
        "is_pod": Flag(),
        "num_processes": _count,
        "is_inference": Flag(),
        "engine_options": ListOf(_option, MAX_OPTIONS),
        "device_options": ListOf(_option, MAX_OPTIONS),
        "seed_handle": _link,
        "device_iterations": Integer(1, U32_MAX),
    },
    check_metadata,
)
_tensor_data = RecordKind(
    TensorDataInfo,
    {"name": _name, "tensor_info": _tensor_info, "executable": _link},
    check_tensor_data,
)
_feed_data = RecordKind(
    FeedDataInfo,
    {
        "name": _name,
        "tensor_info": _tensor_info,
        "num_tensors": Integer(0, S64_MAX),
        "executable": _link,
    },
    check_feed_data,
)
_RECORDS = {
    BlobType.POPLAR_EXECUTABLE: RecordKind(ExecutableInfo, {"name": _name}),
    BlobType.METADATA: _metadata,
    BlobType.DATA_TENSOR: _tensor_data,
    BlobType.DATA_FEED: _feed_data,
    BlobType.OPAQUE: RecordKind(OpaqueInfo, {"name": _name, "executable": _link}),
}
_TYPES: dict[type, BlobType] = {record.cls: kind for kind, record in _RECORDS.items()}


def type_of(info: Info) -> BlobType:
    """Return the type of blob that `info` describes."""
    found = _TYPES.get(type(info))
    if found is None:
        known = ", ".join(cls.__name__ for cls in _TYPES)
        raise InvalidValueError(f"expected one of {known}; got {type(info).__name__}")
    return found


def encode(info: Info) -> bytes:
    """Return the descriptor of `info`. Raises InvalidValueError or LimitError if a rule
    is broken.
    """
    record = _RECORDS[type_of(info)]
    try:
        data: bytes = msgpack.packb(record.pack(info))
    except RuleViolation as violation:
        name = f"{record.cls.__name__}.{violation.field}".rstrip(".")
        if violation.limit:
            raise LimitError(f"{name} ({violation.reason})", *violation.limit) from None
        raise InvalidValueError(violation.reason, field=name) from None
    if len(data) > MAX_DESCRIPTOR_SIZE:
        raise LimitError("descriptor size", len(data), MAX_DESCRIPTOR_SIZE)
    return data


def decode(kind: BlobType, data: bytes, where: Location) -> Info:
    """Return the value of a descriptor. Raises CorruptError or LimitError if a rule is
    broken.

    `where` is the blob. The error has the offset of the field, if it is known.
    """
    unpacker, begin = _unpacker(data), where.offset + HEADER_SIZE
    try:
        info: Info = _decode_record(_RECORDS[kind], unpacker)
        if unpacker.tell() != len(data):
            rest = len(data) - unpacker.tell()
            raise RuleViolation(f"{rest} unexpected bytes follow its map")
    except RuleViolation as violation:
        place = replace(where, offset=begin + unpacker.tell())
        field = (
            f"descriptor field {violation.field}" if violation.path else "descriptor"
        )
        if violation.limit:
            name = f"{field} ({violation.reason})"
            raise LimitError(name, *violation.limit, where=place) from None
        raise CorruptError(f"{field}: {violation.reason}", where=place) from None
    # msgpack's errors for bytes that are not msgpack or exceed its limits. Where its C
    # module raises a stack error, its pure-Python twin raises the last of these.
    except (ValueError, msgpack.UnpackException, RecursionError) as error:
        place = replace(where, offset=begin + unpacker.tell())
        reason = str(error) or type(error).__name__
        raise CorruptError(
            f"the descriptor is not valid msgpack: {reason}", where=place
        ) from error
    return info


def _unpacker(data: bytes) -> msgpack.Unpacker:
    size = max(len(data), 1)
    unpacker = msgpack.Unpacker(
        None,
        max_buffer_size=size,
        max_array_len=min(_MAX_LIST, size),
        max_map_len=min(len(_metadata.fields), size),
        max_str_len=min(MAX_VALUE_SIZE, size),
        max_bin_len=0,
        max_ext_len=0,
        object_pairs_hook=PairList,
    )
    unpacker.feed(data)
    return unpacker


def _decode_record(record: RecordKind, unpacker: msgpack.Unpacker) -> Any:
    count = unpacker.read_map_header()
    pairs = ((unpacker.unpack(), unpacker) for _ in range(count))
    return record.read(count, pairs, _decode_field)


def _decode_field(kind: Kind, unpacker: msgpack.Unpacker) -> Any:
    if not isinstance(kind, ListOf):
        return kind.unpack(unpacker.unpack())
    count = unpacker.read_array_header()
    return kind.read(count, (unpacker.unpack() for _ in range(count)))
