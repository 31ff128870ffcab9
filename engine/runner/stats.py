"""Immutable snapshots of the runner's state, for metrics and logs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RunnerStats:
    """State of a `ModelRunner`: its replicas and how many are ready, the requests in
    flight, and those that no run has taken. Also the lines of requests (by level and
    weight), late answers to cancelled requests, and restarts of its devices.
    """

    name: str
    replicas: int
    ready: int
    in_flight: int
    awaiting: int
    lines: int
    late: int
    restarts: int
