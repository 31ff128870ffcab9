"""Target arrays of one request's outputs, filled directly from their slots."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from engine.errors import InvalidInput
from engine.tensor import Array
from engine.transport.result_memory import LEAST_BYTES, RESULT_MEMORY
from popef_io import DataType, decode_strings

#: Below this many bytes, numpy's overhead costs more than the copy.
_SMALL = 4096


class OutputArrays:
    """The arrays of a request's outputs: the caller's (`targets`), or new ones.

    The thread that resolves the request fills them, under the lock of its device.
    """

    __slots__ = ("arrays", "failure", "targets")

    def __init__(self, targets: Mapping[str, Array] | None) -> None:
        self.targets = targets
        self.arrays: dict[str, Array] = {}
        #: The reason why outputs do not fit into the caller's arrays.
        self.failure: InvalidInput | None = None

    def add(
        self,
        name: str,
        data_type: DataType,
        shape: tuple[int, ...],
        payload: memoryview,
        start: int,
        nbytes: int,
    ) -> None:
        """Copy an output, which is `nbytes` bytes of `payload` from `start` on."""
        target = None
        if self.targets is not None:
            target = self.targets.get(name)
            if target is None:
                return
            self.arrays[name] = target
        if data_type is DataType.STRING:
            strings = decode_strings(payload[start : start + nbytes], shape)
            if target is None:
                self.arrays[name] = strings
            else:
                self._fill(name, target, strings)
            return
        dtype = data_type.numpy_dtype
        if target is None:
            if not nbytes:
                self.arrays[name] = np.empty(shape, dtype)
                return
            source: Array = np.ndarray(shape, dtype, payload, start)
            if nbytes < LEAST_BYTES:
                self.arrays[name] = source.copy()
                return
            array = RESULT_MEMORY.array(shape, dtype, nbytes)
            np.copyto(array, source)
            self.arrays[name] = array
            return
        if 0 < nbytes < _SMALL and target.shape == shape and target.dtype == dtype:
            try:
                target.data.cast("B")[:] = payload[start : start + nbytes]
            except (TypeError, ValueError, BufferError):  # not contiguous, or read-only
                pass
            else:
                return
        if nbytes:
            self._fill(name, target, np.ndarray(shape, dtype, payload, start))
        else:
            self._fill(name, target, np.empty(shape, dtype))

    def _fill(self, name: str, target: Array, source: Array) -> None:
        try:
            np.copyto(target, source, casting="no")
        except (TypeError, ValueError) as error:
            self.failure = InvalidInput(f"output {name!r}: {error}")

    def finish(self) -> None:
        """Record that all outputs have been taken."""
        for name in self.targets or ():
            if name not in self.arrays:
                self.failure = InvalidInput(
                    f"the program did not write output {name!r}, which was requested"
                )

    def __repr__(self) -> str:
        whose = "new" if self.targets is None else "the caller's"
        return f"<OutputArrays {list(self.arrays)}, {whose}>"
