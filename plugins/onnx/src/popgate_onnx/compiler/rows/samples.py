"""Synthetic rows, of kinds that reveal dependences between rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from engine.tensor import Array
from popef_io import DataType
from popgate_onnx.compiler.interface import GraphTensor
from popgate_onnx.compiler.rows.column_values import Column, Values

Feed = dict[str, Array]

GENTLE = ("normal", "unit", "counts", "tiny", "zeros")
"""Kinds on which a model gives about the same results for any arrangement of rows."""
HARSH = ("known", "large", "ones", "huge", "lowest", "infinite", "nan", "zeros")
"""Kinds for neighbours that show even a slight influence on another row.

Some of them change the minimum, maximum, sum or count over rows. Half of the values of
"known" are constants of the model, so comparisons with them succeed.
"""
OWN = "own"
"""Like "normal", but with different values in each column that the model
distinguishes.
"""
SIZES = (4, 8, 16, 1, 2, 3, 32, 64, 128, 224)
"""Sizes to try for free dimensions other than the first, until the model runs."""

_WORDS = ("", "a", "cat", "The dog", "ünï", "x y z", "lorem ipsum dolor")
_DIGITS = ("0", "1", "2.5", "-3", "17")


class RowSampler:
    """Makes rows for the inputs of a model. The same seed makes the same rows."""

    def __init__(
        self,
        inputs: Iterable[GraphTensor],
        size: int,
        seed: int,
        known: Sequence[float | str] = (),
        columns: Mapping[Column, Values] | None = None,
    ) -> None:
        self._columns = columns or {}
        self._random = np.random.default_rng(seed)
        self._numbers = np.array([v for v in known if not isinstance(v, str)] or [0.0])
        self._words = tuple(v for v in known if isinstance(v, str)) or _WORDS
        self._tails = {t.name: (t.data_type, _tail(t, size)) for t in inputs}

    def rows(self, kind: str, count: int) -> Feed:
        """Return `count` rows of `kind` for every input."""
        feed = {
            name: self._make(
                "normal" if kind == OWN else kind, data_type, (count, *tail)
            )
            for name, (data_type, tail) in self._tails.items()
        }
        if kind == OWN:
            for (name, column), values in self._columns.items():
                self._fill(feed, name, column, values)
        return feed

    def _fill(self, feed: Feed, name: str, column: int, values: Values) -> None:
        """Put some of `values` into a column of the input `name`."""
        rows = feed.get(name)
        if rows is None or rows.ndim > 2 or column >= (*rows.shape, 1)[1]:
            return
        texts = rows.dtype.kind == "O"
        usable = [value for value in values if isinstance(value, str) == texts]
        if not usable:
            return
        picks = self._random.integers(0, len(usable), len(rows)).tolist()
        target = rows if rows.ndim == 1 else rows[:, column]
        if rows.dtype.kind in "iu":
            target[:] = _whole(np.array(usable, np.float64), rows.dtype)[picks]
        elif rows.dtype.kind in "fO":
            with np.errstate(over="ignore"):
                target[:] = [usable[pick] for pick in picks]

    def permutation(self, count: int) -> Array:
        """Return a random order of `count` rows."""
        return self._random.permutation(count)

    def _make(self, kind: str, data_type: DataType, shape: tuple[int, ...]) -> Array:
        if data_type is DataType.STRING:
            return self._strings(kind, shape)
        if data_type is DataType.BOOL:
            if kind in ("zeros", "lowest", "tiny"):
                return np.zeros(shape, np.bool_)
            if kind in ("ones", "huge", "infinite"):
                return np.ones(shape, np.bool_)
            return self._random.random(shape) < 0.5
        if data_type is DataType.BF16:
            floats = self._floats(kind, shape, np.dtype(np.float32))
            return (floats.view(np.uint32) >> 16).astype(np.uint16).reshape(shape)
        dtype = data_type.numpy_dtype
        if dtype.kind == "f":
            return self._floats(kind, shape, dtype)
        return self._integers(kind, shape, dtype)

    def _floats(self, kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        random, half = self._random, dtype.itemsize == 2
        most = float(np.finfo(dtype).max)
        with np.errstate(over="ignore"):
            match kind:
                case "normal":
                    values = random.standard_normal(shape)
                case "unit":
                    values = random.random(shape)
                case "counts":
                    values = random.integers(0, 4, shape).astype(np.float64)
                case "tiny":
                    values = random.standard_normal(shape) * (1e-3 if half else 1e-6)
                case "large":
                    values = random.standard_normal(shape) * (1e2 if half else 1e4)
                case "huge":
                    values = np.full(shape, most / 4)
                case "lowest":
                    values = np.full(shape, -most / 4)
                case "known":
                    values = self._known(random.standard_normal(shape))
                case "infinite":
                    values = np.where(random.random(shape) < 0.5, np.inf, -np.inf)
                case _:
                    constant = {"zeros": 0.0, "ones": 1.0, "nan": np.nan}[kind]
                    values = np.full(shape, constant)
            return np.asarray(values).astype(dtype)

    def _known(self, values: Array) -> Array:
        """Return `values`, half of them replaced by values of the model."""
        own = self._random.choice(self._numbers, values.shape)
        return np.where(self._random.random(values.shape) < 0.5, own, values)

    def _integers(
        self, kind: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array:
        random, info = self._random, np.iinfo(dtype)
        match kind:
            case "normal" | "counts":
                values = random.integers(0, 4, shape)
            case "unit" | "tiny":
                values = random.integers(0, 2, shape)
            case "large":
                values = random.integers(0, 100, shape)
            case "known":
                values = self._known(random.integers(0, 4, shape))
                values = np.clip(values, float(info.min), float(info.max))
                return _whole(values, dtype)
            case "huge" | "lowest":
                most = info.max if kind == "huge" else info.min
                return np.full(shape, most, dtype)
            case "infinite" | "nan":
                return random.integers(
                    info.min, info.max, shape, dtype=dtype, endpoint=True
                )
            case _:
                values = np.full(shape, int(kind == "ones"))
        return np.asarray(values).astype(dtype)

    def _strings(self, kind: str, shape: tuple[int, ...]) -> Array:
        words: tuple[str, ...] = _WORDS
        if kind in ("unit", "counts", "tiny"):
            words = _DIGITS
        elif kind == "known":
            words = self._words
        elif kind == "zeros":
            words = ("",)
        elif kind in ("ones", "huge", "infinite"):
            words = ("word" * 20, "zz")
        picks = self._random.integers(0, len(words), shape)
        result = np.empty(picks.size, dtype=object)
        result[:] = [words[i] for i in picks.reshape(-1).tolist()]
        return result.reshape(shape)


def _whole(values: Array, dtype: np.dtype[Any]) -> Array:
    """Round the values and drop those that no integer of this type can hold."""
    info = np.iinfo(dtype)
    fits = np.isfinite(values) & (np.abs(values) < float(info.max))
    return np.where(fits, values, 0).astype(dtype)


def row_bytes(inputs: Iterable[GraphTensor], size: int) -> int:
    """Return the bytes of a row of all inputs. Each free dimension counts as `size`."""
    return sum(prod(_tail(t, size)) * max(t.data_type.item_size, 8) for t in inputs)


def take(feed: Mapping[str, Array], rows: Any) -> Feed:
    """Return some rows of every array: a slice or an array of indices."""
    return {name: np.ascontiguousarray(array[rows]) for name, array in feed.items()}


def joined(*feeds: Mapping[str, Array]) -> Feed:
    """Return the rows of several feeds, one after the other."""
    return {name: np.concatenate([f[name] for f in feeds]) for name in feeds[0]}


def with_row(feed: Mapping[str, Array], row: int, source: Mapping[str, Array]) -> Feed:
    """Return `feed` with one row taken from `source`."""
    result = {}
    for name, array in feed.items():
        copy = array.copy()
        copy[row] = source[name][row]
        result[name] = copy
    return result


def _tail(tensor: GraphTensor, size: int) -> tuple[int, ...]:
    dims = tensor.shape or ()
    return tuple(d if isinstance(d, int) else size for d in dims[1:])
