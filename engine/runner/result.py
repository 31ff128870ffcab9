"""The result of an execute call: a mapping of arrays that waits on first access."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import SupportsFloat

from engine.devices.request import Request
from engine.tensor import Array
from engine.transport.output_arrays import OutputArrays


class ExecuteResult(Mapping[str, Array]):
    """A mapping from name to numpy array. With caller-owned memory the arrays are the
    caller's.

    Arrays made by the library belong to the caller: they may be modified and stay valid
    after the runner is closed.
    """

    def __init__(self, outputs: OutputArrays, request: Request) -> None:
        self._outputs = outputs
        self._there = False
        self.request = request

    def wait(self, timeout: SupportsFloat | None = None) -> bool:
        """Wait until the result is there, at most `timeout` seconds.

        Return whether it is.

        Raises the request's error, and WrongProcess in a forked child. A result that
        came before the fork is available in the child too.
        """
        if self._there:
            return True
        request = self.request
        if not request.wait(None if timeout is None else float(timeout)):
            return False
        error = request.error or self._outputs.failure
        if error is not None:
            raise error.again()
        self._there = True
        return True

    def arrays(self) -> dict[str, Array]:
        """Wait for the result, and return all arrays in a new dictionary.

        Raises the request's error.
        """
        self.wait()
        return dict(self._outputs.arrays)

    def __getitem__(self, name: str) -> Array:
        self.wait()
        return self._outputs.arrays[name]

    def __iter__(self) -> Iterator[str]:
        self.wait()
        return iter(self._outputs.arrays)

    def __len__(self) -> int:
        self.wait()
        return len(self._outputs.arrays)

    def __repr__(self) -> str:
        return f"<ExecuteResult of {self.request!r}>"
