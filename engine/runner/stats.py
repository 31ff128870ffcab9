"""Immutable snapshots of the runner's state, for metrics and logs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """State of a `ModelRunner`: replicas and how many are ready, requests in flight,
    those that no run has taken, their lines (by level and weight), late answers to
    cancelled requests, restarts of its devices.
    """

    name: str
    replicas: int
    ready: int
    in_flight: int
    awaiting: int
    lines: int
    late: int
    restarts: int
