# ruff: noqa: N802 - the names are the original's
"""Models: the blobs that together form one model (PopEF User Guide 4.2.1)."""

from __future__ import annotations

import popef_io
from popef.metadata import Metadata
from popef.reading import (
    ExecutableReader,
    FeedReader,
    OpaqueReader,
    Reader,
    TensorReader,
)
from popef.taking import NotPickled, Text, expected, text


class Model(NotPickled):
    """A runnable model; made by `ModelBuilder`.

    `metadata` describes it, `executable` is its `ExecutableReader`; `tensors`, `feeds`
    and `opaqueBlobs` are lists of the readers of its other blobs.
    """

    _instead = "read its files in each process"

    def __init__(self, model: popef_io.Model) -> None:
        self.io = model
        """The model of `popef_io`."""
        self.metadata = Metadata.from_io(model.metadata)
        self.executable = ExecutableReader(model.executable)
        self.tensors = [TensorReader(t) for t in model.tensors.values()]
        self.feeds = [FeedReader(f) for f in model.feeds.values()]
        self.opaqueBlobs = [OpaqueReader(b) for b in model.opaque_blobs.values()]

    def __repr__(self) -> str:
        return repr(self.io)


class ModelBuilder(NotPickled):
    """Joins the blobs of a reader into models."""

    def __init__(self, reader: Reader) -> None:
        self._builder = popef_io.ModelBuilder(expected(reader, Reader).io)

    def createModel(self, executable: Text = "") -> Model:
        """Return the model of an executable; without a name, of the only executable.

        Raises a RuntimeError if there is none, or its metadata or data do not fit.
        """
        return Model(self._builder.create_model(text(executable) or None))
