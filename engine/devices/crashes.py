"""Whose doing it was that a device process crashed, and how often lately.

A process that dies of what it does (a bug of ONNX Runtime that a graph or an input
brings to light, a file that is cut short under its mapping) takes every model of its
device along. It comes back, and if the same model does that again and again, the
others would never be served: that model is given up.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

#: What a process dies of by its own doing. SIGKILL comes from outside: from an
#: operator, or from the kernel where memory is short.
CRASHES = frozenset({"SIGSEGV", "SIGBUS", "SIGABRT", "SIGILL", "SIGFPE"})
#: A model is given up that has crashed its device so often
MOST = 3
#: within so many seconds.
WINDOW = 600.0


class Death(NamedTuple):
    """How a process has ended, in words; `culprit` is the model that crashed it, where
    that is known, for the `times`th time lately."""

    text: str
    culprit: str = ""
    times: int = 0

    @property
    def is_once_too_often(self) -> bool:
        """Whether the model is to be given up."""
        return self.times >= MOST

    def __str__(self) -> str:
        by = f", while model {self.culprit!r} was at work" if self.culprit else ""
        return f"{self.text}{by}"


class Crashes:
    """What is being loaded on a device, and the crashes of its processes by model.

    The caller holds the device's lock, except for `loading`.
    """

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}
        self._loading: list[str] = []

    @contextmanager
    def loading(self, name: str) -> Iterator[None]:
        """A model is being loaded meanwhile."""
        self._loading.append(name)
        try:
            yield
        finally:
            self._loading.remove(name)

    def judge(self, how: str, running: str) -> Death:
        """Of a process that has ended by a signal of this name, or otherwise. `running`
        is the model that ran, if any did.

        No model is named if several were at work.
        """
        suspects = {*self._loading, running} - {""}
        text = f"its process died of {how}"
        if how not in CRASHES or len(suspects) != 1:
            return Death(text)
        (culprit,) = suspects
        now = time.monotonic()
        times = [t for t in self._times.get(culprit, ()) if now - t < WINDOW]
        self._times[culprit] = [*times, now]
        return Death(text, culprit, len(times) + 1)

    def __repr__(self) -> str:
        return f"<Crashes { ({n: len(t) for n, t in self._times.items()}) }>"
