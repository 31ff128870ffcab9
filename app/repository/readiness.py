"""Readiness of a server, and the missing parts."""

from __future__ import annotations

from dataclasses import dataclass, field

from app.repository.model_life import State
from app.repository.records import ModelRecords
from app.stage import Stage


@dataclass(frozen=True, slots=True)
class Readiness:
    """Readiness of a server, with the reason if it is not ready."""

    ready: bool
    reasons: list[str] = field(default_factory=list)
    loading: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def readiness_of(
    stage: Stage, records: ModelRecords, *, is_strict: bool, names_models: bool
) -> Readiness:
    """Return the readiness, for load balancers; cheap.

    A strict server is ready only if all models could be loaded. Models are named only
    if `names_models` is true, because the request needs no key.
    """
    reasons = []
    loading, failed = records.names_in(State.LOADING), records.problems()
    if not stage.is_serving:
        reasons.append(f"the gateway is {stage.phase}")
    elif stage.is_drained:
        reasons.append("the gateway is drained")
    lost = records.without_replica()
    if lost:
        which = f"; models: {', '.join(lost)}" if names_models else ""
        reasons.append(f"devices are lost and being restarted{which}")
    serving = records.names_in(State.READY, State.ON_DEMAND)
    if stage.is_serving and failed and not serving:
        reasons.append("no model could be loaded")
    elif failed and is_strict:
        reasons.append("some models could not be loaded")
    if not names_models:
        return Readiness(not reasons, reasons, [], {})
    return Readiness(not reasons, reasons, loading, failed)
