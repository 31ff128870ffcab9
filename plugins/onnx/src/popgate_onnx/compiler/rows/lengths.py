"""Runs a model to show whether padding changes its rows.

Rows of different lengths run alone. Then they run together in one batch, padded to the
longest row with the padding values that the model's owner states. Both results must
agree within the tolerances of `row_check`: the tight one on at least one kind of rows,
the wide one on all kinds. The trials also show which axes of the outputs are the
length.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from engine.errors import EngineError
from engine.model.ragged import LENGTH_AXIS, ShownLengths, padding_of
from engine.programs.time_limit import TimeLimit
from engine.tensor import Array
from popef_io import DataType
from popgate_onnx.compiler.interface import Dimension, GraphTensor
from popgate_onnx.compiler.options import COULD_NOT_RUN, BatchDecision, CompileOptions
from popgate_onnx.compiler.package import PackagePart
from popgate_onnx.compiler.rows.row_check import (
    NOTHING_SHOWN,
    SAME_RESULTS,
    TIGHT,
    WIDE,
    Dependent,
    Run,
    gap_of,
    same_bits,
)
from popgate_onnx.compiler.rows.samples import GENTLE, SIZES, Feed, RowSampler

#: Lengths of the rows of a trial, in multiples of a unit. Some models accept only
#: multiples of a larger unit.
_LENGTHS = (5, 2, 9, 3, 13)
_UNITS = (1, 8, 32)


def shown_lengths(
    part: PackagePart,
    run: Run,
    decision: BatchDecision,
    options: CompileOptions,
    limit: TimeLimit,
) -> ShownLengths:
    """Return the findings on the inputs that `options.ragged` names.

    `run` runs the model by the graph's own names. Raises Dependent if padding changes a
    row, or if nothing could be proved.
    """
    if not decision.rows or decision.size:
        why = decision.reason if not decision.rows else "the batch has a fixed size"
        raise Dependent(f"rows are not mixed: {why}")
    inside = {public: name for name, public in part.inputs.items()}
    pads: dict[str, float] = {}
    for public, pad in options.ragged.items():
        if public not in inside:
            raise Dependent(
                f"the model has no input {public!r}; it has {', '.join(inside)}"
            )
        pads[inside[public]] = pad
    _check_inputs(part.interface.inputs, pads)
    for tensor in part.interface.inputs:
        if tensor.name in pads:
            pads[tensor.name] = padding_of(tensor.data_type, pads[tensor.name])
    check = _LengthCheck(part.interface.inputs, part.interface.outputs, pads, run)
    axes = check.check(options.seed, time.monotonic() + options.check_seconds)
    if limit.is_over:
        raise Dependent(f"the check was stopped after {limit.seconds:g} s")
    outputs = {part.outputs[name]: found for name, found in axes.items()}
    return ShownLengths(dict(options.ragged), outputs)


def _check_inputs(inputs: Sequence[GraphTensor], pads: Mapping[str, float]) -> None:
    """Raise Dependent for inputs that cannot be padded, or cannot be padded alone."""
    names: set[Dimension] = set()
    for tensor in inputs:
        if tensor.name not in pads:
            continue
        what, shape = f"input {tensor.name!r}", tensor.shape or ()
        if tensor.data_type is DataType.STRING:
            raise Dependent(f"{what} holds strings, which cannot be padded")
        if len(shape) <= LENGTH_AXIS or isinstance(shape[LENGTH_AXIS], int):
            raise Dependent(f"{what} has no free axis {LENGTH_AXIS}")
        names.add(shape[LENGTH_AXIS])
    for tensor in inputs:
        if tensor.name not in pads and names & set((tensor.shape or ())[1:]) - {None}:
            raise Dependent(
                f"input {tensor.name!r} has the same length but no padding value"
            )


class _LengthCheck:
    """Runs rows alone and padded, and finds out which axes of outputs are lengths."""

    def __init__(
        self,
        inputs: Sequence[GraphTensor],
        outputs: Sequence[GraphTensor],
        pads: Mapping[str, float],
        run: Run,
    ) -> None:
        self._inputs = inputs
        self._types = {tensor.name: tensor.data_type for tensor in outputs}
        self._pads = pads
        self._run = run
        self._axes: dict[str, tuple[int, ...]] = {}
        self._agrees = False
        self._differs = ""

    def check(self, seed: int, until: float) -> dict[str, tuple[int, ...]]:
        """Return the axes that are lengths, by output. Raise Dependent."""
        failure: EngineError | None = None
        for unit in _UNITS:
            for size in SIZES if self._has_other_sizes else SIZES[:1]:
                ran = False
                for kind in GENTLE:
                    if ran and time.monotonic() > until:
                        break
                    rows = [self._row(kind, n * unit, size, seed + n) for n in _LENGTHS]
                    try:
                        alone = [self._run(row) for row in rows]
                    except EngineError as error:
                        failure = failure or error
                        continue
                    ran = True
                    self._compare(rows, alone)
                if ran:
                    self._judge()
                    return self._axes
        raise Dependent(f"{COULD_NOT_RUN} of different length ({failure})")

    @property
    def _has_other_sizes(self) -> bool:
        return any(
            not isinstance(dim, int)
            for tensor in self._inputs
            for axis, dim in enumerate(tensor.shape or ())
            if axis > (LENGTH_AXIS if tensor.name in self._pads else 0)
        )

    def _row(self, kind: str, length: int, size: int, seed: int) -> Feed:
        """Return one row without an element that equals the padding value."""
        inputs = [
            replace(t, shape=_with_length(t.shape or (), length))
            if t.name in self._pads
            else t
            for t in self._inputs
        ]
        row = RowSampler(inputs, size, seed).rows(kind, 1)
        for name, pad in self._pads.items():
            first = row[name][:, 0]
            first[first == pad] = 0 if pad else 1
        return row

    def _compare(self, rows: Sequence[Feed], alone: Sequence[dict[str, Array]]) -> None:
        """Run the rows padded in one batch, and compare. Raise Dependent."""
        lengths = [row[next(iter(self._pads))].shape[LENGTH_AXIS] for row in rows]
        try:
            together = self._run(self._padded(rows, max(lengths)))
        except EngineError as error:
            raise Dependent(f"the padded rows fail in one batch ({error})") from None
        tight = True
        for name, data_type in self._types.items():
            mine = [results[name] for results in alone]
            axes = self._axes[name] = self._axes_of(name, mine, lengths)
            _check_shape(name, together[name], mine[0], axes, len(rows), max(lengths))
            for number, (result, length) in enumerate(zip(mine, lengths, strict=True)):
                part = together[name][number : number + 1]
                for axis in axes:
                    part = part.take(range(length), axis)
                gap = gap_of(part, result, data_type)
                what = f"a row of output {name!r} changes when it is padded"
                if gap > WIDE:
                    raise Dependent(what)
                if gap > TIGHT.get(data_type, 0.0):
                    tight, self._differs = False, f"{what} (slightly)"
        if tight and self._responds(alone):
            self._agrees = True

    def _padded(self, rows: Sequence[Feed], longest: int) -> Feed:
        batch: Feed = {}
        for name in rows[0]:
            parts = [row[name] for row in rows]
            pad = self._pads.get(name)
            if pad is None:
                batch[name] = np.concatenate(parts)
                continue
            shape = (len(parts), longest, *parts[0].shape[LENGTH_AXIS + 1 :])
            whole = np.full(shape, pad, parts[0].dtype)
            for number, part in enumerate(parts):
                whole[number, : part.shape[LENGTH_AXIS]] = part[0]
            batch[name] = whole
        return batch

    def _axes_of(
        self, name: str, results: Sequence[Array], lengths: Sequence[int]
    ) -> tuple[int, ...]:
        """Return the axes of an output that are as long as the rows."""
        first = results[0]
        axes = []
        for axis in range(1, first.ndim):
            sizes = [result.shape[axis] for result in results]
            if sizes == list(lengths):
                axes.append(axis)
            elif len(set(sizes)) > 1:
                raise Dependent(
                    f"axis {axis} of output {name!r} depends on the length but does "
                    "not equal it"
                )
        return tuple(axes)

    def _responds(self, alone: Sequence[Mapping[str, Array]]) -> bool:
        """Return whether some rows have different results."""
        for name in self._types:
            first = alone[0][name].reshape(-1)
            for results in alone[1:]:
                other = results[name].reshape(-1)
                count = min(first.size, other.size)
                if not same_bits(first[:count], other[:count]):
                    return True
        return False

    def _judge(self) -> None:
        if self._agrees:
            return
        raise Dependent(self._differs or f"{SAME_RESULTS}, {NOTHING_SHOWN}")


def _with_length(shape: tuple[Dimension, ...], length: int) -> tuple[Dimension, ...]:
    return (*shape[:LENGTH_AXIS], length, *shape[LENGTH_AXIS + 1 :])


def _check_shape(
    name: str,
    together: Array,
    alone: Array,
    axes: Sequence[int],
    rows: int,
    longest: int,
) -> None:
    """Raise Dependent unless each row has a result of the longest length."""
    expected = [rows, *alone.shape[1:]]
    for axis in axes:
        expected[axis] = longest
    if list(together.shape) != expected:
        raise Dependent(
            f"output {name!r} has shape {list(together.shape)} for padded rows, "
            f"expected {expected}"
        )
