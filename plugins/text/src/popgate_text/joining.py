"""The outputs of a request, joined from those of its texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from app.errors import InvalidRequest
from engine import Tensor
from popef_io import DataType
from popgate_text.folder import TOKENS, TextModel


class Wanted(Protocol):
    """The options of a request that change its outputs (`TextOptions`)."""

    all_tokens: bool
    normalize: bool | None
    dimensions: int | None
    raw_scores: bool


def joined(
    found: Sequence[Mapping[str, Tensor]], options: Wanted, model: TextModel
) -> dict[str, Tensor]:
    """Return the outputs of all rows, as the request wants them.

    Raises `InvalidRequest`.
    """
    if options.all_tokens:
        vectors = np.concatenate([row[TOKENS].numpy()[0] for row in found])
        return {TOKENS: Tensor.from_numpy(vectors)}
    if model.kind == "embedding":
        vectors = _stack(found, "embedding")
        normalize, wanted = model.normalize, options.normalize
        if normalize and wanted is False:
            vectors = vectors * _stack(found, "norm")
        if options.dimensions is not None:
            vectors = _cut(vectors, options.dimensions)
        if wanted or (wanted is None and normalize and options.dimensions):
            length = np.linalg.norm(vectors, axis=1, keepdims=True)
            vectors = vectors / np.maximum(length, 1e-12)
        name, values = "embedding", vectors
    elif model.kind == "splade":
        name, values = "weights", _stack(found, "weights")
    else:
        name = "scores"
        values = _stack(found, "raw_scores" if options.raw_scores else "scores")
    values = np.ascontiguousarray(values, np.float32)
    return {name: Tensor.from_numpy(values, DataType.F32)}


def _stack(rows: Sequence[Mapping[str, Tensor]], name: str) -> np.ndarray[Any, Any]:
    if len(rows) == 1:
        return rows[0][name].numpy()
    return np.concatenate([row[name].numpy() for row in rows])


def _cut(vectors: np.ndarray[Any, Any], dimensions: int) -> np.ndarray[Any, Any]:
    if not 0 < dimensions <= vectors.shape[1]:
        msg = f"dimensions must be 1 to {vectors.shape[1]}, got {dimensions}"
        raise InvalidRequest(msg)
    return vectors[:, :dimensions]
