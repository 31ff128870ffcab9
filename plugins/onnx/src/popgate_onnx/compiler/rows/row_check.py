"""Run a model to show whether each output row depends on its own input row only.

The check asks four questions of the model, each with rows of several kinds:

- Does a row give the same result alone, together with others, and in another order?
  Kernels round differently for other batch sizes and positions, so this comparison has
  tolerances. The tight one applies to rows of at least one kind, the wide one to all
  kinds, because some models amplify rounding errors on unusual rows.
- Does a row give the same result for any neighbours? Size and position stay the same,
  so every bit must stay the same too. The other rows may be zero, huge, infinite or not
  a number.
- Does an intermediate value mix rows (`row_trace`), even if the outputs do not show it?
- Do the outputs depend on the rows at all? If not, the check has proved nothing.

If a model cannot run on synthetic rows, the check has proved nothing either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from engine.errors import EngineError, counted
from engine.tensor import Array
from popef_io import DataType
from popgate_onnx.compiler.interface import GraphTensor, Interface
from popgate_onnx.compiler.options import COULD_NOT_RUN
from popgate_onnx.compiler.rows.column_values import Column, Values
from popgate_onnx.compiler.rows.row_trace import RowTrace
from popgate_onnx.compiler.rows.samples import (
    GENTLE,
    HARSH,
    OWN,
    SIZES,
    Feed,
    RowSampler,
    joined,
    row_bytes,
    take,
    with_row,
)

Run: TypeAlias = Callable[[Feed], dict[str, Array]]
"""Runs the model; EngineError if it fails."""

ROWS = 5
"""Rows of most trials. The number is odd, so that vector units have remainders."""
_SMALLEST = 1e-30
TRACED_ROWS = 7
"""Rows of the runs whose intermediate values are examined. It is a prime, which few
other dimensions share.
"""
FEW_ROWS = 3
"""Rows of most trials of a slow model."""
_MANY_ROWS = 33
"""Rows to try if a model gives the same result for a few."""
MAX_ROW = 64 << 20
"""Bytes of a row beyond which no larger free dimensions are tried."""
MAX_BATCH = 2 << 30
"""Bytes of synthetic rows beyond which a batch is not tried."""
_SLOW = 0.02
"""Seconds for one row above which a model counts as slow."""
WIDE = 0.05
"""A difference that no rounding explains, as a part of the row's largest value."""
TIGHT = {
    DataType.F64: 1e-9,
    DataType.F32: 1e-4,
    DataType.F16: 1e-2,
    DataType.BF16: 5e-2,
}
"""The rounding of kernels, as a part of the row's largest value."""


#: Part of the message of `Dependent` if all rows have the same result.
NOTHING_SHOWN = "which shows nothing"
SAME_RESULTS = "all synthetic rows give the same result"
_REMEDY = "; if rows do not depend on each other, set batching = true in config.toml"


class Dependent(Exception):
    """Rows depend on each other, or the check could not prove that they do not.

    The message is a clause that explains how.
    """


class RowCheck:
    """Checks the four questions on one model.

    `size` is the model's fixed batch size, at least 2, or 0 if it has none. `known` are
    constants of the model that synthetic rows should contain. `columns` are constants
    for one column of an input. At most `most` rows fit into memory.
    """

    def __init__(
        self,
        interface: Interface,
        run: Run,
        trace: RowTrace,
        size: int,
        seed: int,
        seconds: float,
        known: Sequence[float | str] = (),
        most: int = 33,
        columns: Mapping[Column, Values] | None = None,
    ) -> None:
        self._interface = interface
        self._trace = trace
        self._run = run
        self._size = size
        self._count = size or ROWS
        self._seed = seed
        self._deadline = time.monotonic() + seconds
        self._known = known
        self._most = most
        self._columns = columns or {}
        self._sampler = self._make_sampler(SIZES[0])
        self._responds = False
        self._agrees = False
        """Whether all arrangements gave the same result on some kind of rows."""
        self._furthest = ""

    def check(self) -> None:
        """Raise Dependent unless all checks succeed."""
        kinds = self._find_kinds()
        first = kinds[0]
        # The most informative checks come first, because a slow model uses up its time
        # on them.
        self._arrangement(first, self._count)
        self._neighbours(first)
        for neighbours in dict.fromkeys(("large", "known", first, kinds[-1])):
            self._inside(first, neighbours)
        for base in ("known", *kinds[1:2], "large"):
            if not self._late():
                self._neighbours(base)
        for kind in kinds[1:]:
            if not self._late():
                self._arrangement(kind, self._count)
        self._judge(first)
        if not self._size:
            for rows in sorted({2, 3, 9, 33, max(33, self._most)}):
                slow = self._count == FEW_ROWS and rows > 33
                if not slow and not self._late():
                    self._arrangement(first, rows)

    def _judge(self, first: str) -> None:
        """Raise Dependent unless something was shown."""
        if not self._agrees and not self._furthest and not self._size:
            self._arrangement(first, _MANY_ROWS)
        if not self._responds:
            raise Dependent(f"{SAME_RESULTS}, {NOTHING_SHOWN}{_REMEDY}")
        if not self._agrees and not self._furthest:
            raise Dependent(f"{SAME_RESULTS} in one batch, {NOTHING_SHOWN}{_REMEDY}")
        if not self._agrees:
            raise Dependent(f"{self._furthest} (slightly)")

    def run(self, feed: Feed) -> dict[str, Array]:
        """Run on the rows of `feed`, padded with zeros to a fixed batch size."""
        rows = len(next(iter(feed.values())))
        if self._size > rows:
            feed = joined(feed, self._sampler.rows("zeros", self._size - rows))
        results = self._run(feed)
        expected = self._size or rows
        for name, result in results.items():
            if result.ndim == 0 or len(result) != expected:
                shape = list(result.shape)
                raise Dependent(
                    f"output {name!r} has shape {shape} for {counted(expected, 'row')}"
                )
        if self._size > rows:
            results = {name: result[:rows] for name, result in results.items()}
        return results

    def _late(self) -> bool:
        return time.monotonic() > self._deadline

    def _make_sampler(self, size: int) -> RowSampler:
        inputs = self._interface.inputs
        return RowSampler(inputs, size, self._seed, self._known, self._columns)

    def _find_kinds(self) -> list[str]:
        """Return the gentle kinds of rows on which the model runs. Set its free
        dimensions to sizes that it accepts.
        """
        inputs = self._interface.inputs
        sizes: Sequence[int] = SIZES[:1]
        if _has_free_tail(inputs):
            sizes = [s for s in SIZES if row_bytes(inputs, s) <= MAX_ROW] or sizes
        self._check_size(row_bytes(inputs, sizes[0]))
        failure: EngineError | None = None
        for size in sizes:
            self._sampler = self._make_sampler(size)
            kinds = []
            for kind in (OWN, *GENTLE) if self._columns else GENTLE:
                started = time.monotonic()
                try:
                    self.run(self._sampler.rows(kind, 1))
                except EngineError as error:
                    failure = failure or error
                else:
                    kinds.append(kind)
                    if time.monotonic() - started > _SLOW:
                        self._count = self._size or FEW_ROWS
            if kinds:
                # Large integers are exact, and reach more of the values that a model
                # knows.
                whole = all(t.data_type.numpy_dtype.kind != "f" for t in inputs)
                return [*kinds, "large"] if whole else kinds
        raise Dependent(f"{COULD_NOT_RUN} ({failure})")

    def _check_size(self, row: int) -> None:
        """Raise Dependent if rows of this size are too large to try."""
        count = self._size or TRACED_ROWS
        if count * row > MAX_BATCH:
            raise Dependent(
                f"the check did not run, because {count} synthetic rows would take "
                f"{count * row / (1 << 30):,.1f} GiB"
            )

    def _arrangement(self, kind: str, count: int) -> None:
        """Check rows alone, together and in another order."""
        feed = self._sampler.rows(kind, count)
        alone = self._each_alone(feed)
        together = self._try(feed)
        if together is None and alone is None:
            return
        if together is None or alone is None:
            raise Dependent("rows run either alone or in a batch, but not both")
        order = self._sampler.permutation(count)
        shuffled = self._try(take(feed, order))
        if shuffled is None:
            raise Dependent("rows run in one order but fail in another")
        ordered = {name: array[order] for name, array in together.items()}
        tight = self._compare(together, alone, "alone and in a batch")
        tight &= self._compare(shuffled, ordered, "in another order of rows")
        if self._note_response(together):
            self._agrees |= tight

    def _each_alone(self, feed: Feed) -> dict[str, Array] | None:
        count = len(next(iter(feed.values())))
        results = [self._try(take(feed, slice(i, i + 1))) for i in range(count)]
        done = [r for r in results if r is not None]
        if len(done) < count:
            return None
        shapes = [{name: a.shape for name, a in r.items()} for r in done]
        if any(s != shapes[0] for s in shapes):
            raise Dependent("the shape of its output depends on data")
        return joined(*done)

    def _neighbours(self, base: str) -> None:
        """Check one row while all others are replaced."""
        count = self._count
        feed = self._sampler.rows(base, count)
        expected = self._try(feed)
        if expected is None:
            return
        self._note_response(expected)
        for row, others in self._replacements(count):
            actual = self._try(with_row(others, row, feed))
            if actual is None:
                continue  # the model may refuse such rows even alone
            for name, result in actual.items():
                if result.shape != expected[name].shape or not same_bits(
                    result[row : row + 1], expected[name][row : row + 1]
                ):
                    raise Dependent(
                        f"a row of output {name!r} changes when other rows do"
                    )

    def _replacements(self, count: int) -> Iterator[tuple[int, Feed]]:
        rows = dict.fromkeys((count // 2, 0, count - 1))
        for row in rows:
            for kind in ("normal", *([OWN] if self._columns else []), *HARSH):
                yield row, self._sampler.rows(kind, count)
                if self._late() and kind == "nan":
                    return

    def _inside(self, kind: str, neighbours: str) -> None:
        if self._late():
            return
        count = self._size or TRACED_ROWS
        base = self._sampler.rows(kind, count)
        other = self._sampler.rows(neighbours, count)
        row = count // 2
        mixed = self._trace.mixed(base, with_row(other, row, base), row, self._deadline)
        if mixed is not None:
            raise Dependent(mixed)

    def _try(self, feed: Feed) -> dict[str, Array] | None:
        try:
            return self.run(feed)
        except EngineError:
            return None

    def _compare(
        self, actual: dict[str, Array], expected: dict[str, Array], when: str
    ) -> bool:
        """Return whether the results are equal within the tight tolerance. Raise
        Dependent if they differ by more than the wide one.
        """
        tight = True
        for tensor in self._interface.outputs:
            gap = gap_of(actual[tensor.name], expected[tensor.name], tensor.data_type)
            what = f"a row of output {tensor.name!r} differs {when}"
            if gap > WIDE:
                raise Dependent(what)
            if gap > TIGHT.get(tensor.data_type, 0.0):
                tight = False
                self._furthest = what
        return tight

    def _note_response(self, results: dict[str, Array]) -> bool:
        """Return whether the rows of some output differ from each other."""
        responds = any(
            not same_bits(result[:1], result[i : i + 1])
            for result in results.values()
            for i in range(1, len(result))
        )
        self._responds |= responds
        return responds


def same_bits(one: Array, other: Array) -> bool:
    """Return whether two arrays are equal to the last bit, NaN being equal to NaN."""
    if one.dtype.kind == "f":
        return bool(np.array_equal(one, other, equal_nan=True))
    return bool(np.array_equal(one, other))


def gap_of(one: Array, other: Array, data_type: DataType) -> float:
    """Return the largest difference of two outputs, relative to the largest value of
    its row.
    """
    if one.shape != other.shape:
        return np.inf
    if data_type not in TIGHT or one.size == 0:
        return 0.0 if same_bits(one, other) else np.inf
    first, second = _wide(one, data_type), _wide(other, data_type)
    finite = np.isfinite(first)
    if not np.array_equal(finite, np.isfinite(second)) or not same_bits(
        first[~finite], second[~finite]
    ):
        return np.inf
    first = np.where(finite, first, 0).reshape(len(first), -1)
    second = np.where(finite, second, 0).reshape(len(second), -1)
    furthest = np.abs(first - second).max(axis=1)
    size = np.abs(first).max(axis=1) + _SMALLEST
    return float((furthest / size).max())


def _wide(array: Array, data_type: DataType) -> Array:
    if data_type is DataType.BF16:
        bits = array.astype(np.uint32) << 16
        return np.ascontiguousarray(bits).view(np.float32).astype(np.float64)
    return array.astype(np.float64)


def _has_free_tail(inputs: Sequence[GraphTensor]) -> bool:
    return any(not isinstance(d, int) for t in inputs for d in (t.shape or ())[1:])
