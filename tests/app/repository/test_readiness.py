"""Readiness: which parts are missing, and what is said of them without a key.

Covers: app/stage.py.
"""

from __future__ import annotations

from pathlib import Path

from app.repository.places import ModelPlaces
from app.repository.readiness import Readiness, readiness_of
from app.repository.records import ModelRecords
from app.stage import Phase, Stage


def readiness(stage: Stage, records: ModelRecords, **how: bool) -> Readiness:
    wanted = {"is_strict": False, "names_models": True, **how}
    return readiness_of(stage, records, **wanted)


def test_a_server_is_ready_while_it_serves(tmp_path: Path) -> None:
    stage, records = Stage(), ModelRecords(ModelPlaces(tmp_path), "")
    assert readiness(stage, records).reasons == ["the gateway is starting"]
    assert stage.is_starting
    stage.enter(Phase.LOADING)
    assert readiness(stage, records).reasons == ["the gateway is loading models"]
    assert not stage.has_started
    stage.enter(Phase.SERVING)
    assert readiness(stage, records) == Readiness(ready=True)
    assert stage.has_started
    stage.drain()
    assert readiness(stage, records).reasons == ["the gateway is drained"]
    stage.enter(Phase.ENDING)
    assert readiness(stage, records).reasons == ["the gateway is shutting down"]
    assert stage.has_started
    assert stage.is_ending
    assert not stage.is_starting


def test_failed_models_are_named_to_everybody_or_to_nobody(tmp_path: Path) -> None:
    stage, records = Stage(), ModelRecords(ModelPlaces(tmp_path), "")
    stage.enter(Phase.SERVING)
    records.record("coming").is_pending = True
    records.record("broken").reason = "no such operator"
    found = readiness(stage, records)
    assert found.reasons == ["no model could be loaded"]
    assert found.loading == ["coming"]
    assert found.failed == {"broken": "no such operator"}
    hidden = readiness(stage, records, names_models=False)
    assert hidden == Readiness(ready=False, reasons=found.reasons)
