"""Data in a device process that programs read but requests do not carry.

It is the tensor data and feeds of the file, and the frozen inputs that replace them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any

import numpy as np

from engine.errors import EngineBug, InvalidModel
from engine.tensor import Array
from popef_io import FeedReader, Model, TensorType


class ModelData:
    """The data of the inputs of one replica, by stream handle.

    A frozen value overrides tensor data, which overrides a feed. A feed returns its
    next tensor at each read and begins again after its last. Each replica has its own
    position in it. For one thread.
    """

    def __init__(self, model: Model, frozen: Mapping[str, Array]) -> None:
        self._anchors = {
            a.handle: a for a in model.metadata.anchors if a.type is TensorType.INPUT
        }
        self._model = model
        self._frozen = frozen
        self._sources: dict[str, Callable[[], Array]] = {}

    def read(self, handle: str) -> Array:
        """Return the next data of this stream. The data is valid as long as this object
        is referenced.

        Raises InvalidModel if neither the file nor `frozen` has any.
        """
        return self._source(handle)()

    def check(self, handle: str) -> None:
        """Raise InvalidModel if `read` would raise it. Reads nothing."""
        self._source(handle)

    def clone(self) -> ModelData:
        """Return the same data for another replica, with each feed at its present
        position.
        """
        clone = ModelData(self._model, self._frozen)
        clone._sources = {
            handle: copy(source) if isinstance(source, _Feed) else source
            for handle, source in self._sources.items()
        }
        return clone

    def _source(self, handle: str) -> Callable[[], Array]:
        source = self._sources.get(handle)
        if source is None:
            source = self._sources[handle] = self._open(handle)
        return source

    def _open(self, handle: str) -> Callable[[], Array]:
        anchor = self._anchors.get(handle)
        if anchor is None:
            raise EngineBug(f"no input has the stream handle {handle!r}")
        name = anchor.name
        if name in self._frozen:
            return _constant(self._frozen[name])
        if name in self._model.tensors:
            return _constant(self._model.tensors[name].data())
        if name in self._model.feeds:
            return _Feed(self._model.feeds[name])
        raise InvalidModel(
            f"input {name!r} has no data, neither in the file nor in frozen_inputs"
        )

    def __repr__(self) -> str:
        return f"<ModelData of {self._model.name!r}, {len(self._frozen)} frozen>"


class ProgramStreams:
    """The streams of load and save programs. They read from `data`. `outputs` keeps the
    last value written to each stream, by handle.
    """

    def __init__(self, data: ModelData) -> None:
        self.outputs: dict[str, Array] = {}
        self._data = data

    def read(self, handle: str) -> Array:
        return self._data.read(handle)

    def output_memory(
        self, handle: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        return None

    def write(self, handle: str, value: Array) -> None:
        self.outputs[handle] = value

    def __repr__(self) -> str:
        return f"<ProgramStreams {len(self.outputs)} outputs>"


class _Feed:
    """Returns one tensor after another, and begins again after the last."""

    def __init__(self, reader: FeedReader) -> None:
        if not len(reader):
            raise InvalidModel(f"feed {reader.name!r} contains no tensors")
        self._tensors = reader.data()
        self._next = 0

    def __call__(self) -> Array:
        tensor: Array = self._tensors[self._next, ...]
        self._next = (self._next + 1) % len(self._tensors)
        return tensor


def _constant(value: Array) -> Callable[[], Array]:
    return lambda: value
