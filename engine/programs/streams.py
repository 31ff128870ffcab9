"""Streams of a program: the interface between programs and the data path."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

import numpy as np

from engine.programs.session import RunOptions
from engine.tensor import Array


class Streams(Protocol):
    """Streams that a program reads and writes, by handle."""

    def read(self, handle: str) -> Array:
        """Return the next data of an INPUT anchor.

        The data stays valid and unchanged until the program has run. A weight (a
        variable that only load programs write) stays so until the executor is closed.
        Strings are an object array of `bytes` or `str`. BF16 is uint16 holding the
        bits.
        """
        ...

    def output_memory(
        self, handle: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        """Return C-contiguous memory for the data that `write` will bring, or None.

        Called just before the graph runs, only for large outputs
        (`engine.programs.output_binding.BIND_FROM`) whose shape is known. The write may
        still not come if the graph fails. It may bring another array if the model
        states a wrong shape.
        """
        ...

    def write(self, handle: str, value: Array) -> None:
        """Write data of an OUTPUT anchor. The data is valid until the program has run.

        If `value` is the array that `output_memory` returned, the data is already in
        place. Strings are an object array of `str`.
        """
        ...


class ChoosingStreams(Streams, Protocol):
    """Streams of requests that need not have every input."""

    def brings(self, handle: str) -> bool:
        """Return whether the requests of this run have the input."""
        ...


Step: TypeAlias = Callable[[Streams, RunOptions], None]
"""A program, or a part of one, ready to run."""


def look_for_signals() -> None:
    """Run the handlers of pending signals, because compiled code never does so.

    CPython checks for signals at the start of an interpreted function such as this one,
    which therefore must not be compiled.
    """
