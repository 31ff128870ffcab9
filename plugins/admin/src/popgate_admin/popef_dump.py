"""Dumps of a container for people (`dump_text`) and programs (`dump_document`).

Both have the same facts, because the text is made from the document.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.observe.log_text import escaped
from app.sizes import size_text
from popef_io import (
    Anchor,
    Blob,
    DataType,
    FeedDataInfo,
    Metadata,
    Option,
    ProgramFlow,
    Reader,
    TensorDataInfo,
    TensorInfo,
)
from popgate_admin.table import align_columns

Document = dict[str, Any]

_FEW = 24  # rows of a table, unless all are shown
_VALUE_LENGTH = 100  # characters of an option's value, unless all are shown
_TARGET = (
    "replication_factor",
    "num_ipus",
    "ipu_version",
    "is_pod",
    "num_processes",
    "is_inference",
    "device_iterations",
    "seed_handle",
)


def dump_document(
    reader: Reader,
    *,
    metadata_only: bool = False,
    all: bool = False,  # noqa: A002 - the word of `popef_dump --all`
) -> Document:
    """Return everything that `reader` has read, as lists, mappings, strings and
    numbers.

    Its keys are `files`, `blobs` (left out if `metadata_only`) and `metadata`, which
    has one entry for each described executable. `all` adds details for readers of the
    file's bytes: flags, offsets inside the blob, checksums. Reads no payload.
    """
    blobs = reader.blobs
    document: Document = {"files": _files(blobs)}
    if not metadata_only:
        document["blobs"] = [_blob(blob, all) for blob in blobs]
    with_data = {
        (blob.name, blob.executable)
        for blob in blobs
        if isinstance(blob.info, TensorDataInfo | FeedDataInfo)
    }
    document["metadata"] = [_metadata(item, with_data) for item in reader.metadata]
    return document


def dump_text(
    reader: Reader,
    *,
    metadata_only: bool = False,
    all: bool = False,  # noqa: A002 - the word of `popef_dump --all`
) -> str:
    """Return everything that `reader` has read as tables. The text ends in a newline.

    Without `all`, long tables and values are cut and only the anchors of the main
    programs are shown. Control characters in names are escaped.
    """
    document = dump_document(reader, metadata_only=metadata_only, all=all)
    lines: list[str] = []
    for file in document["files"]:
        size = size_text(file["size"])
        count = f"{file['blobs']} blob{'s' * (file['blobs'] != 1)}"
        lines.append(f"{escaped(file['path'])}: {count}, {size}")
    if not metadata_only:
        lines += ["", *_blob_lines(document["blobs"], len(document["files"]) > 1, all)]
    for metadata in document["metadata"]:
        lines += ["", *_metadata_lines(metadata, all)]
    return "\n".join(lines) + "\n"


def _files(blobs: Sequence[Blob]) -> list[Document]:
    files: dict[int, Document] = {}
    for blob in blobs:
        entry = files.setdefault(
            id(blob.source),
            {"path": blob.source.name, "size": len(blob.source.view), "blobs": 0},
        )
        entry["blobs"] += 1
    return list(files.values())


def _blob(blob: Blob, everything: bool) -> Document:
    header = blob.header
    info = blob.info
    entry: Document = {
        "file": blob.source.name,
        "index": blob.index,
        "type": header.type_name,
        "name": blob.name,
        "executable": blob.executable,
        "offset": blob.offset,
        "size": header.total_size,
        "payload_size": header.payload_size,
        "content_size": header.content_size,
        "compressed": header.is_compressed,
    }
    if isinstance(info, TensorDataInfo | FeedDataInfo):
        entry |= _tensor_info(info.tensor_info)
    if isinstance(info, FeedDataInfo):
        entry["num_tensors"] = info.num_tensors
    if everything:
        entry |= {
            "flags": header.flags,
            "descriptor_size": header.descriptor_size,
            "descriptor_crc32": f"{header.descriptor_crc:08x}",
            "payload_offset": blob.offset + header.payload_offset,
            "payload_crc32": f"{header.payload_crc:08x}",
        }
    return entry


def _tensor_info(info: TensorInfo) -> Document:
    shape = None if info.shape is None else list(info.shape)
    return {"data_type": info.data_type.name, "shape": shape}


def _metadata(
    metadata: Metadata, with_data: set[tuple[str | None, str | None]]
) -> Document:
    names = metadata.programs_map
    executable = metadata.executable
    return {
        "executable": executable,
        "target": {name: getattr(metadata, name) for name in _TARGET},
        "program_flow": _program_flow(metadata.program_flow, names),
        "programs": {str(index): name for index, name in names.items()},
        "anchors": [
            _anchor(anchor, not with_data.isdisjoint(_owners(anchor, executable)))
            for anchor in metadata.anchors
        ],
        "engine_options": _options(metadata.engine_options),
        "device_options": _options(metadata.device_options),
    }


def _owners(anchor: Anchor, executable: str) -> set[tuple[str, str]]:
    return {(anchor.name, ""), (anchor.name, executable)}


def _program_flow(flow: ProgramFlow, names: Any) -> Document:
    return {
        phase: [
            {"program": index, "name": names.get(index, "")}
            for index in getattr(flow, phase)
        ]
        for phase in ("load", "main", "save")
    }


def _anchor(anchor: Anchor, has_data: bool) -> Document:
    return {
        "name": anchor.name,
        "handle": anchor.handle,
        "type": anchor.type.name,
        **_tensor_info(anchor.tensor_info),
        "programs": list(anchor.programs),
        "is_per_replica": anchor.is_per_replica,
        "has_data": has_data,
    }


def _options(options: Sequence[Option]) -> dict[str, str]:
    return {option.name: option.value for option in options}


def _blob_lines(
    blobs: list[Document], several_files: bool, everything: bool
) -> list[str]:
    shown = blobs if everything else blobs[:_FEW]
    head = ["blob", "type", "name", "offset", "size", "content"]
    head += ["of"] if several_files else []
    rows = [head]
    for blob in shown:
        name = "-" if blob["name"] is None else escaped(blob["name"])
        row = [str(blob["index"]), blob["type"], name, str(blob["offset"])]
        row += [size_text(blob["size"]), _content_text(blob)]
        rows.append(row + ([escaped(blob["file"])] if several_files else []))
    lines = align_columns(rows, right={0, 3, 4})
    return lines + _rest_line(len(blobs) - len(shown), "blobs")


def _content_text(blob: Document) -> str:
    content = size_text(blob["content_size"])
    if "data_type" in blob:
        content = _tensor_text(blob)
    if "num_tensors" in blob:
        content = f"{blob['num_tensors']} x {content}"
    if blob["type"] == "METADATA":
        content = ""
    if blob["compressed"]:
        content += f", compressed to {size_text(blob['payload_size'])}"
    if "payload_crc32" in blob:
        content += f" (CRC-32 {blob['payload_crc32']})"
    return content.strip()


def _tensor_text(entry: Document) -> str:
    shape = entry["shape"]
    info = TensorInfo(
        None if shape is None else tuple(shape), DataType[entry["data_type"]]
    )
    return str(info)


def _metadata_lines(metadata: Document, everything: bool) -> list[str]:
    lines = [f"executable {escaped(metadata['executable'])}"]
    target = [[f"  {name}", _value_text(v)] for name, v in metadata["target"].items()]
    lines += align_columns(target)
    lines.append("  program flow")
    for phase, programs in metadata["program_flow"].items():
        steps = ", ".join(
            f"{step['program']} {escaped(step['name'])}".strip() for step in programs
        )
        lines.append(f"    {phase:<5} {steps or '-'}")
    lines += _anchor_lines(metadata, everything)
    for field in ("engine_options", "device_options"):
        if metadata[field]:
            lines.append(f"  {field.replace('_', ' ')}")
            lines += _option_lines(metadata[field], everything)
    return lines


def _anchor_lines(metadata: Document, everything: bool) -> list[str]:
    main = {step["program"] for step in metadata["program_flow"]["main"]}
    anchors = metadata["anchors"]
    shown = [
        anchor
        for anchor in anchors
        if everything or not main or not main.isdisjoint(anchor["programs"])
    ]
    rows = [["    name", "type", "tensor", "programs", "handle", ""]]
    for anchor in shown:
        marks = ["per replica"] * anchor["is_per_replica"]
        marks += ["has data"] * anchor["has_data"]
        rows.append(
            [
                f"    {escaped(anchor['name'])}",
                anchor["type"],
                _tensor_text(anchor),
                ", ".join(map(str, anchor["programs"])) or "-",
                escaped(anchor["handle"]) or "-",
                ", ".join(marks),
            ]
        )
    lines = ["  anchors", *(align_columns(rows) if shown else [])]
    rest = len(anchors) - len(shown)
    return lines + _rest_line(rest, "of other programs", "    ")


def _option_lines(options: dict[str, str], everything: bool) -> list[str]:
    rows = []
    for name, value in options.items():
        text = escaped(value)
        if not everything and len(text) > _VALUE_LENGTH:
            text = f"{text[:_VALUE_LENGTH]}... ({len(value)} characters)"
        rows.append([f"    {escaped(name)}", text])
    return align_columns(rows)


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return escaped(str(value)) or "-"


def _rest_line(count: int, what: str, indent: str = "") -> list[str]:
    return [f"{indent}and {count} more {what}; --all prints them"] * (count > 0)
