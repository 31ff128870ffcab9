"""The options of a run of a Python model."""

from __future__ import annotations

from collections.abc import Callable


class PlainOptions:
    """The options of a run without ONNX Runtime."""

    __slots__ = ("_callbacks", "_wanted")

    def __init__(self) -> None:
        self._wanted = True
        self._callbacks: tuple[Callable[[], object], ...] = ()

    @property
    def terminate(self) -> bool:
        """Return whether the run should end because no client waits for it."""
        return not self._wanted

    @terminate.setter
    def terminate(self, value: bool) -> None:
        # Set the flag first, then call the callbacks. `on_end` adds its callback first
        # and checks the flag then. So each callback is called at least once.
        self._wanted = not value
        if value:
            for callback in self._callbacks:
                callback()

    def on_end(self, callback: Callable[[], object]) -> None:
        """Register `callback`, which is called when the run should end. The call may
        come from another thread, and more than once.

        For the thread that runs.
        """
        self._callbacks = (*self._callbacks, callback)
        if not self._wanted:
            callback()

    def forget(self, callback: Callable[[], object]) -> None:
        """Unregister `callback`. A call may still be in progress."""
        self._callbacks = tuple(each for each in self._callbacks if each != callback)
