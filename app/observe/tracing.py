"""Tracing of requests, by a plugin of the group `popgate.tracers`.

Everything here belongs to the event loop's thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from app.observe.journal import Answered
from engine import Tensor


class Tracer(Protocol):
    """Samples the requests of a model."""

    def wants(self) -> bool:
        """Count the next request, and return whether it is in the sample."""

    def record(
        self,
        request_id: str,
        answered: Answered,
        sent: int,
        inputs: Mapping[str, Tensor],
        outputs: Mapping[str, Tensor],
    ) -> None:
        """Write one request of the sample. It was handed to the connection at `sent`,
        in nanoseconds of the monotonic clock.
        """


class Tracing:
    """The tracers of a server. Without a plugin nothing is traced."""

    def tracer(self, model: str) -> Tracer | None:
        """Return the sampler of a model's requests; None if nothing is traced."""
        return None

    def subscribe(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after every change of the tracers."""

    def close(self) -> None:
        """Write the waiting entries, and trace nothing from now on."""
