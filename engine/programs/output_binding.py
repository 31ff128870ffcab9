"""Lets ONNX Runtime compute large outputs directly into memory of the streams.

The shape of an output must be known before the run. So each dimension must be a number,
or a symbol that an input also has. The input's size is then the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, TypeAlias

import numpy as np

from engine.errors import ExecutionFailed
from engine.programs.session import BoundShapeMismatch, GraphSession, RunOptions
from engine.programs.streams import Streams
from engine.tensor import Array
from popef_io import DataType

BIND_FROM: Final = 128 * 1024
"""Binding an output pays from this many bytes on. Binding costs 5 to 8 µs more than
taking a new array, as much as copying this many bytes.
"""

InputAxis: TypeAlias = tuple[str, int]
"""An input, and one of its axes."""
Dimension: TypeAlias = int | InputAxis
"""A size, or the place where it can be read."""


class Offer:
    """An output that can be bound once its shape is known."""

    __slots__ = ("dims", "dtype", "handle", "known", "output")

    def __init__(
        self,
        output: str,
        handle: str,
        dtype: np.dtype[Any],
        dims: tuple[Dimension, ...],
    ) -> None:
        self.output = output
        self.handle = handle
        self.dtype = dtype
        self.dims = dims
        fixed = tuple(d for d in dims if isinstance(d, int))
        self.known = fixed if len(fixed) == len(dims) else None

    @property
    def is_small(self) -> bool:
        """Return whether the output can never reach `BIND_FROM`."""
        return self.known is not None and not _is_large(self.known, self.dtype)

    def ask(self, streams: Streams, feed: Mapping[str, Array]) -> Array | None:
        """Return the memory for this run, if the output is large and the stream offers
        some.
        """
        shape = self.known
        if shape is None:
            try:
                shape = tuple(
                    [
                        d if isinstance(d, int) else feed[d[0]].shape[d[1]]
                        for d in self.dims
                    ]
                )
            except IndexError:  # the run will refuse an input of the wrong rank
                return None
            if not _is_large(shape, self.dtype):
                return None
        return streams.output_memory(self.handle, shape, self.dtype)


def offers_for(
    session: GraphSession, handles: Mapping[str, str], types: Mapping[str, DataType]
) -> tuple[Offer, ...]:
    """Return the outputs that may be bound, among the outputs that are streamed through
    `handles`.
    """
    offers = []
    for name, handle in handles.items():
        dims = _dimensions(session, name)
        # If an input is also an output, ONNX Runtime passes it through and ignores the
        # bound memory.
        if dims is None or name in session.inputs:
            continue
        offer = Offer(name, handle, types[name].numpy_dtype, dims)
        if not offer.is_small:
            offers.append(offer)
    return tuple(offers)


def gate_of(offers: Sequence[Offer]) -> tuple[InputAxis, int] | None:
    """Return the single dimension that all `offers` depend on, and the size from which
    one of them is large. Return None if they depend on several dimensions.
    """
    sources: set[InputAxis] = set()
    least = []
    for offer in offers:
        free = [d for d in offer.dims if not isinstance(d, int)]
        if len(free) != 1:
            return None
        sources.update(free)
        row = prod(d for d in offer.dims if isinstance(d, int)) * offer.dtype.itemsize
        least.append(-(-BIND_FROM // row) if row else 1 << 62)
    return (sources.pop(), min(least)) if len(sources) == 1 else None


class BoundRun:
    """Runs a graph. Binds the outputs for which the streams offer memory.

    With `always` it binds even if the streams offer no memory. Not thread-safe.
    """

    __slots__ = (
        "_binding",
        "_error_of",
        "_input_types",
        "_names",
        "_output_types",
        "_run",
        "always",
        "offers",
    )

    def __init__(
        self,
        session: GraphSession,
        input_types: Mapping[str, DataType],
        output_types: Mapping[str, DataType],
        offers: tuple[Offer, ...],
        always: bool,
    ) -> None:
        self._binding = session.binding()
        self._run = session.raw_run
        self._error_of = session.error_of
        self._names = list(output_types)
        self._input_types = input_types
        self._output_types = output_types
        self.offers = offers
        self.always = always

    def __call__(
        self, streams: Streams, feed: dict[str, Array], options: RunOptions
    ) -> list[Array]:
        """Return the outputs in order. Bound outputs are in the streams' own memory."""
        memory = {}
        for offer in self.offers:
            given = offer.ask(streams, feed)
            if given is not None:
                memory[offer.output] = given
        try:
            if memory or self.always:
                return self._bound(feed, memory, options)
            return self._run(self._names, feed, options)
        except Exception as error:
            raise self._error_of(error, options) from None

    def _bound(
        self, feed: dict[str, Array], memory: dict[str, Array], options: RunOptions
    ) -> list[Array]:
        types = self._input_types
        inputs = [(n, types[n], _bindable(a, types[n], n)) for n, a in feed.items()]
        outputs = [(n, t, memory.get(n)) for n, t in self._output_types.items()]
        try:
            return self._binding.run(inputs, outputs, options)
        except BoundShapeMismatch:
            # The shapes that the model states are wrong. ONNX Runtime tolerates that,
            # so we do too.
            unbound = [(n, t, None) for n, t in self._output_types.items()]
            return self._binding.run(inputs, unbound, options)


def _is_large(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bool:
    return prod(shape) * dtype.itemsize >= BIND_FROM


def _dimensions(session: GraphSession, output: str) -> tuple[Dimension, ...] | None:
    """Return a rule for the shape of `output` before the run; None if the shape cannot
    be known.
    """
    shape = session.outputs[output].shape
    if not shape:
        return None  # binding a scalar or an unknown shape does not pay
    symbols: dict[str, InputAxis] = {}
    for name, port in session.inputs.items():
        for axis, size in enumerate(port.shape):
            if isinstance(size, str):
                symbols.setdefault(size, (name, axis))
    dims: list[Dimension] = []
    for size in shape:
        if isinstance(size, int) and size >= 0:
            dims.append(size)
        elif isinstance(size, str) and size in symbols:
            dims.append(symbols[size])
        else:
            return None
    return tuple(dims)


def _bindable(array: Array, data_type: DataType, name: str) -> Array:
    """Return `array` with the type and layout that binding needs. Binding does not
    check them.
    """
    if array.dtype != data_type.numpy_dtype:
        raise ExecutionFailed(
            f"input {name!r} must be {data_type.numpy_dtype}, got {array.dtype}",
            callers_fault=True,
        )
    return array if array.flags.c_contiguous else array.copy()
