"""Results of execute calls (Model Runtime User Guide 3.1).

On every supported Python, only subclasses of numpy's array can have both the buffer
protocol and a method `numpy`. So the future arrays are such arrays, and accessing one
in a result waits for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from engine import Array, ExecuteResult
from model_runtime.memory import ByName, wrong_name
from model_runtime.tensor_memory import TensorMemory, TensorMemoryView
from popef.taking import NotPickled, text


class OutputMemory(ByName[Array]):
    """Memory of the outputs, by name: arrays, or `TensorMemory` if the request was a
    view.
    """


class FuturePyArray(TensorMemory):
    """An output in memory of the library.

    `np.array(x, copy=False)` is a view of it, also with NumPy 2.
    """

    def numpy(self) -> Array:
        """Return a copy."""
        return np.array(self, copy=True)


class FuturePyArrayView(TensorMemoryView):
    """An output in the caller's memory; `np.array(x, copy=False)` is a view of it."""

    def numpy(self) -> Array:
        """Return a view of the caller's memory."""
        return self.view(np.ndarray)


class OutputFutureMemory(NotPickled, Mapping[str, Array]):
    """The result of `executeAsync`: arrays by name. The first access waits for the
    result.

    The result refers to `runner`, which must not end before the result.
    """

    _array: type[FuturePyArray] | type[FuturePyArrayView] = FuturePyArray

    def __init__(self, result: ExecuteResult, runner: object) -> None:
        self._result = result
        self._runner = runner

    def wait(self) -> None:
        """Wait for the result. Raises the error of a failed request."""
        self._result.wait()

    def memory(self, *, as_memory: bool) -> OutputMemory:
        """Return the outputs as arrays or `TensorMemory`, like `execute` (an addition
        of PopGate).
        """
        arrays = self._result.arrays()
        if as_memory:
            arrays = {k: array.view(TensorMemory) for k, array in arrays.items()}
        return OutputMemory(arrays)

    def __getitem__(self, name: str) -> FuturePyArray | FuturePyArrayView:
        try:
            return self._result[name].view(self._array)
        except KeyError:
            key = text(name, "the name of a tensor")
            if key in self._result:
                return self._result[key].view(self._array)
        raise wrong_name(name, self)

    def __iter__(self) -> Iterator[str]:
        return iter(self._result)

    def __len__(self) -> int:
        return len(self._result)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._result.request!r}>"


class OutputFutureMemoryView(OutputFutureMemory):
    """`OutputFutureMemory` whose arrays lie in the caller's memory."""

    _array = FuturePyArrayView
