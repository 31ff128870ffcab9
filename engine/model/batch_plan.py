"""Mapping of requests to runs of the main programs: units, transfers and their sizes.

Requests are counted in *units*. A unit is one row if rows may be regrouped freely
(`batching_dim`, or a model whose rows may be mixed), else one compiled batch. A
*transfer* is one read or write of a stream. A run transfers a stream several times if
the program repeats (device iterations). The client computes the plan and sends it to
the device process.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine.config import NO_BATCHING_DIM, ModelRunnerConfig
from engine.errors import InvalidConfig, InvalidInput, InvalidModel
from engine.model.anchors import (
    BATCHING_ROWS,
    OPTION_BATCH_SIZE,
    OPTION_BATCHING,
    OPTION_MAX_BATCH,
    MainAnchors,
)
from engine.model.ragged import LENGTH_AXIS, OPTION_RAGGED, RaggedPlan, ShownLengths
from engine.programs.executable import Executable
from engine.programs.transfers import stream_transfers
from engine.tensor import DataDesc, Tensor
from popef_io import Anchor, Metadata, Model

#: Rows that run together if neither the model nor the configuration sets a number. ONNX
#: Runtime gains little from larger batches of small models, and latency grows.
DEFAULT_MAX_BATCH = 64
MAX_BATCH = 1 << 20
"""The most rows for which a model may be compiled."""


@dataclass(frozen=True, slots=True)
class AnchorRows:
    """Sizes of an anchor along the batch dimension.

    `size` is the size of one transfer (0: free), and `span` is the size of one unit. A
    run has `transfers` transfers.
    """

    name: str
    size: int = 0
    span: int = 1
    transfers: int = 1


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """The units that one run takes.

    `dim` is the batch dimension. A run has `run_units` units (0: any number), and a
    transfer has `batch_units`. At most about `max_units` units run together. With 0,
    units of different requests do not run together. `ragged` is set if rows of
    different lengths run together.
    """

    dim: int
    run_units: int
    batch_units: int
    max_units: int
    inputs: tuple[AnchorRows, ...]
    outputs: tuple[AnchorRows, ...]
    ragged: RaggedPlan | None = None

    def units(self, tensors: Mapping[str, Tensor]) -> int:
        """Return the number of units of a request. Raises InvalidInput if its tensors
        do not agree.
        """
        if self.run_units:
            return self._whole_units(tensors)
        if not self.max_units:
            return 0
        dim, rows = self.dim, -1
        for tensor in tensors.values():
            shape = tensor.shape
            got = shape[dim] if len(shape) > dim else 0
            if got != rows >= 0:
                raise self._uneven(tensors, rows)
            rows = got
        return max(rows, 0)

    def _whole_units(self, tensors: Mapping[str, Tensor]) -> int:
        counts: dict[str, int] = {}
        for anchor in self.inputs:
            tensor = tensors.get(anchor.name)
            if tensor is not None:
                counts[anchor.name] = self._count(anchor, tensor.shape)
        if len(set(counts.values())) > 1:
            raise self._disagree(tensors)
        return next(iter(counts.values()), 1)

    def _count(self, anchor: AnchorRows, shape: Sequence[int]) -> int:
        extent = shape[self.dim] if len(shape) > self.dim else int(not shape)
        units, rest = divmod(extent, anchor.span)
        if rest or not units:
            what = "any size from 1"
            if anchor.span > 1:
                what = f"a multiple of {anchor.span}"
            raise InvalidInput(
                f"input {anchor.name!r} expects {what} in dimension {self.dim}, got "
                f"shape {list(shape)}; batching_dim lets any number of rows come"
            )
        return units

    def _disagree(self, tensors: Mapping[str, Tensor]) -> InvalidInput:
        given = {name: list(t.shape) for name, t in tensors.items()}
        return InvalidInput(f"inputs have different batch sizes: {given}")

    def _uneven(self, tensors: Mapping[str, Tensor], rows: int) -> InvalidInput:
        """Return the error for inputs with different numbers of rows. The first has
        `rows` rows.
        """
        shapes = {name: list(t.shape) for name, t in tensors.items()}
        (one, first), *others = shapes.items()
        for name, shape in others:
            if (shape[self.dim] if len(shape) > self.dim else 0) != rows:
                return InvalidInput(
                    f"inputs {one!r} and {name!r} have different batch sizes: their "
                    f"shapes are {first} and {shape}"
                )
        return self._disagree(tensors)

    @property
    def mixes_rows(self) -> bool:
        """Return whether rows of different requests may be in one compiled batch."""
        return self.max_units > 0 and (not self.run_units or self.batch_units > 1)

    @property
    def depth(self) -> int:
        """Return the number of units that keep a device busy: the units of a run, or
        the most units that run together.
        """
        return max(1, self.run_units, self.max_units)

    @property
    def unit_extent(self) -> int:
        """Return the largest extent of one unit in the batch dimension."""
        spans = (a.span for a in (*self.inputs, *self.outputs))
        return max(spans, default=1) if self.run_units else 1

    def request_descs(
        self, descs: Iterable[DataDesc], anchors: Iterable[AnchorRows]
    ) -> tuple[DataDesc, ...]:
        """Return the shapes that requests may have for these anchors. -1 means any
        size.

        A scalar stays a scalar, so a request with a scalar has one unit.
        """
        return tuple(map(self._request_desc, descs, anchors))

    def _request_desc(self, desc: DataDesc, anchor: AnchorRows) -> DataDesc:
        if not self.run_units or not desc.shape:
            return desc
        return replace(self._with_extent(desc, -1), multiple=anchor.span)

    def result_descs(
        self, descs: Iterable[DataDesc], units: int
    ) -> tuple[DataDesc, ...]:
        """Return the outputs `descs` of a request with `units` units."""
        if not (self.run_units or self.max_units):
            return tuple(descs)
        extents = (anchor.span * units for anchor in self.outputs)
        return tuple(map(self._with_extent, descs, extents))

    def _with_extent(self, desc: DataDesc, extent: int) -> DataDesc:
        shape = desc.shape
        if not shape:
            return desc
        shape = (*shape[: self.dim], extent, *shape[self.dim + 1 :])
        return replace(desc, shape=shape)

    def to_message(self) -> Any:
        anchors = [
            [[a.name, a.size, a.span, a.transfers] for a in group]
            for group in (self.inputs, self.outputs)
        ]
        return [
            self.dim,
            self.run_units,
            self.batch_units,
            self.max_units,
            *anchors,
            None if self.ragged is None else self.ragged.to_message(),
        ]

    @classmethod
    def from_message(cls, message: Sequence[Any]) -> BatchPlan:
        dim, run_units, batch_units, max_units, inputs, outputs, ragged = message
        return cls(
            int(dim),
            int(run_units),
            int(batch_units),
            int(max_units),
            tuple(AnchorRows(*row) for row in inputs),
            tuple(AnchorRows(*row) for row in outputs),
            None if ragged is None else RaggedPlan.from_message(ragged),
        )


def plan_batches(
    model: Model, anchors: MainAnchors, config: ModelRunnerConfig
) -> BatchPlan:
    """Return the plan for a model under a configuration.

    Raises InvalidConfig if the model cannot follow the configuration, and InvalidModel
    for contradictory metadata or programs.
    """
    plan = _plan_of(model, anchors, config)
    shown = model.metadata.option(OPTION_RAGGED) if config.ragged else None
    if not shown or not _may_be_ragged(plan):
        return plan
    lengths = ShownLengths.from_text(shown)
    if not lengths.inputs.keys() <= {anchor.name for anchor in plan.inputs}:
        return plan  # an input is frozen, so its length is fixed
    ragged = RaggedPlan(
        tuple(lengths.inputs.get(anchor.name) for anchor in plan.inputs),
        tuple(lengths.outputs.get(anchor.name, ()) for anchor in plan.outputs),
        config.max_batch_tokens,
        config.max_padding,
        tuple(
            index
            for index, anchor in enumerate(plan.outputs)
            if anchor.name in config.optional_outputs
            and LENGTH_AXIS in lengths.outputs.get(anchor.name, ())
        ),
    )
    return replace(plan, ragged=ragged)


def _may_be_ragged(plan: BatchPlan) -> bool:
    """Return whether a run takes any number of rows, each once."""
    once = all(rows.transfers == 1 for rows in (*plan.inputs, *plan.outputs))
    return plan.max_units > 1 and not plan.run_units and not plan.dim and once


def _plan_of(
    model: Model, anchors: MainAnchors, config: ModelRunnerConfig
) -> BatchPlan:
    metadata = model.metadata
    fixed = _batch_size(metadata, OPTION_BATCH_SIZE)
    most = fixed or _batch_size(metadata, OPTION_MAX_BATCH)
    transfers = _transfers(model)
    carried = (*anchors.inputs, *anchors.outputs)
    allowed = metadata.option(OPTION_BATCHING) == BATCHING_ROWS
    if config.batching is not None:
        allowed = config.batching
    dim = config.batching_dim
    if dim is None:
        dim = 0 if allowed else NO_BATCHING_DIM
    if dim != NO_BATCHING_DIM:
        mixed = config.batching is not False
        return _by_rows(anchors, transfers, dim, _most(config, most, mixed))
    if allowed and not fixed and not all(_size(a, 0) > 0 for a in carried):
        if not carried or any(_size(a, 0) != -1 for a in carried):
            raise InvalidConfig(
                f"model {metadata.executable!r} cannot be batched: not all inputs "
                "and outputs have a free first dimension"
            )
        return _by_rows(anchors, transfers, 0, _most(config, most, mixed=True))
    exact = config.batching_dim is None and not any(n > 1 for n in transfers.values())
    if carried and not exact and all(_size(a, 0) > 0 for a in carried):
        return _by_batches(anchors, transfers, config.batching is not False)
    return BatchPlan(
        0,
        0,
        0,
        0,
        tuple(_free(a, transfers) for a in anchors.inputs),
        tuple(_free(a, transfers) for a in anchors.outputs),
    )


def _by_rows(
    anchors: MainAnchors, transfers: Mapping[str, int], dim: int, most: int
) -> BatchPlan:
    """Return a plan that takes any number of rows along `dim` and regroups them to the
    compiled batch.
    """
    carried = (*anchors.inputs, *anchors.outputs)
    sizes = {a.name: _size(a, dim) for a in carried}
    counts = {transfers.get(a.handle, 1) for a in carried}
    size = next(iter(sizes.values()), 0)
    if len(set(sizes.values())) > 1 or not (size > 0 or size == -1):
        raise InvalidConfig(
            f"batching_dim {dim} must be a dimension of all inputs and outputs, with "
            f"one size (-1: free, 0: missing), got {sizes}"
        )
    if len(counts) > 1:
        raise InvalidConfig(
            "rows cannot be regrouped: a run does not transfer all inputs and outputs "
            "equally often"
        )
    size, count = max(0, size), counts.pop()
    run = size * count
    inputs, outputs = (
        tuple(AnchorRows(a.name, size, 1, count) for a in group)
        for group in (anchors.inputs, anchors.outputs)
    )
    most = max(run, most) if most else 0
    return BatchPlan(dim, run, size, most, inputs, outputs)


def _by_batches(
    anchors: MainAnchors, transfers: Mapping[str, int], mixed: bool
) -> BatchPlan:
    """Return a plan of whole compiled batches, or of whole runs if a run needs more
    batches of one anchor than of another.
    """
    carried = (*anchors.inputs, *anchors.outputs)
    counts = {transfers.get(a.handle, 1) for a in carried}
    run = counts.pop() if len(counts) == 1 else 1

    def rows(anchor: Anchor) -> AnchorRows:
        size, count = _size(anchor, 0), transfers.get(anchor.handle, 1)
        return AnchorRows(anchor.name, size, size * count // run, count)

    return BatchPlan(
        0,
        run,
        1,
        run if mixed and run > 1 else 0,
        tuple(rows(a) for a in anchors.inputs),
        tuple(rows(a) for a in anchors.outputs),
    )


def _free(anchor: Anchor, transfers: Mapping[str, int]) -> AnchorRows:
    return AnchorRows(anchor.name, transfers=transfers.get(anchor.handle, 1))


def _size(anchor: Anchor, dim: int) -> int:
    """Return the size in `dim`: -1 if it is free, 0 if the dimension does not exist.

    A scalar is 1 row.
    """
    shape = anchor.tensor_info.shape
    if shape is None:
        return 0
    if not shape:
        return 1 if dim == 0 else 0
    return shape[dim] if dim < len(shape) else 0


def _most(config: ModelRunnerConfig, most: int, mixed: bool) -> int:
    if not mixed:
        return 0
    return config.max_batch_size or most or DEFAULT_MAX_BATCH


def _batch_size(metadata: Metadata, option: str) -> int:
    text = metadata.option(option) or "0"
    if not (text.isdecimal() and len(text) < 10 and int(text) <= MAX_BATCH):
        raise InvalidModel(f"batch size {text!r} of the file is no size")
    return int(text)


def _transfers(model: Model) -> Mapping[str, int]:
    """Return how often a run transfers each stream, if a run can transfer one more than
    once.
    """
    metadata = model.metadata
    if metadata.device_iterations <= 1:
        return {}
    executable = Executable.decode(model.executable.raw())
    return stream_transfers(executable, metadata.program_flow.main)
