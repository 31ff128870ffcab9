"""`Sampler`: which requests get spans."""

from __future__ import annotations

import math
from collections.abc import Mapping

from app.observe.request_ids import trace_context
from engine import InvalidConfig

#: The share of requests with spans if no variable sets it (docs/how-to/observe.md).
SHARE = "0.005"
_LEAST = 1e-12


class Sampler:
    """Choice of the requests that get spans, by ``OTEL_TRACES_SAMPLER`` and ``…_ARG``.

    The names are OpenTelemetry's. Without the variables, the client's ``traceparent``
    decides. Of the requests without one, the share `SHARE` is in the sample. A share
    means every n-th request: `left` requests are skipped before the next.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        """Raise `engine.InvalidConfig` for an unknown name or an invalid share."""
        name = environment.get("OTEL_TRACES_SAMPLER", "") or "parentbased_traceidratio"
        is_default = not environment.get("OTEL_TRACES_SAMPLER", "")
        share = environment.get("OTEL_TRACES_SAMPLER_ARG", "")
        share = share or (SHARE if is_default else "1")
        self._asks_parent = name.startswith("parentbased_")
        kind = name.removeprefix("parentbased_")
        try:
            self._share = {"always_on": 1.0, "always_off": 0.0}.get(kind, float(share))
        except ValueError:
            self._share = -1.0
        kinds = ("always_on", "always_off", "traceidratio")
        if kind not in kinds or not 0 <= self._share <= 1:
            msg = f"OTEL_TRACES_SAMPLER={name!r}, OTEL_TRACES_SAMPLER_ARG={share!r}"
            expected = f"[parentbased_]{'|'.join(kinds)} and a share from 0 to 1"
            raise InvalidConfig(f"{msg}: expected {expected}")
        self._due = 0.0
        self.left = self._count_to_next()

    def _count_to_next(self) -> int:
        """Return the number of requests to skip before the next in the sample."""
        share = max(self._share, _LEAST)
        count = max(1, math.ceil((1.0 - self._due) / share))
        self._due += count * share - 1.0
        return count - 1

    def wants(self, traceparent: bytes) -> bool:
        """Count a request with this header; return whether it is in the sample."""
        if self._asks_parent and traceparent:
            context = trace_context(traceparent)
            if context is not None:
                return bool(context[2] & 1)
        if self.left:
            self.left -= 1
            return False
        self.left = self._count_to_next()
        return self._share > 0
