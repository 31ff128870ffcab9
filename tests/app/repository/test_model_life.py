"""The life of a model version: the table, its drawing, and a version that follows it.

python -m tests.app.repository.test_model_life     writes docs/reference/repository.md

Covers: app/repository/load_errors.py.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import cast

import pytest

from app.config.model_config import ModelConfig
from app.repository.model_life import LIFE, Action, Event, State
from app.repository.records import (
    LoadedModel,
    ModelRecord,
    VersionRecord,
    ready_version,
)
from app.repository.source import VersionSource

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "repository.md"
BEGIN, END = "test_model_life` -->\n", "<!-- end -->"


def drawing() -> str:
    """`LIFE` as the page has it: a diagram, and a row for all that ends alike."""
    arrows = {
        (state.value, transition.state.value): None
        for state, transitions in LIFE.items()
        for transition in transitions.values()
        if transition.state is not state
    }
    lines = ["```mermaid", "stateDiagram-v2", "    [*] --> unloaded"]
    lines += [f'    state "{State.ON_DEMAND.value}" as on_demand']
    lines += [f"    {a.replace(' ', '_')} --> {b.replace(' ', '_')}" for a, b in arrows]
    lines += [
        "```",
        "",
        "| What happens | In | Then | What is done |",
        "|" + " --- |" * 4,
    ]
    for event in Event:
        alike: dict[tuple[State, Action], list[str]] = {}
        for state, transitions in LIFE.items():
            if event in transitions:
                alike.setdefault(transitions[event], []).append(state.value)
        lines += [
            f"| {event.value} | {', '.join(states)} | {then.value} | {action.value} |"
            for (then, action), states in alike.items()
        ]
    return "\n".join(lines) + "\n"


def test_the_page_draws_the_table() -> None:
    shown = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    if shown != drawing():
        pytest.fail("run: python -m tests.app.repository.test_model_life")


def test_every_state_is_reached_and_left() -> None:
    reached = {
        transition.state
        for transitions in LIFE.values()
        for transition in transitions.values()
    }
    assert reached == set(State)
    assert set(LIFE) == set(State)
    used = {event for transitions in LIFE.values() for event in transitions}
    assert used == set(Event)
    assert {
        t.action for transitions in LIFE.values() for t in transitions.values()
    } == set(Action)


def test_only_what_is_in_memory_is_ready() -> None:
    """What serves is there in one state only, and every way out of it gives it back."""
    for state, transitions in LIFE.items():
        for transition in transitions.values():
            stays = transition.action in (Action.SERVE, Action.KEEP) or (
                transition.action is Action.LOAD and state is State.READY
            )
            assert (transition.state is State.READY) == stays


def _loaded(config: ModelConfig) -> LoadedModel:
    source = VersionSource(1, ())
    return LoadedModel(
        None,  # type: ignore[arg-type]
        None,  # type: ignore[arg-type]
        config,
        source,
        memory=0,
        loaded_at=0.0,
        warmed=False,
        scheduler=None,
    )


async def _load_nothing(record: ModelRecord, entry: VersionRecord) -> None:
    """A test brings the events of a load itself."""


def test_a_version_follows_the_table() -> None:
    entry = ModelRecord("m").version(1, _load_nothing)
    first, second = _loaded(ModelConfig()), _loaded(ModelConfig())
    assert entry.on(Event.LOAD) is None
    assert entry.state is State.LOADING
    assert entry.on(Event.LOADED, loaded=first) is None
    assert entry.loaded is first
    entry.on(Event.LOAD)
    assert entry.on(Event.LOADED, loaded=second) is first
    entry.source = VersionSource(2, ())
    assert entry.on(Event.FAIL, reason="it is broken") is None
    assert (entry.state, entry.reason) == (State.READY, "it is broken")
    assert entry.source is second.source
    assert entry.on(Event.EVICT) is second
    assert cast("State", entry.state) is State.ON_DEMAND
    assert entry.is_on_demand
    assert entry.on(Event.FAIL, reason="again") is None
    assert not entry.is_on_demand
    assert entry.retry_at > time.monotonic()
    assert entry.on(Event.CUT_OFF, reason="it is lost", passing="device_lost") is None
    assert entry.passing == "device_lost"
    assert entry.is_on_demand
    assert entry.on(Event.UNLOAD) is None
    assert entry.source is None
    with pytest.raises(KeyError):
        entry.on(Event.EVICT)


if __name__ == "__main__":
    text = PAGE.read_text()
    before, begin, rest = text.partition(BEGIN)
    PAGE.write_text(before + begin + drawing() + END + rest.partition(END)[2])


def test_a_version_that_failed_is_not_ready_when_a_request_may_load_it_again() -> None:
    record = ModelRecord("m")
    first, second = (record.version(number, _load_nothing) for number in (1, 2))
    for entry in (first, second):
        entry.source = VersionSource(entry.version, ())
        entry.on(Event.LOAD)
    second.on(Event.FAIL, reason="it is broken")
    second.retry_at = time.monotonic()  # the pause is over
    assert second.is_on_demand
    assert ready_version(record, None) is ready_version(record, "2") is None
    first.on(Event.LOADED, loaded=_loaded(ModelConfig()))
    assert ready_version(record, None) is ready_version(record, "1") is first
    assert ready_version(record, "2") is ready_version(record, "x") is None
    first.on(Event.EVICT)
    assert ready_version(record, None) is first


def test_a_version_that_serves_answers_for_one_that_failed() -> None:
    record = ModelRecord("m")
    first, second = (record.version(number, _load_nothing) for number in (1, 2))
    for entry in (first, second):
        entry.source = VersionSource(entry.version, ())
        entry.on(Event.LOAD)
    assert record.default_version == 2  # requests wait for it
    first.on(Event.LOADED, loaded=_loaded(ModelConfig()))
    assert record.default_version == 1
    second.on(Event.CUT_OFF, reason="the device was lost")
    assert record.default_version == 1
    assert record.on_demand(None) is None
    assert record.on_demand("2") is second
    assert record.on_demand("2", tried=[second]) is None
    second.on(Event.OFFER)
    assert record.default_version == 2
    assert record.on_demand("2", tried=[second]) is second
    second.on(Event.FAIL, reason="it is broken")
    assert record.default_version == 1
    first.on(Event.UNLOAD)
    second.retry_at = time.monotonic()
    assert record.default_version == 2


def test_requests_wait_for_a_version_that_is_loaded_again() -> None:
    entry = ModelRecord("m").version(1, _load_nothing)
    entry.source = VersionSource(1, ())
    entry.on(Event.LOAD)
    entry.on(Event.FAIL, reason="it is broken")
    assert not entry.is_on_demand
    entry.on(Event.LOAD)
    assert entry.is_on_demand
