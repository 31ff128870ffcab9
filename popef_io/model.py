"""Models: an executable together with its metadata and all blobs that belong to it."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from popef_io.blob_readers import (
    ExecutableReader,
    FeedReader,
    OpaqueReader,
    TensorReader,
)
from popef_io.datatypes import BlobType, TensorType
from popef_io.errors import CorruptError, InvalidValueError, MissingBlobError
from popef_io.mapping import FileView
from popef_io.metadata import Anchor, Metadata, TensorInfo
from popef_io.reader import Reader

_log = logging.getLogger(__name__)

_Item = TypeVar("_Item", TensorReader, FeedReader, OpaqueReader)
_Data = TypeVar("_Data", TensorReader, FeedReader)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The blobs that together form one model (PopEF User Guide 4.2.1).

    A model stays valid when its reader is closed. Its files stay mapped as long as the
    model, or anything read from it, is referenced.
    """

    metadata: Metadata
    executable: ExecutableReader
    tensors: Mapping[str, TensorReader]
    """Tensor data by name of their anchors."""
    feeds: Mapping[str, FeedReader]
    """Feed data by name of their anchors."""
    opaque_blobs: Mapping[str, OpaqueReader]
    """Opaque blobs by name."""
    sources: tuple[FileView, ...] = ()
    """The files and streams from which the model was read, in that order."""

    @property
    def paths(self) -> tuple[str, ...]:
        """Return the names of its sources. The name of a file is its path."""
        return tuple(source.name for source in self.sources)

    @property
    def name(self) -> str:
        """Return the name of the executable."""
        return self.executable.name

    @property
    def anchors(self) -> tuple[Anchor, ...]:
        return self.metadata.anchors

    @property
    def inputs(self) -> tuple[Anchor, ...]:
        """Return the INPUT anchors of the main programs, which a request carries."""
        return self._main(TensorType.INPUT)

    @property
    def outputs(self) -> tuple[Anchor, ...]:
        """Return the OUTPUT anchors of the main programs, which an answer carries."""
        return self._main(TensorType.OUTPUT)

    def _main(self, kind: TensorType) -> tuple[Anchor, ...]:
        main = set(self.metadata.program_flow.main)
        return tuple(
            anchor
            for anchor in self.metadata.anchors
            if anchor.type is kind and not main.isdisjoint(anchor.programs)
        )

    def __repr__(self) -> str:
        return (
            f"<Model {self.name!r} inputs={[a.name for a in self.inputs]} "
            f"outputs={[a.name for a in self.outputs]} tensors={len(self.tensors)}>"
        )


class ModelBuilder:
    """Joins the content of a reader into models (PopEF User Guide 4.2.1)."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def create_model(self, executable_name: str | None = None) -> Model:
        """Return the model of the executable with this name. The name may be omitted if
        there is only one executable.

        Tensor and feed data belong to the anchors of the same name, and opaque blobs to
        their executable. Data that name this executable override data that name none.
        Data without an anchor are left out. Raises MissingBlobError if executable or
        metadata are missing, and InvalidValueError if a name is needed. Raises
        CorruptError if data differ from the type and shape of their anchor.
        """
        executable = self._executable(executable_name)
        metadata = self._metadata(executable.name)
        anchor_by_name = {
            anchor.name: anchor
            for anchor in metadata.anchors
            if anchor.type is not TensorType.OUTPUT
        }
        tensors = _pick(self._reader.tensors, executable.name)
        feeds = _pick(self._reader.feeds, executable.name)
        model = Model(
            metadata,
            executable,
            _join(tensors, anchor_by_name),
            _join(feeds, anchor_by_name),
            _pick(self._reader.opaque_blobs, executable.name),
            tuple(dict.fromkeys(blob.source for blob in self._reader.blobs)),
        )
        _log.debug("made %r", model)
        return model

    def _executable(self, name: str | None) -> ExecutableReader:
        executables = self._reader.executables
        names = ", ".join(repr(executable.name) for executable in executables)
        kind = BlobType.POPLAR_EXECUTABLE.name
        if not executables:
            raise MissingBlobError(
                kind, name or "", f"{self._files()}: there is no executable"
            )
        if name is None:
            if len(executables) > 1:
                raise InvalidValueError(
                    f"{self._files()}: there are several executables; "
                    f"name one of {names}",
                    field="executable_name",
                )
            return executables[0]
        for executable in executables:
            if executable.name == name:
                return executable
        raise MissingBlobError(
            kind,
            name,
            f"{self._files()}: there is no executable {name!r}; the executables are "
            f"{names}",
        )

    def _metadata(self, name: str) -> Metadata:
        for metadata in self._reader.metadata:
            if metadata.executable == name:
                return metadata
        raise MissingBlobError(
            BlobType.METADATA.name,
            name,
            f"{self._files()}: there is no metadata for executable {name!r}",
        )

    def _files(self) -> str:
        names = dict.fromkeys(blob.source.name for blob in self._reader.blobs)
        return ", ".join(names) or "no file has been read"


def load_model(
    *paths: str | os.PathLike[str],
    executable_name: str | None = None,
    detached: bool = False,
) -> Model:
    """Return the model in the files at `paths`. Its blobs may be in several files.

    `detached` is the same as for `Reader`.
    """
    with Reader(detached=detached) as reader:
        for path in paths:
            reader.parse_file(path)
        return ModelBuilder(reader).create_model(executable_name)


def _pick(items: tuple[_Item, ...], executable: str) -> dict[str, _Item]:
    """Return the items of `executable` by name. An item that names the executable
    overrides an item that names none.
    """
    picked: dict[str, _Item] = {}
    for owner in ("", executable):
        picked.update(
            (item.name, item) for item in items if item.info.executable == owner
        )
    return picked


def _join(
    items: dict[str, _Data], anchor_by_name: Mapping[str, Anchor]
) -> dict[str, _Data]:
    joined = {}
    for name, item in items.items():
        anchor = anchor_by_name.get(name)
        if anchor is None:
            continue
        info = item.info.tensor_info
        if not _fits(info, anchor.tensor_info):
            raise CorruptError(
                f"the data is {info}, but its anchor expects {anchor.tensor_info}",
                where=item.blob.where,
            )
        joined[name] = item
    return joined


def _fits(data: TensorInfo, anchor: TensorInfo) -> bool:
    if data.data_type is not anchor.data_type:
        return False
    if anchor.shape is None or data.shape is None:
        return True
    return len(data.shape) == len(anchor.shape) and all(
        wanted in (-1, size)
        for size, wanted in zip(data.shape, anchor.shape, strict=True)
    )
