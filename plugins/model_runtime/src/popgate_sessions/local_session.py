"""A session in the caller's own process: the same executor, with streams over arrays.

For building and training, never for serving: it shares nothing with other processes,
and a crash in a run ends the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

import numpy as np

from engine.devices.cores import usable_cores
from engine.errors import UnknownAnchor
from engine.programs.executable import Executable
from engine.programs.executor import Executor
from engine.tensor import Array
from popef_io import Metadata

Source: TypeAlias = "Array | Callable[[], Array]"
Target: TypeAlias = "Array | Callable[[Array], object]"


class LocalSession:
    """Runs the programs of an executable in the calling thread.

    threads: threads of ONNX Runtime for one operator; default: one for each usable
    core. Raises InvalidModel if a graph cannot be loaded. Not thread-safe.
    """

    def __init__(
        self, executable: Executable, metadata: Metadata, *, threads: int | None = None
    ) -> None:
        count = threads or usable_cores()
        self._executor = Executor(executable, metadata, threads=count)

    def run(
        self,
        programs: Iterable[int],
        inputs: Mapping[str, Source] | None = None,
        outputs: Mapping[str, Target] | None = None,
    ) -> None:
        """Run `programs`, one after the other.

        `inputs` and `outputs` are by stream handle. The first dimension of each array
        counts transfers, from 0 in every call, and starts again after the last. An
        output may also be a function that is called with each array, which it must copy
        to keep; an input may be a function that returns the next array. Weights
        (variables that only load programs write) are read when those run and must stay
        unchanged until the session is closed. Raises the errors of `Executor.run`, and
        UnknownAnchor for a missing stream.
        """
        self._executor.run(programs, _Arrays(inputs or {}, outputs or {}))

    def close(self) -> None:
        """Give back all memory. Idempotent."""
        self._executor.close()


class _Arrays:
    """Streams of one call of `run`."""

    def __init__(
        self, inputs: Mapping[str, Source], outputs: Mapping[str, Target]
    ) -> None:
        self._inputs = inputs
        self._outputs = outputs
        self._read: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._offered: dict[str, Array] = {}

    def read(self, handle: str) -> Array:
        array = self._inputs.get(handle)
        if array is None:
            raise UnknownAnchor(
                f"the input stream {handle!r} has no data; pass an array or a "
                "function for it"
            )
        if not isinstance(array, np.ndarray):
            return array()
        at = self._read.get(handle, 0)
        self._read[handle] = at + 1
        result: Array = np.asarray(array[at % len(array)])
        return result

    def output_memory(
        self, handle: str, shape: tuple[int, ...], dtype: np.dtype[Any]
    ) -> Array | None:
        target = self._outputs.get(handle)
        if not isinstance(target, np.ndarray) or target.dtype != dtype:
            return None
        at = self._written.get(handle, 0) % len(target)
        memory: Array = target[at]
        if memory.shape != shape or not memory.flags.c_contiguous:
            return None
        self._offered[handle] = memory
        return memory

    def write(self, handle: str, value: Array) -> None:
        target = self._outputs.get(handle)
        if target is None:
            raise UnknownAnchor(
                f"the output stream {handle!r} has no destination; pass an array "
                "or a function for it"
            )
        if not isinstance(target, np.ndarray):
            target(value)
            return
        at = self._written.get(handle, 0)
        self._written[handle] = at + 1
        if value is not self._offered.pop(handle, None):
            target[at % len(target)] = value
