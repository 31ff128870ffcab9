"""A limit on the total time of several runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from engine.programs.session import RunOptions


class TimeLimit:
    """A context in which runs with `options` end after `seconds` (0: never).

    `make_options` makes the options of a run. ONNX Runtime ends a run before its next
    node. The executor ends it before its next turn of a loop (`Cancelled`). A run that
    cannot be ended ends with its process.
    """

    def __init__(self, seconds: float, make_options: Callable[[], RunOptions]) -> None:
        self.seconds = seconds
        self.options = make_options()
        self._timer: threading.Timer | None = None
        if seconds:
            self._timer = threading.Timer(seconds, self._end)
            self._timer.daemon = True

    @property
    def is_over(self) -> bool:
        return bool(self.options.terminate)

    def _end(self) -> None:
        self.options.terminate = True

    def __enter__(self) -> Self:
        if self._timer is not None:
            self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
