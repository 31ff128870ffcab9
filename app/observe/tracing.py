"""Tracing of requests, by a plugin of the group `popgate.tracers`.

Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from engine import Tensor


@dataclass(frozen=True, slots=True)
class Timeline:
    """Times at which a request reached each step, in nanoseconds of the monotonic
    clock.

    The first are the arrival of its head (`arrived`) and of its whole body
    (`received`). The last are the answer's completion (`encoded`) and its handover to
    the connection (`sent`).
    """

    arrived: int
    received: int
    decoded: int
    started: int
    computed: int
    encoded: int
    sent: int


class Tracer(Protocol):
    """Samples the requests of a model."""

    def wants(self) -> bool:
        """Count the next request, and return whether it is in the sample."""

    def record(
        self,
        model: tuple[str, str],
        request_id: str | None,
        timeline: Timeline,
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
    ) -> None:
        """Write one request of the sample; `model` is its name and version."""


class Tracing(Protocol):
    """The tracers of a server."""

    def tracer(self, model: str) -> Tracer | None:
        """Return the sampler of a model's requests; None if nothing is traced."""

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after every change of the tracers."""

    def close(self) -> None:
        """Write the waiting entries, and trace nothing from now on."""


class NoTracing:
    """The tracing of a server without such a plugin."""

    def tracer(self, model: str) -> Tracer | None:
        return None

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Ignore the callback, because the settings of these traces never change."""

    def close(self) -> None:
        """Do nothing, because there is nothing to write."""
