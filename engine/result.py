"""The result of an execute call: a mapping of arrays that waits when it is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from engine.errors import EngineError, InvalidInput
from engine.request import Request
from engine.tensor import Array, DataDesc


class ExecuteResult(Mapping[str, Array]):
    """Name to numpy array. With caller-owned memory the arrays are the caller's."""

    def __init__(
        self, descs: Sequence[DataDesc], targets: Mapping[str, Array] | None
    ) -> None:
        self._arrays: dict[str, Array] = {}
        self._targets = targets
        self._failure: EngineError | None = None
        self._taken = False
        self.request: Request | None = None
        names = [desc.name for desc in descs]
        for name in targets or ():
            if name not in names:
                raise InvalidInput(f"the model has no output {name!r}; it has {names}")

    def take(self, request: Request) -> None:
        """Called when the request is done, in the thread that resolves it."""
        if request.error is None:
            self._take(request)
        self._taken = True

    def _take(self, request: Request) -> None:
        for name, tensor in request.outputs.items():
            array = tensor.numpy()
            if self._targets is None:
                # A private, writable copy: the request's bytes are read-only.
                self._arrays[name] = array.copy()
            elif name in self._targets:
                try:
                    np.copyto(self._targets[name], array, casting="no")
                except (TypeError, ValueError) as error:
                    self._failure = InvalidInput(f"output {name!r}: {error}")
                self._arrays[name] = self._targets[name]
        for name in self._targets or ():
            if name not in request.outputs:
                self._failure = InvalidInput(
                    f"output {name!r} was asked for, but the program did not write it"
                )

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the result is there, at most `timeout` seconds; whether it is.

        Raises how the request failed.
        """
        request = self.request
        if request is None or not request.wait(timeout):
            return False
        if not self._taken:
            request.channel.join()  # it is being taken by the thread that resolves it
        error = request.error or self._failure
        if error is not None:
            raise error.again()
        return True

    def __getitem__(self, name: str) -> Array:
        self.wait()
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        self.wait()
        return iter(self._arrays)

    def __len__(self) -> int:
        self.wait()
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<ExecuteResult of {self.request!r}>"
