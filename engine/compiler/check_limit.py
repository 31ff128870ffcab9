"""The time that all trial runs of one model may take together."""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Self

from engine.onnx_session import make_run_options


class CheckLimit:
    """A context in which runs with `options` end after `seconds`, all of them.

    ONNX Runtime ends a run before its next node, the executor before its next step;
    what cannot be ended, ends with the process that compiles.
    """

    def __init__(self, seconds: float) -> None:
        self.options = make_run_options()
        self.reason = f"the check was given up after {seconds:g} s"
        """A clause for people."""
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    @property
    def is_over(self) -> bool:
        return bool(self.options.terminate)

    def _end(self) -> None:
        self.options.terminate = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._timer.cancel()
