"""Tensors whose data is in files beside the model. The files are mapped, never read
whole.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.errors import InvalidModel


class ExternalFiles:
    """The data files of one model, all inside its folder. The caller must close it."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = None if folder is None else folder.resolve()
        self._maps: dict[str, npt.NDArray[np.uint8]] = {}

    def bytes_of(self, tensor: Any, size: int | None) -> npt.NDArray[np.uint8]:
        """Return a view of the data of `tensor`, which must be `size` bytes if `size`
        is set.

        Raises InvalidModel if the file is missing, outside the folder or too short.
        """
        entries = {entry.key: entry.value for entry in tensor.external_data}
        location = entries.get("location", "")
        try:
            offset = int(entries.get("offset") or 0)
            length = int(entries["length"]) if entries.get("length") else None
        except ValueError:
            raise InvalidModel(
                f"tensor {tensor.name!r}: offset and length of its external data must "
                "be numbers"
            ) from None
        data = self._map(location, tensor.name)
        if length is None:
            length = len(data) - offset if size is None else size
        if size is not None and length != size:
            raise InvalidModel(
                f"tensor {tensor.name!r}: its external data has {length} bytes, "
                f"expected {size} by its shape and type"
            )
        if offset < 0 or length < 0 or offset + length > len(data):
            raise InvalidModel(
                f"tensor {tensor.name!r}: its data is at bytes {offset} to "
                f"{offset + length} of {location!r}, which has {len(data)} bytes"
            )
        return data[offset : offset + length]

    def _map(self, location: str, tensor: str) -> npt.NDArray[np.uint8]:
        if location in self._maps:
            return self._maps[location]
        path = self._path(location, tensor)
        try:
            with path.open("rb") as stream:
                if path.stat().st_size == 0:
                    data = np.empty(0, np.uint8)
                else:
                    mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
                    data = np.frombuffer(mapped, np.uint8)
        except OSError as error:
            raise InvalidModel(
                f"tensor {tensor!r}: its data file {location!r} cannot be read: "
                f"{error.strerror or error}"
            ) from None
        self._maps[location] = data
        return data

    def _path(self, location: str, tensor: str) -> Path:
        where = f"tensor {tensor!r}: its data file {location!r}"
        if self._folder is None:
            raise InvalidModel(
                f"{where} can only be read for a model that is a file; pass the path"
            )
        if not location or "\0" in location or Path(location).is_absolute():
            raise InvalidModel(f"{where} must be a path inside the model's folder")
        path = (self._folder / location).resolve()
        if not path.is_relative_to(self._folder):
            raise InvalidModel(f"{where} is outside the model's folder")
        if not path.is_file():
            raise InvalidModel(f"{where} is missing")
        return path
