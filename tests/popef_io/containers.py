"""Containers for the tests: a small one with everything, and blobs made by hand.

`raw_blob` states the layout a second time, without the package, so that the two can
disagree.
"""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from popef_io import (
    Anchor,
    DataType,
    FeedDataInfo,
    Metadata,
    Option,
    ProgramFlow,
    Reader,
    TensorDataInfo,
    TensorInfo,
    TensorType,
    Writer,
    encode_strings,
)

EXECUTABLE, METADATA, TENSOR, FEED, OPAQUE, UNKNOWN = 0, 1, 2, 3, 4, 777
LAST, COMPRESSED = 1, 2

WEIGHT = np.arange(6, dtype=np.float32).reshape(2, 3)
FRAMES = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
LABELS = ["zero", "one", ""]


def info(*shape: int, data_type: DataType = DataType.F32) -> TensorInfo:
    return TensorInfo(shape, data_type)


def small_metadata(executable: str = "net", **changes: Any) -> Metadata:
    """Metadata with weights, a dynamic batch and options."""
    fields: dict[str, Any] = {
        "executable": executable,
        "anchors": (
            Anchor("x", "h2d_x", info(-1, 3), TensorType.INPUT, (1,)),
            Anchor("w", "h2d_w", info(2, 3), TensorType.INPUT, (0,)),
            Anchor("y", "d2h_y", info(-1, 2), TensorType.OUTPUT, (1,)),
            Anchor("rng", "", TensorInfo(None, DataType.U32), TensorType.UNKNOWN),
        ),
        "program_flow": ProgramFlow((0,), (1,), ()),
        "programs_map": {0: "load", 1: "main"},
        "engine_options": (Option("popgate.batching", "rows"),),
    }
    return Metadata(**(fields | changes))


def write_small(path: Path, *, unknown: bool = False) -> Path:
    """All five types of blob, and one of unknown type if wanted."""
    with Writer(path) as writer:
        with writer.create_executable("net", compress=True) as blob:
            blob.write(b"executable " * 20)
        writer.write(small_metadata())
        with writer.create_tensor_data(TensorDataInfo("w", info(2, 3))) as blob:
            blob.write(WEIGHT)
        frames = FeedDataInfo("x", info(2, 3), 4)
        with writer.create_feed_data(frames) as blob:
            blob.write(FRAMES)
        labels = TensorDataInfo("labels", info(3, data_type=DataType.STRING), "net")
        with writer.create_tensor_data(labels) as blob:
            blob.write(encode_strings(LABELS))
        if unknown:
            reader = Reader()
            parse(reader, raw_file(raw_blob(UNKNOWN, b"later", b"something")))
            writer.copy(reader.unknown_blobs[0].blob)
        with writer.create_opaque_blob("notes", "net") as blob:
            blob.write(b"anything")
    return path


def parse(reader: Reader, data: bytes) -> None:
    """Parse bytes as a stream called `bytes`."""
    reader.parse_stream(io.BytesIO(data), "bytes")


def align(size: int) -> int:
    return (size + 63) // 64 * 64


def raw_blob(
    kind: int,
    descriptor: bytes,
    payload: bytes = b"",
    *,
    pad: bytes = b"\0",
    **header: int | bytes,
) -> bytes:
    """Return a blob by docs/reference/popef-format.md; `header` sets its fields."""
    payload_offset = align(64 + len(descriptor))
    total = align(payload_offset + len(payload))
    fields = {
        "magic": b"\x89PGEF\r\n\x1a",
        "version": 1,
        "type": kind,
        "flags": 0,
        "total_size": total,
        "payload_size": len(payload),
        "content_size": len(payload),
        "descriptor_size": len(descriptor),
        "descriptor_crc": zlib.crc32(descriptor),
        "payload_crc": zlib.crc32(payload),
        "reserved": bytes(8),
    }
    header_crc = header.pop("header_crc", None)
    assert header.keys() <= fields.keys(), header
    head = struct.pack("<8sHHIQQQIII8s", *(fields | header).values())
    head += struct.pack("<I", zlib.crc32(head) if header_crc is None else header_crc)
    blob = head + descriptor
    blob += pad * (payload_offset - len(blob)) + payload
    return blob + pad * (total - len(blob))


def raw_file(*blobs: bytes) -> bytes:
    """Blobs as a file: the last one is marked as such."""
    marked = [mark(blob, index == len(blobs) - 1) for index, blob in enumerate(blobs)]
    return b"".join(marked)


def mark(blob: bytes, last: bool) -> bytes:
    """The blob with its LAST flag set or not; a wrong checksum stays wrong."""
    (flags,) = struct.unpack_from("<I", blob, 12)
    flags = flags & ~LAST | (LAST if last else 0)
    body = blob[:12] + struct.pack("<I", flags) + blob[16:60]
    was_right = struct.pack("<I", zlib.crc32(blob[:60])) == blob[60:64]
    crc = struct.pack("<I", zlib.crc32(body)) if was_right else blob[60:64]
    return body + crc + blob[64:]


def tensor_fields(**changes: Any) -> dict[str, Any]:
    """Descriptor of a tensor of two F32; of right type for 8 bytes of payload."""
    fields = {
        "name": "t",
        "tensor_info": {"shape": [2], "data_type": 3},
        "executable": "",
    }
    return fields | changes


def anchor_fields(**changes: Any) -> dict[str, Any]:
    fields = {
        "name": "x",
        "handle": "h2d_x",
        "tensor_info": {"shape": [2], "data_type": 3},
        "type": 1,
        "programs": [1],
        "is_per_replica": False,
    }
    return fields | changes


def metadata_fields(**changes: Any) -> dict[str, Any]:
    fields = {
        "executable": "net",
        "anchors": [anchor_fields()],
        "program_flow": {"load": [0], "main": [1], "save": []},
        "programs_map": [[0, "load"], [1, "main"]],
        "replication_factor": 1,
        "num_ipus": 1,
        "ipu_version": 0,
        "is_pod": False,
        "num_processes": 1,
        "is_inference": True,
        "engine_options": [],
        "device_options": [],
        "seed_handle": "",
        "device_iterations": 1,
    }
    return fields | changes


def pack(value: Any) -> bytes:
    data: bytes = msgpack.packb(value)
    return data
