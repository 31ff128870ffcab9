"""The interface of a graph that can run: an ONNX Runtime session or a Python model.

This module does not use ONNX Runtime, so a device process of Python models needs none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from engine.errors import EngineError
from engine.tensor import Array
from popef_io import DataType

RunOptions: TypeAlias = Any
"""Options of the session's kind (`onnxruntime.RunOptions`), or None for the defaults.
Setting `terminate` on it from another thread ends the run with `Cancelled`."""
RawRun: TypeAlias = Callable[[Sequence[str], dict[str, Array], RunOptions], list[Array]]


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a graph from the view of the session."""

    name: str
    type_name: str
    """ONNX Runtime's name of the type, such as `tensor(float)` or
    `seq(tensor(int64))`.
    """
    data_type: DataType | None
    """None if the engine has no such type."""
    shape: tuple[int | str | None, ...]
    """Each dimension is a number, the name of a symbolic dimension, or None.

    An empty shape may mean that the shape is unknown.
    """


class GraphSession(Protocol):
    """A loaded graph."""

    inputs: Mapping[str, Port]
    outputs: Mapping[str, Port]
    raw_run: RawRun
    """`raw_run(output_names, feed, run_options)`; its exceptions go to `error_of`."""
    run_strings: RawRun
    """`raw_run` for a graph with strings, which the feed has as `bytes` or `str`. The
    feed may be empty afterwards.
    """
    is_onnx: bool
    """True if ONNX Runtime runs the graph. Outputs can then be bound to memory, and
    BF16 must be bound.
    """

    def error_of(self, error: BaseException, options: RunOptions) -> EngineError:
        """Return the error to raise if a run with `options` failed with `error`."""
        ...

    def binding(self) -> GraphBinding:
        """Return a new binding of this session, for one thread. Only ONNX sessions have
        one.
        """
        ...


class GraphBinding(Protocol):
    """Inputs and outputs of one run, bound to memory."""

    def run(
        self,
        inputs: Sequence[tuple[str, DataType, Array]],
        outputs: Sequence[tuple[str, DataType, Array | None]],
        run_options: RunOptions = None,
    ) -> list[Array]: ...


class BoundShapeMismatch(Exception):
    """The output has another shape than the memory given for it."""
