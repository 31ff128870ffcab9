"""Calls and questions of a device process that its owner has not answered yet."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

from engine.errors import EngineError
from engine.tensor import Array
from popgate_python_messages.call_messages import ClientRequests

Outputs: TypeAlias = dict[str, Array]
Result: TypeAlias = Outputs | ClientRequests | bool | EngineError


class PendingCall:
    """A call under way. The caller must call `end`, however the call ends.

    `on_done` is called in the thread that receives the answers. `on_end` is called with
    the call's number.
    """

    def __init__(
        self,
        number: int,
        on_end: Callable[[int], object],
        on_done: Callable[[], object] = bool,
    ) -> None:
        self.number = number
        self._on_end, self._on_done = on_end, on_done
        self._done = threading.Event()
        self._result: Result | None = None

    def receive(self, result: Result, more: bool) -> None:
        """Store an answer. `more` is true if further responses follow."""
        self._result = result
        self._done.set()
        self._on_done()

    def wait(self) -> None:
        """Wait until the call is answered or cancelled."""
        self._done.wait()

    def give_up(self) -> None:
        """Cancel the call. Callable from any thread."""
        self._done.set()

    def end(self) -> None:
        """End the call if it is done, or cancel it now."""
        self._on_end(self.number)

    @property
    def result(self) -> Result | None:
        """Return the answer; None before it arrives. Raises the error of a
        failed call.
        """
        if isinstance(self._result, EngineError):
            raise self._result
        return self._result

    def outputs(self) -> Outputs:
        """Return the outputs of a finished call. Raises its error."""
        found = self.result
        assert isinstance(found, dict)
        return found


class PendingStream(PendingCall):
    """A pending call that takes several responses."""

    def __init__(self, number: int, on_end: Callable[[int], object]) -> None:
        super().__init__(number, on_end)
        #: None follows the last response.
        self._responses: queue.SimpleQueue[Outputs | None] = queue.SimpleQueue()

    def receive(self, result: Result, more: bool) -> None:
        super().receive(result, more)
        if isinstance(result, dict) and result:
            self._responses.put(result)
        if not more:
            self._responses.put(None)

    def give_up(self) -> None:
        """End the responses, because no more are needed."""
        self._responses.put(None)

    def __iter__(self) -> Iterator[Outputs]:
        """Yield the responses. Raise the error of a failed call after the last
        response.
        """
        yield from iter(self._responses.get, None)
        _ = self.result
