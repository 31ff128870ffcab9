"""Search the intermediate values of a model for mixed rows, even if outputs do not show
them.

A threshold can hide a dependence: for nearly all rows, `x + (max over rows == 12345)`
equals `x`. The maximum itself hides nothing. So the model runs twice more with all its
intermediate values as outputs. One row stays the same, and the other rows change. If a
value keeps rows apart, one of its axes has blocks that belong to the kept row, and
these must not have changed. Values inside nested graphs and functions are examined as
well (`popgate_onnx.compiler.rows.exposure`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from engine.programs.onnx_session import OnnxSession
from engine.programs.session import RunOptions
from engine.tensor import Array
from popef_io import DataType
from popgate_onnx.compiler.graphs import label
from popgate_onnx.compiler.rows.exposure import exposed, has_inside
from popgate_onnx.compiler.rows.samples import Feed
from popgate_onnx.compiler.weights import Weight

_log = logging.getLogger(__name__)


MAX_NODES = 20_000
MAX_WEIGHTS = 1 << 30
"""Bytes of weights beyond which a second session would take too much memory."""
_AT_ONCE = 64
"""Values fetched in one run, which are all in memory at the same time."""


class RowTrace:
    """The intermediate values of one model."""

    def __init__(
        self,
        model: Any,
        weights: Sequence[Weight],
        threads: int,
        run_options: RunOptions = None,
    ) -> None:
        self._run_options = run_options
        self._model = model
        self._weights = weights
        self._threads = threads

    def mixed(self, base: Feed, other: Feed, row: int, until: float) -> str | None:
        """Return which value mixes rows, as a clause; None if none does or none is
        visible.

        `base` and `other` have the same shapes and share only the row `row`. The search
        ends at about `until` (`time.monotonic`).
        """
        model = self._model
        inside = has_inside(model)
        try:
            shown = exposed(model) if inside else model
            return self._look(shown, base, other, row, until)
        except Exception as error:  # the unchanged model may still run
            _log.debug("cannot read intermediate values: %s", error)
        if not inside:
            return None
        try:
            reason = self._look(model, base, other, row, until)
        except Exception as error:  # the model does not run on these rows
            _log.debug("cannot read values outside nested graphs: %s", error)
            return None
        return reason or "the check could not read the values in its nested graphs"

    def _look(
        self, model: Any, base: Feed, other: Feed, row: int, until: float
    ) -> str | None:
        rows = len(next(iter(base.values())))
        session = self._session(model)
        if session is None:
            return None
        for names in self._groups(session):
            if time.monotonic() > until:
                return None
            first = session.raw_run(names, base, self._run_options)
            second = session.raw_run(names, other, self._run_options)
            for name, one, two in zip(names, first, second, strict=True):
                if not rows_stay_apart(one, two, rows, row):
                    return f"{_maker(model, name)} mixes rows"
        return None

    def _session(self, original: Any) -> OnnxSession | None:
        nodes = original.graph.node
        if len(nodes) > MAX_NODES:
            return None
        if sum(weight.nbytes for weight in self._weights) > MAX_WEIGHTS:
            return None
        model = type(original)()
        model.CopyFrom(original)
        shown = {value.name for value in model.graph.output}
        for node in nodes:
            for name in node.output:
                if name and name not in shown:
                    shown.add(name)
                    model.graph.output.add().name = name
        weights = {w.name: (w.data, w.info.data_type) for w in self._weights}
        return OnnxSession(model.SerializeToString(), weights, threads=self._threads)

    def _groups(self, session: OnnxSession) -> Iterator[list[str]]:
        names = [
            name
            for name, port in session.outputs.items()
            if port.data_type not in (None, DataType.BF16)
        ]
        for start in range(0, len(names), _AT_ONCE):
            yield names[start : start + _AT_ONCE]


def _maker(model: Any, name: str) -> str:
    for node in model.graph.node:
        if name in node.output:
            return label(node)
    return f"value {name!r}"


def rows_stay_apart(one: Array, two: Array, rows: int, row: int) -> bool:
    """Return whether `row` lies along some axis and did not change between `one` and
    `two`.

    Rows may be merged with other dimensions into one axis, before or after them.
    """
    if one.dtype.kind == "O" and one.ndim == two.ndim > 1:
        # A Tokenizer pads the words of each row to the length of the longest row.
        width = min(one.shape[-1], two.shape[-1])
        one, two = one[..., :width], two[..., :width]
    if one.shape != two.shape:
        return False
    same = one == two
    if one.dtype.kind == "f":
        same |= np.isnan(one) & np.isnan(two)
    if np.all(same):
        return True
    for axis, size in enumerate(one.shape):
        if size % rows:
            continue
        others = tuple(a for a in range(one.ndim) if a != axis)
        kept = np.all(same, axis=others)
        if any(
            np.all(kept.reshape(-1, rows, inner)[:, row])
            for inner in _divisors(size // rows)
        ):
            return True
    return False


def _divisors(number: int) -> Iterator[int]:
    small = 1
    while small * small <= number:
        if number % small == 0:
            yield small
            yield number // small
        small += 1
