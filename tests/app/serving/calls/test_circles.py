"""The search for circles among models that need each other."""

from __future__ import annotations

from app.serving.calls.circles import leads_to

NEEDS = {"a": ["b", "c"], "b": ["c"], "c": ["d"], "d": ["b"]}


def test_a_model_leads_to_itself_and_to_all_below_it() -> None:
    assert leads_to("alone", "alone", lambda name: NEEDS.get(name, []))
    assert leads_to("a", "d", lambda name: NEEDS[name])
    assert not leads_to("b", "a", lambda name: NEEDS[name])
