"""Immutable snapshots of what is going on; what metrics and logs show."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """Of a `ModelRunner`: replicas and how many are ready, requests in flight,
    late answers that nobody waited for, restarts of its devices."""

    name: str
    replicas: int
    ready: int
    in_flight: int
    late: int
    restarts: int
